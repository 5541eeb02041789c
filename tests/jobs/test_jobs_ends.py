from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuchaos_agent.collect.base import Fact
from gpuchaos_agent.jobs.ends import GRACE_S, Ends
from gpuchaos_agent.kernelfs import processes
from gpuchaos_stream.events.base import Severity

PROC = Path("/proc")


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends(PROC)
    yield made
    made.close()


def stat_of(pid: int, procfs: Path = PROC) -> processes.ProcessStat:
    stat = processes.process_stat(procfs, pid)
    assert stat is not None
    return stat


def checked(ends: Ends, now: float = 10.0, *, oom: bool = False) -> list[Fact]:
    return ends.check(now, lambda _: oom)


@pytest.mark.parametrize(
    ("script", "signalled", "fault", "severity", "code", "cause"),
    [
        ("sleep 60", signal.SIGKILL, "worker_killed", Severity.ERROR, -9, "SIGKILL"),
        ("sleep 60", signal.SIGSEGV, "worker_killed", Severity.ERROR, -11, "SIGSEGV"),
        ("sleep 60", signal.SIGTERM, "worker_killed", Severity.INFO, -15, "SIGTERM"),
        ("read x; exit 3", None, "worker_failed", Severity.ERROR, 3, "exit"),
        ("read x; exit 143", None, "worker_failed", Severity.INFO, 143, "SIGTERM"),
        ("read x; exit 0", None, None, None, None, None),
    ],
)
@pytest.mark.parametrize("reaped", [False, True])
def test_a_childs_end_is_told_once_with_what_the_kernel_knows(
    ends: Ends,
    *,
    script: str,
    signalled: int | None,
    fault: str | None,
    severity: Severity | None,
    code: int | None,
    cause: str | None,
    reaped: bool,
) -> None:
    child = subprocess.Popen(["sh", "-c", f"exec {script}" if signalled else script], stdin=subprocess.PIPE)
    ends.watch("llama", child.pid, stat_of(child.pid))
    fd = ends.fileno()
    assert fd is not None
    assert checked(ends) == []
    if signalled is not None:
        child.send_signal(signalled)
    assert child.stdin is not None
    child.stdin.close()
    assert select.select([fd], [], [], 5.0)[0]
    if reaped:
        child.wait()
    facts = checked(ends, 12.5)
    child.wait()
    if reaped and not _kernel_tells_strangers():
        assert [fact.fault for fact in facts] == ["worker_failed"]
        return
    assert checked(ends, 13.0) == []
    if fault is None:
        assert facts == []
        return
    (fact,) = facts
    assert (fact.fault, fact.severity, fact.kind, fact.local) == (fault, severity, "process", str(child.pid))
    assert (fact.evidence["exitcode"], fact.evidence["cause"], fact.evidence["job"]) == (code, cause, "llama")
    assert fact.time == 12.5


def _kernel_tells_strangers() -> bool:
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)


def fake(root: Path, pid: int, *, start: int, state: str = "S") -> None:
    (root / str(pid)).mkdir(exist_ok=True)
    fields = " ".join(["0"] * 18 + [str(start)])
    (root / str(pid) / "stat").write_text(f"{pid} (python3) {state} {fields}\n")


def test_a_worker_that_vanished_without_a_word_is_a_warning_of_unknown_cause(tmp_path: Path) -> None:
    fake(tmp_path, 7, start=5)
    ends = Ends(tmp_path)
    ends.watch("llama", 7, stat_of(7, tmp_path))
    assert ends.fileno() is None
    (tmp_path / "7/stat").unlink()
    (fact,) = checked(ends)
    assert (fact.fault, fact.severity, fact.evidence["cause"]) == ("worker_failed", Severity.WARNING, "unknown")
    assert "exitcode" not in fact.evidence
    assert checked(ends) == []


def test_a_worker_that_vanished_when_its_group_was_out_of_memory_was_killed_for_that(tmp_path: Path) -> None:
    fake(tmp_path, 7, start=5)
    ends = Ends(tmp_path)
    ends.watch("llama", 7, stat_of(7, tmp_path))
    (tmp_path / "7/stat").unlink()
    (fact,) = checked(ends, oom=True)
    assert (fact.fault, fact.severity, fact.evidence["cause"]) == ("worker_killed", Severity.ERROR, "oom")


def test_another_process_under_the_same_pid_is_the_end_of_ours_and_watched_anew(tmp_path: Path) -> None:
    fake(tmp_path, 7, start=5)
    ends = Ends(tmp_path)
    ends.watch("llama", 7, stat_of(7, tmp_path))
    fake(tmp_path, 7, start=6)
    ends.watch("llama", 7, stat_of(7, tmp_path))
    (first,) = checked(ends)
    (tmp_path / "7/stat").unlink()
    (second,) = checked(ends)
    assert first.key != second.key


def test_a_process_that_has_ended_before_it_was_seen_is_not_watched(tmp_path: Path) -> None:
    fake(tmp_path, 7, start=5, state="Z")
    ends = Ends(tmp_path)
    ends.watch("llama", 7, stat_of(7, tmp_path))
    (tmp_path / "7/stat").unlink()
    assert checked(ends) == []


def test_a_status_that_is_kept_from_us_is_waited_for_and_then_unknown() -> None:
    child = subprocess.Popen(["sleep", "60"])
    ends = Ends(PROC)
    ends.watch("llama", child.pid, stat_of(child.pid))
    (worker,) = ends._workers.values()
    worker.inspectable = False
    child.kill()
    until = time.monotonic() + 5
    while stat_of(child.pid).state not in processes.ENDED and time.monotonic() < until:
        os.sched_yield()
    assert checked(ends, 10.0) == []
    (fact,) = checked(ends, 10.0 + GRACE_S)
    assert (fact.fault, fact.evidence["cause"], fact.time) == ("worker_failed", "unknown", 10.0)
    ends.close()
    child.wait()
