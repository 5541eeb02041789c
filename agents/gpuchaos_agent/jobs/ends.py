"""The end of a worker, made a fact: who killed it, what it said itself, or that nobody can know.

The agent is not the worker's parent. What can be known, best first: the exit status from a pidfd (Linux 6.15);
the same of a worker whose parent has not taken notice yet (`/proc/PID/stat` of a zombie); that its cgroup's count
of OOM kills rose. Without any of it the worker has vanished, and that is what is said.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Evidence, Fact
from gpuchaos_agent.kernelfs import processes
from gpuchaos_agent.kernelfs.exits import Exits, exit_code
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin

#: How long the status of an ended worker is waited for, seconds: its parent may not have taken notice yet.
GRACE_S: Final = 0.8

#: Signals that ask a process to end: a scheduler's, a person's, torch elastic's to the survivors.
_ASKED: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
#: A shell's way to say that what it ran was ended by a signal.
_SHELL: Final = 128
_ACTION: Final = "look_at_worker_log"


@dataclass(slots=True)
class Worker:
    """A process of a job, seen alive. `start` in clock ticks since boot; `gone_at` when it was first missed."""

    job: str
    pid: int
    start: int
    comm: str
    inspectable: bool
    gone_at: float | None = None


class Ends:
    """Watches workers and tells of each end once. `oom` of `check` says whether a worker's group lost one to OOM."""

    def __init__(self, procfs: Path) -> None:
        self._procfs = procfs
        # A pidfd is taken by number: in a copied or foreign procfs the number is somebody else's.
        self._exits = Exits() if procfs.resolve() == Path("/proc") else None
        self._boot = processes.boot_id(procfs)
        self._workers: dict[tuple[int, int], Worker] = {}

    def fileno(self) -> int | None:
        """Readable when a worker has ended."""
        return self._exits.fileno() if self._exits is not None else None

    def watch(self, job: str, pid: int, stat: processes.ProcessStat) -> None:
        """Watches the process that `stat` was read of. One that was watched already stays as it is."""
        key = (pid, stat.start)
        if key in self._workers or stat.state in processes.ENDED:
            return
        if self._exits is not None:
            self._exits.watch(key, pid)
            again = processes.process_stat(self._procfs, pid)
            if again is None or again.start != stat.start:
                self._exits.forget(key)
        self._workers[key] = Worker(job, pid, stat.start, stat.comm, processes.may_inspect(self._procfs, pid))

    def check(self, now: float, oom: Callable[[Worker], bool]) -> list[Fact]:
        """The ends since the last check. `now` is the node's clock, seconds since the epoch."""
        if self._exits is not None:
            self._exits.news()
        facts = []
        for key, worker in tuple(self._workers.items()):
            stat = processes.process_stat(self._procfs, worker.pid)
            if stat is not None and stat.start == worker.start and stat.state not in processes.ENDED:
                continue
            if worker.gone_at is None:
                worker.gone_at = now
            status = self._status(worker, stat)
            waits = stat is not None and stat.start == worker.start and self._exits is not None
            # Until its parent takes notice of it, the kernel may keep the status from us.
            if status is None and waits and now - worker.gone_at < GRACE_S:
                continue
            self._forget(key)
            fact = self._fact(worker, status, now, oom=oom(worker))
            if fact is not None:
                facts.append(fact)
        return facts

    def close(self) -> None:
        """Gives back what is open."""
        if self._exits is not None:
            self._exits.close()

    def _status(self, worker: Worker, stat: processes.ProcessStat | None) -> int | None:
        ours = stat is not None and stat.start == worker.start
        if ours and stat is not None and worker.inspectable and stat.wait_status is not None:
            return stat.wait_status
        return self._exits.wait_status((worker.pid, worker.start)) if self._exits is not None else None

    def _forget(self, key: tuple[int, int]) -> None:
        del self._workers[key]
        if self._exits is not None:
            self._exits.forget(key)

    def _fact(self, worker: Worker, status: int | None, now: float, *, oom: bool) -> Fact | None:
        code = None if status is None else exit_code(status)
        if code == 0:
            return None
        fault, severity, cause = _judged(code, oom=oom)
        evidence: Evidence = {
            "pid": worker.pid,
            "name": worker.comm,
            "job": worker.job,
            "scope": "app",
            "cause": cause,
            "action": _ACTION,
            "advice": catalogue.advice(_ACTION),
        }
        if code is not None:
            evidence["exitcode"] = code
        return Fact(
            key=f"{self._boot}:end:{worker.pid}:{worker.start}",
            fault=fault,
            severity=severity,
            time=now if worker.gone_at is None else worker.gone_at,
            kind="process",
            local=str(worker.pid),
            origin=Origin.AGENT,
            evidence=evidence,
        )


def _judged(code: int | None, *, oom: bool) -> tuple[str, Severity, str]:
    """Fault, severity and cause. A worker that vanished may have ended well: a warning, and no more."""
    if oom and code in (None, -signal.SIGKILL):
        return "worker_killed", Severity.ERROR, "oom"
    if code is None:
        return "worker_failed", Severity.WARNING, "unknown"
    by_signal = code < 0
    number = -code if by_signal else code - _SHELL
    asked = number in _ASKED
    try:
        cause = signal.Signals(number).name if by_signal or asked else "exit"
    except ValueError:
        cause = f"signal {number}"
    severity = Severity.INFO if asked else Severity.ERROR
    return ("worker_killed" if by_signal else "worker_failed"), severity, cause
