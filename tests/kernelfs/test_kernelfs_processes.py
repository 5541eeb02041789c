from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import until

from gpuchaos_agent.kernelfs import processes
from gpuchaos_agent.kernelfs.exits import Exits, exit_code
from gpuchaos_agent.kernelfs.processes import process_stat, process_status

PROC = Path("/proc")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process whose parent is not us."""
    parent = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    yield int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()


def test_a_name_with_brackets_and_blanks_is_read(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    rest = " ".join(["0"] * 18 + ["4321"] + ["0"] * 29 + ["139"])
    (tmp_path / "7/stat").write_text(f"7 (a ) S (b) R {rest}\n")
    stat = process_stat(tmp_path, 7)
    assert stat == processes.ProcessStat(state="R", start=4321, comm="a ) S (b", wait_status=139)


@pytest.mark.parametrize("text", ["", "7", "7 (a", "7 (a) S 0 0", "7 (a) S " + "x " * 30])
def test_what_is_no_stat_is_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(text)
    assert process_stat(tmp_path, 7) is None


def test_a_pinned_child_may_run_only_where_it_was_pinned(child: subprocess.Popen[bytes]) -> None:
    one = min(os.sched_getaffinity(0))
    os.sched_setaffinity(child.pid, {one})
    status = process_status(PROC, child.pid)
    assert status.cpus == (one,)
    assert status.mems
    assert (status.resident or 0) > 0


def test_a_process_that_is_gone_has_no_status(tmp_path: Path) -> None:
    assert process_status(tmp_path, 7) == processes.ProcessStatus()


def test_an_ended_child_keeps_its_status_until_its_parent_looks(child: subprocess.Popen[bytes]) -> None:
    assert processes.may_inspect(PROC, child.pid)
    child.send_signal(signal.SIGKILL)
    until(lambda: (stat := process_stat(PROC, child.pid)) is not None and stat.state in processes.ENDED, 5.0)
    stat = process_stat(PROC, child.pid)
    assert stat is not None
    assert stat.wait_status is not None
    assert exit_code(stat.wait_status) == -signal.SIGKILL


def test_the_end_of_a_strangers_process_is_news_at_once(stranger: int) -> None:
    exits = Exits()
    assert exits.fileno() is None
    assert exits.watch("key", stranger)
    fd = exits.fileno()
    assert fd is not None
    assert select.select([fd], [], [], 0)[0] == []
    os.kill(stranger, signal.SIGKILL)
    assert select.select([fd], [], [], 5)[0] == [fd]
    exits.news()
    assert select.select([fd], [], [], 0)[0] == []
    exits.close()
    exits.close()


def test_a_strangers_exit_status_is_known_where_the_kernel_tells_it(stranger: int) -> None:
    exits = Exits()
    exits.watch("key", stranger)
    os.kill(stranger, signal.SIGKILL)
    until(lambda: process_stat(PROC, stranger) is None, 5.0)
    status = exits.wait_status("key")
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release >= (6, 15):
        assert status is not None
        assert exit_code(status) == -signal.SIGKILL
    else:
        assert status is None
    exits.close()


def test_who_is_not_watched_has_no_status_and_who_is_gone_cannot_be(child: subprocess.Popen[bytes]) -> None:
    exits = Exits()
    assert exits.wait_status("key") is None
    child.kill()
    child.wait()
    assert not exits.watch("key", child.pid)
    exits.forget("key")
    exits.close()


def test_boot_id_is_that_of_the_kernel() -> None:
    assert processes.boot_id(PROC) == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert processes.boot_id(Path("/nowhere")) == ""
