"""`process-stop`: one process of a job is stopped with SIGSTOP, and continued with SIGCONT.

A process is named by pid **and** start time (proc_pid_stat(5), field 22): a pid that was given to another
process since is never touched. Signals go through a pidfd, so that nothing can slip in between.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field

from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.journal import JournalEntry, Scalar
from gpuchaos_stream.events.base import Authored

#: PF_KTHREAD of linux/sched.h, in field 9 (flags) of /proc/PID/stat.
_KERNEL_THREAD: Final = 0x00200000
#: Stopped by a signal. `t` is a tracer's stop and not ours.
_STOPPED: Final = "T"
#: Nothing that keeps the node alive or reachable is a target, whoever asks.
_PROTECTED: Final = frozenset(
    {
        *("init", "systemd", "systemd-journal", "systemd-udevd", "systemd-logind", "dbus-daemon", "sshd", "agetty"),
        *("kubelet", "containerd", "containerd-shim", "dockerd", "crio", "conmon", "slurmd", "slurmstepd", "munged"),
        *("nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "chronyd", "ntpd", "opensm"),
    }
)
_WAIT_S: Final = 0.5
_STEP_S: Final = 0.005


class ProcessStopParams(Authored):
    """`job`: if given, the process must belong to it."""

    job: str | None = Field(default=None, min_length=1)


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc/PID/stat says. `start` is in clock ticks since the boot."""

    pid: int
    comm: str
    state: str
    parent: int
    flags: int
    start: int


class ProcessStop:
    """SIGSTOP to one process; see the module."""

    name = "process-stop"
    layer = "the process: the scheduler runs none of its threads"
    certifies = ("hang-detection", "hang-recovery", "rank-attribution", "automatic-halt")
    not_certified = ("gpu-failure", "node-loss", "network-partition", "checkpoint-integrity")
    params: type[Authored] = ProcessStopParams

    def __init__(self, env: Env) -> None:
        self._env = env

    def unavailable(self) -> str | None:
        """Needs a kernel with pidfds (Linux 5.3) and a readable procfs."""
        if not hasattr(os, "pidfd_open"):
            return "this system has no pidfd_open"
        return None if self._read(os.getpid()) is not None else f"{self._env.procfs} cannot be read"

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Refuses what is not a running process of a job, and everything that must not stop."""
        kind, _, pid_text = target.partition(f"/{self._env.node}/")
        if kind != "process" or not pid_text.isdigit():
            return f"the target must be process/{self._env.node}/PID, not {target}"
        process = self._read(int(pid_text))
        if process is None:
            return f"there is no process {pid_text}"
        if process.pid == 1 or process.pid == 2 or process.flags & _KERNEL_THREAD:  # noqa: PLR1714
            return f"process {process.pid} ({process.comm}) is init or a kernel thread"
        if process.pid in self._own_line():
            return f"process {process.pid} ({process.comm}) is the agent or a parent of it"
        if process.comm in _PROTECTED | self._env.protected:
            return f"process {process.pid} ({process.comm}) is protected"
        if process.state in "ZX":
            return f"process {process.pid} ({process.comm}) has ended"
        if process.state in "Tt":
            return f"process {process.pid} ({process.comm}) is stopped already; continuing it is not ours to decide"
        job = self._job_of(process)
        if job is None and not self._env.any_process:
            return f"process {process.pid} ({process.comm}) belongs to no job that this agent knows"
        wanted = params.get("job")
        if wanted is not None and wanted != job:
            return f"process {process.pid} belongs to job {job}, not to {wanted}"
        return None

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:  # noqa: ARG002
        """Pid and start time: who it is, for ever."""
        process = self._read(int(target.rsplit("/", 1)[1]))
        if process is None:
            raise InjectError(f"{target} has ended")
        return {"pid": process.pid, "start": process.start, "comm": process.comm, "state_before": process.state}

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:  # noqa: ARG002
        """The process."""
        return frozenset({f"process:{target.rsplit('/', 1)[1]}"})

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """As kill(1); really sent through a pidfd."""
        pid = entry.payload.get("pid")
        return (f"kill -STOP {pid}", f"kill -CONT {pid}")

    def inject(self, entry: JournalEntry) -> None:
        """Sends SIGSTOP."""
        if not self._signal(entry, signal.SIGSTOP):
            raise InjectError(f"process {entry.payload.get('pid')} has ended")

    def evidence(self, entry: JournalEntry) -> Evidence:
        """The state in /proc, which is T once the last thread has stopped."""
        state = self._wait_for(entry, stopped=True)
        return Evidence(
            state == _STOPPED,
            {"state_before": entry.payload.get("state_before"), "state": state, "comm": entry.payload.get("comm")},
        )

    def undo(self, entry: JournalEntry) -> None:
        """Sends SIGCONT if the very same process is still there."""
        self._signal(entry, signal.SIGCONT)

    def verify(self, entry: JournalEntry) -> bool:
        """Gone, or not stopped."""
        return self._wait_for(entry, stopped=False) != _STOPPED

    def _wait_for(self, entry: JournalEntry, *, stopped: bool) -> str | None:
        deadline = time.monotonic() + _WAIT_S
        while True:
            process = self._same(entry)
            state = process.state if process else None
            if state is None or (state == _STOPPED) is stopped or time.monotonic() >= deadline:
                return state
            time.sleep(_STEP_S)

    def _signal(self, entry: JournalEntry, number: signal.Signals) -> bool:
        if self._same(entry) is None:
            return False
        pid = int(entry.payload["pid"])  # type: ignore[arg-type]
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError as error:
            raise InjectError(f"process {pid}: {error.strerror}") from error
        try:
            # Asked again with the pidfd in hand: from here on the pid cannot become somebody else.
            if self._same(entry) is None:
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        except OSError as error:
            raise InjectError(f"{number.name} to process {pid}: {error.strerror}") from error
        finally:
            os.close(descriptor)
        return True

    def _same(self, entry: JournalEntry) -> Process | None:
        """The process of the entry, None if it has ended, was replaced, or belonged to another boot."""
        if entry.boot_id != self._env.boot_id:
            return None
        pid, start = entry.payload.get("pid"), entry.payload.get("start")
        process = self._read(pid) if isinstance(pid, int) and pid > 1 else None
        return process if process is not None and process.start == start and process.state not in "ZX" else None

    def _read(self, pid: int) -> Process | None:
        return read_process(self._env.procfs, pid)

    def _own_line(self) -> set[int]:
        line, pid = set[int](), os.getpid()
        while pid > 0 and pid not in line:
            line.add(pid)
            process = self._read(pid)
            pid = process.parent if process else 0
        return line

    def _job_of(self, process: Process) -> str | None:
        """The job of the process or of the nearest parent that has one: launchers start ranks."""
        seen = set[int]()
        current: Process | None = process
        while current is not None and current.pid > 1 and current.pid not in seen:
            job = self._env.job_of(current.pid)
            if job is not None:
                return job
            seen.add(current.pid)
            current = self._read(current.parent)
        return None


def read_process(procfs: Path, pid: int) -> Process | None:
    """/proc/PID/stat, or None where there is no such process or it cannot be read.

    The command name may hold spaces and parentheses: the fields begin after the **last** one.
    """
    try:
        text = (procfs / str(pid) / "stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    try:
        return Process(
            pid=pid,
            comm=head.partition("(")[2],
            state=fields[0],
            parent=int(fields[1]),
            flags=int(fields[6]),
            start=int(fields[19]),
        )
    except (IndexError, ValueError):
        return None


STRATEGY = ProcessStop
