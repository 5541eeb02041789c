"""Conclusions over cases that lie outside the project; `conftest.py` leaves this file out where they are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuchaos_agent.collect.numa import NumaCollector
from gpuchaos_agent.collect.rdma import RdmaCollector
from gpuchaos_agent.kernelfs import numa_nodes as numa
from gpuchaos_stream.events.base import Severity

CASES = Path(__file__).parents[2] / "../shared/cases"


def planted(file: str, root: Path) -> Path:
    """The tree of a case below `root`: paths without their `/sys`, missing files left out."""
    for line in (CASES / file).read_text().splitlines():
        entry = json.loads(line)
        path = root / entry["path"].removeprefix("/sys/")
        if "content" in entry:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(entry["content"])
    return root


@pytest.mark.parametrize(
    ("file", "nodes", "with_cpus"),
    [
        ("numa/amd_sparse_node_ids.jsonl", (0, 1, 2, 33, 34, 45, 72, 73), None),
        ("numa/intel_interleaved_cpu_ids.jsonl", (0, 1, 2, 3), (0, 1, 2, 3)),
        ("numa/offline_node0.jsonl", (1,), (1,)),
        ("numa/power9_gpu_memory_nodes.jsonl", (0, 8, 250, 251, 252, 253, 254, 255), (0, 8)),
    ],
)
def test_shared_numa_trees_are_read_by_their_online_list(
    tmp_path: Path, file: str, nodes: tuple[int, ...], with_cpus: tuple[int, ...] | None
) -> None:
    root = planted(file, tmp_path)
    reading = NumaCollector(root).read(0.0)
    assert reading.places.numa == tuple(str(node) for node in nodes)
    assert all(free is not None for free in reading.groups[0].columns[0][: len(with_cpus or ())])
    if with_cpus is not None:
        assert tuple(numa.cpus(root / numa.NODES)) == with_cpus


def test_shared_pci_devices_that_say_minus_one_are_on_no_known_node(tmp_path: Path) -> None:
    root = planted("numa/pci_numa_node_mostly_minus1.jsonl", tmp_path)
    said = [int(path.read_text()) for path in (root / "bus/pci/devices").glob("*/numa_node")]
    found = {numa.device_node(float(value), (0, 1, 2)) for value in said}
    assert found <= {None, 2}
    assert None in found


@pytest.mark.parametrize(
    ("file", "ports", "rate"),
    [
        ("sysfs/ib_mlx4_dual_port.jsonl", ("mlx4_0_1", "mlx4_0_2"), 40e9),
        ("sysfs/ib_mlx5_hw_counters.jsonl", ("mlx5_0",), 25e9),
        ("sysfs/opa_hfi1.jsonl", ("hfi1_0",), 100e9),
        ("sysfs/efa_unknown_link_layer.jsonl", ("efa_0",), None),
        (
            "sysfs/irdma_mixed_with_mlx5.jsonl",
            ("irdma0", "mlx5_0"),
            None,
        ),
    ],
)
def test_shared_rdma_trees_give_every_port_and_hide_none(
    tmp_path: Path, file: str, ports: tuple[str, ...], rate: float | None
) -> None:
    collector = RdmaCollector(planted(file, tmp_path))
    collector.read(0.0)
    (group,) = collector.read(1.0).groups
    columns = dict(zip(group.layout.metrics, group.columns, strict=True))
    assert group.layout.ids == ports
    assert columns["port_active"][0] == 1.0
    assert columns["rate_bits"][0] == rate
    has_counters = "mlx" in ports[-1] or "hfi" in ports[-1]
    assert columns["link_downed_rate"][-1] == (0.0 if has_counters else None)


def test_shared_port_without_a_subnet_manager_is_told_after_a_minute(tmp_path: Path) -> None:
    collector = RdmaCollector(planted("sysfs/port_init_no_sm.jsonl", tmp_path))
    assert collector.read(0.0).facts == ()
    (fact,) = collector.read(61.0).facts
    assert (fact.fault, fact.local, fact.severity) == ("no_subnet_manager", "mlx5_5", Severity.ERROR)
