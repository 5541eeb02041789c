"""RDMA trees that lie outside the project; `conftest.py` leaves this file out where they are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuchaos_agent.collect.rdma import RdmaCollector
from gpuchaos_agent.kernelfs import ports, quiet
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
    ("file", "names", "rate"),
    [
        ("sysfs/ib_mlx4_dual_port.jsonl", ("mlx4_0_1", "mlx4_0_2"), 40e9),
        ("sysfs/ib_mlx5_hw_counters.jsonl", ("mlx5_0",), 25e9),
        ("sysfs/opa_hfi1.jsonl", ("hfi1_0",), 100e9),
        ("sysfs/efa_unknown_link_layer.jsonl", ("efa_0",), None),
        ("sysfs/irdma_mixed_with_mlx5.jsonl", ("irdma0", "mlx5_0"), None),
    ],
)
def test_shared_rdma_trees_give_every_port_no_fact_and_hide_none(
    tmp_path: Path, file: str, names: tuple[str, ...], rate: float | None
) -> None:
    collector = RdmaCollector(planted(file, tmp_path))
    collector.read(0.0)
    reading = collector.read(61.0)
    (group,) = reading.groups
    columns = dict(zip(group.layout.metrics, group.columns, strict=True))
    assert reading.facts == ()
    assert group.layout.ids == names
    assert columns["port_active"][0] == 1.0
    assert columns["rate_bits"][0] == rate
    has_counters = "mlx" in names[-1] or "hfi" in names[-1]
    assert columns["link_downed_rate"][-1] == (0.0 if has_counters else None)


@pytest.mark.parametrize(
    ("file", "vendor", "link_layer", "rate"),
    [
        ("sysfs/opa_hfi1.jsonl", "omni-path", "InfiniBand", "100 Gb/sec (4X EDR)"),
        ("sysfs/ib_mlx4_dual_port.jsonl", "mellanox", "InfiniBand", "40 Gb/sec (4X QDR)"),
        ("sysfs/efa_unknown_link_layer.jsonl", "amazon", "Unknown", None),
    ],
)
def test_shared_rdma_devices_are_known_by_vendor(
    tmp_path: Path, file: str, vendor: str, link_layer: str, rate: str | None
) -> None:
    (device,) = ports.devices(planted(file, tmp_path))
    assert device.family.vendor == vendor
    assert {(port.link_layer, ports.rate_text(port)) for port in device.ports} == {(link_layer, rate)}


def test_shared_efa_moves_bytes_and_no_words(tmp_path: Path) -> None:
    root = planted("sysfs/efa_unknown_link_layer.jsonl", tmp_path)
    collector = RdmaCollector(root)
    collector.read(0.0)
    (root / "class/infiniband/efa_0/ports/1/hw_counters/tx_bytes").write_text("1002\n")
    (group,) = collector.read(1.0).groups
    assert group.columns[group.layout.metrics.index("tx_bytes_rate")] == (1000.0,)


def test_shared_port_without_a_subnet_manager_is_told_after_a_minute(tmp_path: Path) -> None:
    collector = RdmaCollector(planted("sysfs/port_init_no_sm.jsonl", tmp_path))
    assert collector.read(0.0).facts == ()
    (fact,) = collector.read(61.0).facts
    assert (fact.fault, fact.local, fact.severity) == ("no_subnet_manager", "mlx5_5", Severity.ERROR)


def test_shared_complaints_of_the_driver_teach_which_devices_to_leave_alone() -> None:
    quiet.forget()
    lines = (CASES / "rdma_log/mlx5_access_reg_noise.log").read_text().splitlines()
    heard = [quiet.heard(line, own_pid=18360) for line in lines]
    assert heard == ["0000:05:00.0", "0000:05:00.0", None]
    assert quiet.asked("0000:05:00.0")
    assert not quiet.asked("0000:05:00.1")
    quiet.forget()
