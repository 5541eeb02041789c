"""`/proc/PID`: what a process is doing, where it may run, and how it ended while it can still be seen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent.kernelfs import files

#: States of /proc/PID/stat (proc_pid_stat(5)) in which a process does nothing: stopped, traced, dead, zombie.
NOT_RUNNING: Final = frozenset("TtXxZ")
#: It has ended and waits for its parent to take notice.
ENDED: Final = frozenset("XxZ")

_EXIT_CODE: Final = 49  # field 52, counted from the state, field 3
_STATUS: Final = re.compile(r"^(Cpus_allowed_list|Mems_allowed_list|VmRSS|Uid|Threads):\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """State letter, start time (clock ticks since boot) and name of a process: pid and start name it for good.

    `wait_status` is as waitpid(2) gives it, and means something only in a state of `ENDED`. It is 0 for those who
    may not trace the process, too (`may_inspect`), and None on kernels before 3.5.
    """

    state: str
    start: int
    comm: str = ""
    wait_status: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """`/proc/PID/status`: of the main thread, as its cpuset leaves it. `resident` is in bytes."""

    cpus: tuple[int, ...] | None = None
    mems: tuple[int, ...] | None = None
    resident: float | None = None


def process_stat(procfs: Path, pid: int) -> ProcessStat | None:
    """`/proc/PID/stat`, None where there is no such process. The command's name may hold blanks and brackets."""
    head, found, rest = (files.text(procfs / str(pid) / "stat") or "").rpartition(")")
    fields = rest.split()
    if not found or len(fields) < 20 or not fields[19].isdecimal():
        return None
    code = fields[_EXIT_CODE] if len(fields) > _EXIT_CODE else ""
    return ProcessStat(
        state=fields[0],
        start=int(fields[19]),
        comm=head.partition("(")[2],
        wait_status=int(code) if code.isdecimal() else None,
    )


def process_status(procfs: Path, pid: int) -> ProcessStatus:
    """Where the main thread may run (20 us a read were measured); what could not be read is None.

    Threads may bind themselves elsewhere, and asking all of some hundred a second would cost a tenth of what the
    agent may use: the main thread stands for them.
    """
    found = dict(_STATUS.findall(files.text(procfs / str(pid) / "status") or ""))
    resident = found.get("VmRSS", "")
    return ProcessStatus(
        cpus=_ids(found.get("Cpus_allowed_list")),
        mems=_ids(found.get("Mems_allowed_list")),
        resident=float(resident) * 1024 if resident.isdecimal() else None,
    )


def may_inspect(procfs: Path, pid: int) -> bool:
    """Whether the kernel lets us see the process as a tracer may; asked while it lives."""
    try:
        with (procfs / str(pid) / "auxv").open("rb"):
            return True
    except OSError:
        return False


def boot_id(procfs: Path) -> str:
    """The id of this boot, empty where it cannot be read."""
    return files.text(procfs / "sys/kernel/random/boot_id") or ""


def _ids(content: str | None) -> tuple[int, ...] | None:
    return files.id_list(content) or None
