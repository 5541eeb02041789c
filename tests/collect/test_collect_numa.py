from __future__ import annotations

import os
from pathlib import Path

from collect_trees import plant, table

from gpuchaos_agent.collect.numa import NumaCollector
from gpuchaos_agent.kernelfs import numa_nodes as numa

NODES = "devices/system/node"


def numastat(local: int, other: int) -> str:
    return f"numa_hit {local}\nnuma_miss 0\nlocal_node {local}\nother_node {other}\n"


def test_numa_rates_are_increments_per_second_of_local_and_other_pages(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            f"{NODES}/online": "0,8\n",
            f"{NODES}/node0/meminfo": "Node 0 MemTotal: 10 kB\nNode 0 MemFree: 3 kB\n",
            f"{NODES}/node0/numastat": numastat(100, 10),
            f"{NODES}/node8/numastat": numastat(5, 5),
        },
    )
    collector = NumaCollector(tmp_path)
    first = table(collector.read(10.0))
    plant(tmp_path, {f"{NODES}/node0/numastat": numastat(300, 20), f"{NODES}/node8/numastat": numastat(4, 5)})
    second = table(collector.read(12.0))
    assert first[("0", "memory_free_bytes")] == 3 * 1024
    assert first[("0", "local_rate")] is None
    assert (second[("0", "local_rate")], second[("0", "remote_rate")]) == (100.0, 5.0)
    # Node 8 has no meminfo; its counter went back, which is a reset and no rate.
    assert (second[("8", "memory_free_bytes")], second[("8", "local_rate")]) == (None, None)
    assert second[("8", "remote_rate")] == 0.0


def test_a_machine_without_numa_says_so(tmp_path: Path) -> None:
    reading = NumaCollector(tmp_path).read(0.0)
    assert reading.groups == ()
    assert "no NUMA nodes" in reading.absent["numa"]


def test_this_machines_numa_is_read() -> None:
    if not Path("/sys/devices/system/node/online").exists():
        reading = NumaCollector(Path("/sys")).read(0.0)
        assert "numa" in reading.absent
        return
    collector = NumaCollector(Path("/sys"))
    collector.read(1.0)
    reading = collector.read(2.0)
    node = reading.places.numa[0]
    assert (table(reading)[(node, "memory_free_bytes")] or 0) > 0
    assert (table(reading)[(node, "local_rate")] or 0) >= 0
    every = frozenset().union(*numa.cpus(Path("/sys") / NODES).values())
    assert os.sched_getaffinity(0) <= every


def test_minus_one_is_an_unknown_node_unless_there_is_only_one() -> None:
    assert numa.device_node(-1.0, (0, 1)) is None
    assert numa.device_node(-1.0, (3,)) == 3
    assert numa.device_node(None, (0, 1)) is None
    assert numa.device_node(1.0, (0, 1)) == 1
