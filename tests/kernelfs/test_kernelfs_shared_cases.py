"""Conclusions over NUMA cases that lie outside the project; `conftest.py` leaves this file out where they are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuchaos_agent.kernelfs import files, numa_maps, numa_nodes, pci
from gpuchaos_agent.kernelfs.alignment import home, placement

CASES = Path(__file__).parents[2] / "../shared/cases/numa"


def planted(name: str, root: Path) -> Path:
    for line in (CASES / name).read_text().splitlines():
        entry = json.loads(line)
        path = root / entry["path"].removeprefix("/sys/")
        if "content" in entry:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(entry["content"])
    return root


def expected(name: str) -> dict[str, str]:
    rows = map(json.loads, (CASES.parent / "expected.jsonl").read_text().splitlines())
    return next(dict(row["expect"]) for row in rows if row["file"] == f"numa/{name}")


def test_case_power9_gpu_memory_nodes_are_no_cpu_nodes(tmp_path: Path) -> None:
    name = "power9_gpu_memory_nodes.jsonl"
    nodes = numa_nodes.read(planted(name, tmp_path) / numa_nodes.NODES)
    assert nodes.cpu_nodes == files.id_list(expected(name)["nodes_cpu"])
    assert set(nodes.online) - set(nodes.cpu_nodes) == set(files.id_list(expected(name)["nodes_gpu_mem"]))
    # The third column is node 250, whose distance to itself is the local one.
    assert nodes.distance[250][250] == 10
    assert nodes.distance[0][8] == 40
    assert home(250, nodes) is None
    assert placement(0, nodes, allowed=nodes.cpus[8], pages={8: 1.0}).misaligned == 1.0


def test_case_offline_node0_is_not_looked_at(tmp_path: Path) -> None:
    name = "offline_node0.jsonl"
    nodes = numa_nodes.read(planted(name, tmp_path) / numa_nodes.NODES)
    assert nodes.online == files.id_list(expected(name)["online"])
    assert nodes.distance == {1: {0: 21, 1: 10}}
    assert placement(1, nodes, allowed=nodes.cpus[1], pages=None).misaligned is None


@pytest.mark.parametrize("name", ["amd_sparse_node_ids.jsonl", "intel_interleaved_cpu_ids.jsonl"])
def test_case_every_node_has_its_cpus_and_a_whole_row(tmp_path: Path, name: str) -> None:
    nodes = numa_nodes.read(planted(name, tmp_path) / numa_nodes.NODES)
    wanted = expected(name)["nodes"]
    assert len(nodes.online) == (int(wanted) if "," not in wanted else len(wanted.split(",")))
    assert nodes.cpu_nodes == nodes.online
    assert all(nodes.distance[node][node] == 10 for node in nodes.online)
    first, *others = nodes.online
    far = [placement(first, nodes, allowed=nodes.cpus[node], pages=None).misaligned for node in others]
    assert max(value for value in far if value is not None) == 1.0


def test_case_pci_devices_that_say_minus_one_are_nowhere(tmp_path: Path) -> None:
    root = planted("pci_numa_node_mostly_minus1.jsonl", tmp_path)
    found = {
        device.name: numa_nodes.device_node(files.number(pci.numa_file(root, device.name)), (0, 1, 2))
        for device in (root / "bus/pci/devices").iterdir()
        if device.name.endswith(".0")
    }
    assert {name for name, node in found.items() if node is not None} == {"0000:43:00.0"}


def test_case_numa_maps_policies_are_told_apart_and_their_pages_counted() -> None:
    lines = (CASES / "numa_maps_policies.txt").read_text().splitlines()
    policies = [line.policy for line in map(numa_maps.parse, lines) if line is not None]
    assert policies == ["bind:0-1", "prefer (many):0-1", "interleave:0,2", "weighted interleave:0-3", "local"]
    pages = {node: size / 4096 for node, size in numa_maps.bytes_by_node(lines).items()}
    assert pages == {0: 256 + 1 + 1 + 1, 1: 256 + 1 + 1, 2: 1 + 1, 3: 1}
