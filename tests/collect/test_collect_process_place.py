from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuchaos_agent.collect.base import JobSource, Reading
from gpuchaos_agent.collect.process import ProcessCollector

PROC = Path("/proc")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def fake_process(root: Path, pid: int, *, state: str = "S", start: int = 100, cpus: str = "0-3") -> None:
    path = root / str(pid)
    path.mkdir(parents=True, exist_ok=True)
    rest = " ".join(["0"] * 18)
    (path / "stat").write_text(f"{pid} (a ) b) {state} {rest} {start} 0 0\n")
    (path / "status").write_text(f"Name:\tx\nCpus_allowed_list:\t{cpus}\n")


def column(reading: Reading, metric: str, row: int = 0) -> float | None:
    (group,) = reading.groups
    return group.columns[group.layout.metrics.index(metric)][row]


@pytest.mark.parametrize(
    ("allowed", "node", "ratio"),
    [("0-3", 0, 0.0), ("4-7", 0, 1.0), ("0-7", 0, 0.5), ("0-255", 1, 0.5), ("0-3", None, None), ("0-3", 5, None)],
)
def test_misalignment_is_the_share_of_cpus_off_the_gpus_node(
    tmp_path: Path, allowed: str, node: int | None, ratio: float | None
) -> None:
    for number, cpus in ((0, "0-3"), (1, "4-7")):
        path = tmp_path / f"devices/system/node/node{number}"
        path.mkdir(parents=True)
        (path / "cpulist").write_text(cpus)
    (tmp_path / "devices/system/node/online").write_text("0-1")
    fake_process(tmp_path, 7, cpus=allowed)
    source = JobSource("train", pid=7, numa_node=node)
    (group,) = ProcessCollector((source,), procfs=tmp_path, sysfs=tmp_path).read(0.0).groups
    assert group.columns[group.layout.metrics.index("numa_misaligned_ratio")] == (ratio,)


def test_a_gpus_node_is_found_by_its_place_on_the_bus(tmp_path: Path) -> None:
    for number, cpus in ((0, "0-3"), (1, "4-7")):
        path = tmp_path / f"devices/system/node/node{number}"
        path.mkdir(parents=True)
        (path / "cpulist").write_text(cpus)
    for address, on in (("0000:1b:00.0", "0"), ("0000:c1:00.0", "1")):
        path = tmp_path / "bus/pci/devices" / address
        path.mkdir(parents=True)
        for name, content in (("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", on)):
            (path / name).write_text(content)
    fake_process(tmp_path, 7, cpus="0-3")
    source = JobSource("train", pid=7, gpu="1")
    (group,) = ProcessCollector((source,), procfs=tmp_path, sysfs=tmp_path).read(0.0).groups
    assert group.columns[group.layout.metrics.index("numa_misaligned_ratio")] == (1.0,)


def two_nodes(root: Path) -> None:
    for number, cpus, row in ((0, "0-3", "10 21"), (1, "4-7", "21 10")):
        path = root / f"devices/system/node/node{number}"
        path.mkdir(parents=True)
        (path / "cpulist").write_text(cpus)
        (path / "distance").write_text(row)
    (root / "devices/system/node/online").write_text("0-1")


def test_pages_on_the_other_node_misalign_a_process_whose_cpus_are_right(tmp_path: Path) -> None:
    two_nodes(tmp_path)
    fake_process(tmp_path, 7, cpus="0-3")
    (tmp_path / "7/numa_maps").write_text("7f00 default anon=8 dirty=8 N0=2 N1=6 kernelpagesize_kB=4\n")
    collector = ProcessCollector((JobSource("train", pid=7, numa_node=0),), procfs=tmp_path, sysfs=tmp_path)
    reading = collector.read(0.0)
    for now in range(1, 6):  # the map is read aside, and may come a tick later
        reading = reading if column(reading, "numa_memory_far_ratio") is not None else collector.read(float(now))
    assert column(reading, "numa_misaligned_ratio") == 0.75
    assert column(reading, "numa_cpu_far_ratio") == 0.0
    assert column(reading, "numa_memory_far_ratio") == 0.75
    assert not [why for what, why in reading.absent.items() if ".numa" in what]


def test_a_map_that_cannot_be_read_leaves_the_cpus_and_is_said(tmp_path: Path) -> None:
    two_nodes(tmp_path)
    fake_process(tmp_path, 7, cpus="2-5")
    collector = ProcessCollector((JobSource("train", pid=7, numa_node=0),), procfs=tmp_path, sysfs=tmp_path)
    reading = collector.read(0.0)
    for now in range(1, 6):
        reading = reading if "process.train.numa.memory" in reading.absent else collector.read(float(now))
    assert column(reading, "numa_misaligned_ratio") == 0.5
    assert column(reading, "numa_memory_far_ratio") is None
    assert "No such file" in reading.absent["process.train.numa.memory"]


def test_a_gpu_on_no_known_node_is_said_where_it_would_matter(tmp_path: Path) -> None:
    two_nodes(tmp_path)
    fake_process(tmp_path, 7)
    collector = ProcessCollector((JobSource("train", pid=7, gpu="0000:1b:00.0"),), procfs=tmp_path, sysfs=tmp_path)
    reading = collector.read(0.0)
    assert "GPU 0000:1b:00.0" in reading.absent["process.train.numa"]
    assert column(reading, "numa_misaligned_ratio") is None


def test_a_real_child_that_is_pinned_off_its_gpus_node_is_misaligned(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    """The nodes are made up, one for each half of this machine's CPUs; the process and its mask are real."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        mine = [mine[0], mine[0] + 1]
    near, far = mine[0], mine[1]
    two_nodes(tmp_path)
    (tmp_path / "devices/system/node/node0/cpulist").write_text(str(near))
    (tmp_path / "devices/system/node/node1/cpulist").write_text(str(far))
    source = JobSource("train", pid=sleeper.pid, numa_node=1)
    collector = ProcessCollector((source,), procfs=PROC, sysfs=tmp_path)
    os.sched_setaffinity(sleeper.pid, {near})
    assert column(collector.read(1.0), "numa_cpu_far_ratio") == 1.0
    assert column(collector.read(2.0), "numa_misaligned_ratio") == 1.0
    collector.close()
