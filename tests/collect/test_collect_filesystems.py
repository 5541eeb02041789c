from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuchaos_agent.collect.base import Fact, JobSource
from gpuchaos_agent.collect.filesystems import FilesystemCollector
from gpuchaos_agent.kernelfs import mounts
from gpuchaos_agent.kernelfs.mounts import Space
from gpuchaos_stream.events.base import Severity


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(
        "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 8:2 / /data rw - xfs /dev/sdb rw\n"
    )
    return tmp_path


class Disk:
    """How full `/data` is; the root has room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks = 0.5
        self.inodes: float | None = 0.1
        monkeypatch.setattr(mounts, "space", self._space)

    def _space(self, path: str) -> Space | None:
        return Space(self.blocks, self.inodes, 1e6) if path == "/data" else Space(0.1, None, 1e9)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def facts(collector: FilesystemCollector, now: float = 5.0) -> list[tuple[str, Severity]]:
    return [(str(fact.evidence["cause"]), fact.severity) for fact in collector.read(now).facts]


def test_a_filesystem_is_told_when_nearly_full_when_full_and_not_again(proc: Path, disk: Disk) -> None:
    collector = FilesystemCollector(proc)
    told = []
    for disk.blocks in (0.5, 0.979, 0.98, 0.985, 0.991, 1.0, 0.985, 0.992, 0.96, 0.98, 1.0):
        told += facts(collector)
    assert told == [("blocks", Severity.WARNING), ("blocks", Severity.ERROR)]


def test_a_filesystem_that_was_well_in_between_is_told_anew(proc: Path, disk: Disk) -> None:
    collector = FilesystemCollector(proc)
    told = []
    for disk.blocks in (1.0, 0.94, 0.995):
        told += facts(collector)
    assert told == [("blocks", Severity.ERROR)] * 2


def test_a_filesystem_that_was_full_before_is_told_at_the_first_look(proc: Path, disk: Disk) -> None:
    disk.inodes = 1.0
    (fact,) = FilesystemCollector(proc).read(5.0).facts
    assert (fact.fault, fact.severity, fact.kind, fact.local) == ("fs_full", Severity.ERROR, "node", "")
    assert (fact.evidence["path"], fact.evidence["cause"], fact.evidence["used_ratio"]) == ("/data", "inodes", 1.0)


def test_the_jobs_that_write_to_it_are_named(proc: Path, disk: Disk) -> None:
    disk.blocks = 1.0
    jobs = (
        JobSource("a", log=Path("/data/run/a.log")),
        JobSource("b", heartbeat=Path("/data/b")),
        JobSource("c", log=Path("/database/c.log")),
    )
    (fact,) = FilesystemCollector(proc, jobs).read(5.0).facts
    assert fact.evidence["job"] == "a,b"


def test_a_mount_that_comes_later_is_asked(proc: Path, disk: Disk) -> None:
    disk.blocks = 1.0
    whole = (proc / "self/mountinfo").read_text()
    (proc / "self/mountinfo").write_text(whole.splitlines()[0] + "\n")
    collector = FilesystemCollector(proc)
    assert facts(collector) == []
    (proc / "self/mountinfo").write_text(whole)
    assert facts(collector) == [("blocks", Severity.ERROR)]


def test_without_a_list_of_mounts_it_says_so(tmp_path: Path) -> None:
    assert "cannot be read" in FilesystemCollector(tmp_path).read(0.0).absent["filesystems"]


def test_this_machines_filesystems_are_asked() -> None:
    reading = FilesystemCollector(Path("/proc")).read(0.0)
    assert reading.absent == {}
    assert int(reading.info["asked"]) >= 1


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    at = tmp_path / "small"
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=50", "tmpfs", str(at)], check=True)
    yield at
    subprocess.run(["umount", "-l", str(at)], check=True)


def about(at: Path, found: tuple[Fact, ...]) -> list[tuple[object, Severity]]:
    return [(fact.evidence["cause"], fact.severity) for fact in found if fact.evidence["path"] == str(at)]


_NOT_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a filesystem needs root")


@pytest.mark.root
@_NOT_ROOT
def test_a_real_filesystem_that_is_filled_is_told_in_the_same_tick(small: Path) -> None:
    collector = FilesystemCollector(Path("/proc"))
    assert about(small, collector.read(1.0).facts) == []
    with pytest.raises(OSError, match="No space left"):
        (small / "checkpoint").write_bytes(b"x" * (2 << 20))
    assert about(small, collector.read(2.0).facts) == [("blocks", Severity.ERROR)]
    assert about(small, collector.read(3.0).facts) == []
    (small / "checkpoint").unlink()
    assert about(small, collector.read(4.0).facts) == []


@pytest.mark.root
@_NOT_ROOT
def test_a_real_filesystem_without_inodes_is_told_although_it_has_room(small: Path) -> None:
    collector = FilesystemCollector(Path("/proc"))
    collector.read(1.0)
    with pytest.raises(OSError, match="No space left"):  # noqa: PT012  (until it is full)
        for number in range(100):
            (small / str(number)).touch()
    assert about(small, collector.read(2.0).facts) == [("inodes", Severity.ERROR)]
