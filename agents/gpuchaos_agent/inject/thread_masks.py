"""The CPUs that the threads of a process may run on: all bound elsewhere, and each given back what it had.

Threads come and go meanwhile. One that is started inherits the mask of its starter, so binding and releasing look
again until none is left over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.inject.process_stop import Process, read_process
from gpuchaos_agent.journal import Scalar
from gpuchaos_agent.kernelfs import files

_ROUNDS: Final = 20

Cpus = frozenset[int]


@dataclass(frozen=True, slots=True)
class Masks:
    """The CPUs of each thread by id and start time; the first is the main thread."""

    threads: dict[tuple[int, int], Cpus] = field(default_factory=dict)

    @classmethod
    def now(cls, procfs: Path, pid: int) -> Self:
        """As they stand."""
        found = {(one.pid, one.start): mask for one in threads(procfs, pid) if (mask := mask_of(one.pid)) is not None}
        return cls(dict(sorted(found.items(), key=lambda item: item[0][0] != pid)))

    @classmethod
    def of(cls, content: str) -> Self:
        """What `text` wrote."""
        found = {(tid, start): ids(mask) for mask, named in json.loads(content).items() for tid, start in named}
        return cls(found)

    def text(self) -> str:
        """For the journal: the threads by mask, those with the main thread's first."""
        by_mask: dict[str, list[tuple[int, int]]] = {}
        for thread, mask in self.threads.items():
            by_mask.setdefault(listed(mask), []).append(thread)
        return json.dumps(by_mask)

    def before(self, thread: Process) -> Cpus:
        """What a thread had; the main thread's for one that was not there."""
        return self.threads.get((thread.pid, thread.start)) or next(iter(self.threads.values()), frozenset())


def bind(procfs: Path, pid: int, there: Cpus) -> None:
    """Binds every thread of the process to the CPUs `there`.

    Raises:
        InjectError: the kernel refuses.
    """
    for _ in range(_ROUNDS):
        elsewhere = [
            one.pid for one in threads(procfs, pid) if (now := mask_of(one.pid)) is not None and not now <= there
        ]
        if not elsewhere:
            return
        for tid in elsewhere:
            _set(tid, there)
    raise InjectError(f"process {pid} starts threads faster than they can be moved")


def bound(procfs: Path, pid: int, there: Cpus, before: Masks) -> dict[int, Cpus]:
    """Threads that run on the CPUs `there` alone and did not before → what they had."""
    found: dict[int, Cpus] = {}
    for one in threads(procfs, pid) if there else ():
        now, had = mask_of(one.pid), before.before(one)
        if now is not None and now <= there and had and not had <= there:
            found[one.pid] = had
    return found


def release(procfs: Path, pid: int, there: Cpus, before: Masks) -> None:
    """Gives every thread that is bound to `there` what it had.

    Raises:
        InjectError: the kernel refuses.
    """
    for _ in range(_ROUNDS):
        left = bound(procfs, pid, there, before)
        if not left:
            return
        for tid, mask in left.items():
            _set(tid, mask)
    raise InjectError(f"threads of process {pid} stay on CPUs {listed(there)}")


def family(procfs: Path, pid: int, since: int) -> list[int]:
    """The process, and its descendants that were started at `since` (clock ticks of this boot) or later."""
    by_parent: dict[int, list[int]] = {}
    for name in files.names(procfs):
        process = read_process(procfs, int(name)) if name.isdecimal() else None
        if process is not None and process.start >= since:
            by_parent.setdefault(process.parent, []).append(process.pid)
    found = [pid]
    for one in found:
        found += by_parent.get(one, ())
    return found


def threads(procfs: Path, pid: int) -> Iterator[Process]:
    """The threads of a process that have not ended."""
    tasks = procfs / str(pid) / "task"
    for name in files.names(tasks):
        thread = read_process(tasks, int(name))
        if thread is not None and thread.state not in "ZX":
            yield thread


def mask_of(tid: int) -> Cpus | None:
    """The CPUs that a thread may run on, None where it has ended."""
    try:
        return frozenset(os.sched_getaffinity(tid))
    except OSError:
        return None


def ids(content: Scalar) -> Cpus:
    """The CPUs of `0-3,8`."""
    return frozenset(files.id_list(content if isinstance(content, str) else None))


def listed(cpus: Iterable[int]) -> str:
    """`0-3,8` of a set of CPUs."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1][1:] = [cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


def _set(tid: int, mask: Cpus) -> None:
    try:
        os.sched_setaffinity(tid, mask)
    except ProcessLookupError:
        pass
    except OSError as error:
        raise InjectError(f"CPUs {listed(mask)} for thread {tid}: {error.strerror}") from error
