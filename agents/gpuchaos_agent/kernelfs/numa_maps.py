r"""`/proc/PID/numa_maps`: on which NUMA nodes a process's pages are.

A line is `ADDRESS POLICY [file=PATH] [heap|stack|huge] [name=pages ...] N0=pages ... kernelpagesize_kB=4`
(fs/proc/task_mmu.c, `show_numa_map`). The policy may hold blanks (`weighted interleave:0-3`), the path may not:
blanks are `\040` in it. Counts are in pages of the size at the line's end; transparent huge pages still say 4.

Reading it needs ptrace rights, walks every page (28 ns each were measured, 7 ms a GiB of small pages) and waits for
the process's mmap lock, which a hung process may hold for ever. So it is read seldom, and aside (`Samples`).
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: A process is looked at anew after this long, seconds,
EVERY_S: Final = 30.0
#: and after this many times of what reading all of them takes: at most a five-hundredth of a core for it.
REST: Final = 500.0
#: A first answer is waited for this long, seconds: most are there at once.
WAIT_S: Final = 0.05
#: A process with more resident memory than this is not read, bytes: its lock could be held for half a second.
LARGEST: Final = 64 * 2**30

_CHUNK: Final = 64 * 1024
#: Where a kernel does not say the page size (before 3.8), bytes.
_PAGE: Final = 4096
#: What begins with these is memory that looks like a file, and is the process's own.
_MEMORY_FILES: Final = (
    "/dev/shm/",  # noqa: S108  (a name to compare with, nothing is made there)
    "/dev/zero",
    "/dev/hugepages/",
    "/memfd:",
    "/SYSV",
    "/anon_hugepage",
    "/dev/nvidia",
)


_COUNTS: Final = re.compile(r" (N\d{1,5}|anon|kernelpagesize_kB)=(\d{1,18})(?= |$)")
#: What may follow the policy. `bind=static:0` is a policy with a flag: every count is name=decimal.
_AFTER_POLICY: Final = re.compile(r" (?:file=|[A-Za-z_]\w{0,30}=\d{1,18}(?: |$)|(?:heap|huge|stack)(?:[: ]|$))")


@dataclass(frozen=True, slots=True)
class MapLine:
    """One mapping. `pages` by node and `anon`, its anonymous pages, are in pages of `page_bytes`."""

    policy: str
    path: str = ""
    huge: bool = False
    page_bytes: int = _PAGE
    anon: int = 0
    pages: dict[int, int] = field(default_factory=dict)


def parse(line: str) -> MapLine | None:
    """One line of numa_maps, None if it is none."""
    line = line.strip()
    address, _, rest = line.partition(" ")
    if not rest or not _is_hex(address):
        return None
    after = _AFTER_POLICY.search(line)
    policy = line[len(address) : after.start() if after else None].strip()
    pages, counts = _counted(line)
    return MapLine(
        policy=policy,
        path=_path(line).replace(r"\040", " ").replace(r"\075", "="),
        huge=_huge(line),
        page_bytes=counts.get("kernelpagesize_kB", _PAGE // 1024) * 1024,
        anon=counts.get("anon", 0),
        pages=pages,
    )


def bytes_by_node(lines: Iterable[str]) -> dict[int, float]:
    """Bytes of all mappings that are the process's own doing, by node; lines that are none are skipped.

    Clean pages of ordinary files are the page cache's: whoever read a library first placed them. Of a file's
    mapping only the share of private copies counts; which node those are on is not said, so each gets it.
    """
    total: dict[int, float] = {}
    for line in lines:
        # Most mappings of a large process have no page yet, and say no node.
        if " N" not in line or not _is_hex(line.partition(" ")[0]):
            continue
        pages, counts = _counted(line.rstrip())
        size = float(counts.get("kernelpagesize_kB", _PAGE // 1024) * 1024)
        path = _path(line)
        if path and not path.startswith(_MEMORY_FILES) and not _huge(line):
            every = sum(pages.values())
            size *= min(1.0, counts.get("anon", 0) / every) if every else 0.0
        if size:
            for node, count in pages.items():
                total[node] = total.get(node, 0.0) + count * size
    return total


def read(path: Path) -> dict[int, float]:
    """Own bytes by node of a whole file, in flat memory; the kernel frees the lock between two chunks.

    Raises:
        OSError: the process is gone, or its memory is not for us.
    """
    total: dict[int, float] = {}
    rest = b""
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for node, size in bytes_by_node(line.decode("utf-8", "replace") for line in lines).items():
                total[node] = total.get(node, 0.0) + size
    return total


@dataclass(slots=True)
class _Process:
    """`answer` is written by the reading thread, then `done` is set; all else is the caller's."""

    due: float
    asked: float | None = None
    done: threading.Event = field(default_factory=threading.Event)
    answer: tuple[dict[int, float] | None, str, float] = (None, "", 0.0)
    latest: dict[int, float] | None = None
    problem: str = ""
    took: float = 0.0


class Samples:
    """The pages of several processes, each read seldom and in a thread of its own, which ends with the reading.

    A reading that hangs keeps one daemon thread and is said; nobody waits for it. `monotonic` measures what
    reading takes, seconds.
    """

    def __init__(self, procfs: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._procfs = procfs
        self._monotonic = monotonic
        self._of: dict[Hashable, _Process] = {}

    def pages(self, key: Hashable, pid: int, now: float, resident: float | None) -> tuple[dict[int, float] | None, str]:
        """Bytes by node as last read, and in words why there are none.

        `key` names the process for good (pid and start time), `now` is in seconds of any clock, `resident` its
        resident bytes where they are known.
        """
        process = self._of.setdefault(key, _Process(due=now))
        if process.asked is None and now >= process.due:
            if resident is not None and resident > LARGEST:
                process.due, process.latest = now + EVERY_S, None
                process.problem = f"{resident / 2**30:.0f} GiB are too many to look at"
            else:
                self._ask(process, pid, now)
        if process.asked is not None:
            self._take(process, now)
        return process.latest, process.problem

    def keep(self, keys: Iterable[Hashable]) -> None:
        """Forgets all processes but these."""
        for key in set(self._of) - set(keys):
            del self._of[key]

    def _ask(self, process: _Process, pid: int, now: float) -> None:
        process.asked = now
        process.done.clear()
        work = threading.Thread(target=self._read, args=(process, pid), name=f"numa-maps-{pid}", daemon=True)
        work.start()
        process.done.wait(WAIT_S if process.latest is None else 0.0)

    def _take(self, process: _Process, now: float) -> None:
        asked = process.asked if process.asked is not None else now
        if not process.done.is_set():
            if now - asked >= EVERY_S:
                process.latest, process.problem = None, f"numa_maps has not answered for {now - asked:.0f} s"
            return
        process.latest, process.problem, process.took = process.answer
        process.asked = None
        process.due = now + max(EVERY_S, REST * sum(each.took for each in self._of.values()))

    def _read(self, process: _Process, pid: int) -> None:
        began = self._monotonic()
        try:
            found, problem = read(self._procfs / str(pid) / "numa_maps"), ""
        except OSError as error:
            found, problem = None, f"numa_maps: {error.strerror}"
        process.answer = (found, problem, self._monotonic() - began)
        process.done.set()


def _counted(line: str) -> tuple[dict[int, int], dict[str, int]]:
    """Pages by node, and the other counts. A path cannot be taken for one: blanks in it are escaped."""
    pages: dict[int, int] = {}
    counts: dict[str, int] = {}
    for name, value in _COUNTS.findall(line):
        if name[0] == "N":
            pages[int(name[1:])] = int(value)
        else:
            counts[name] = int(value)
    return pages, counts


def _path(line: str) -> str:
    return line.partition(" file=")[2].partition(" ")[0]


def _huge(line: str) -> bool:
    return " huge " in line or line.endswith(" huge")


def _is_hex(text: str) -> bool:
    try:
        int(text, 16)
    except ValueError:
        return False
    return text.isascii() and text.isalnum()
