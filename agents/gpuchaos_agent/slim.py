"""Memory: the agent shares its node with a training job, and gives back what only its start needed."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

#: malloc.h, `M_ARENA_MAX`.
_M_ARENA_MAX: Final = -8
#: One heap for the loop and one for all other threads: each heap of its own keeps pages that nobody uses.
_ARENAS: Final = 2
#: bits/mman-linux.h.
_MADV_DONTNEED: Final = 4
#: A line of smaps that begins a private, readable, never writable mapping of a file (proc_pid_smaps(5)).
_MAPPING: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-[-x]p [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ [1-9][0-9]* +(/.*)")
#: What stays mapped as long as the process lives, so that nothing else can be at its address by now.
_LIBRARY: Final = re.compile(r"\.so(\.[0-9]+)*\Z")


def few_heaps() -> None:
    """Keeps glibc from making a heap for each thread. Call it before the first thread; elsewhere it does nothing."""
    _call("mallopt", _M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Frees what the start left behind: modules' source, schemas half built, answers once read.

    Pages of libraries leave this process and stay in the page cache, from where what is used comes back: this lowers
    the resident size much more than the proportional one. What lives on is frozen, so that collections look at new
    objects only.
    """
    gc.collect()
    gc.freeze()
    _call("malloc_trim", 0)
    for start, length in _clean(Path("/proc/self/smaps"), str(Path(sys.executable).resolve())):
        _call("madvise", ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_DONTNEED)


def _clean(smaps: Path, program: str) -> Iterator[tuple[int, int]]:
    """Start and length of what libraries and `program` itself have for reading only, where no page was ever written.

    Relocated data is read-only as well by now, but was written and would be lost: it has anonymous pages, here or
    in swap (proc_pid_smaps(5); `Anonymous` comes before `Swap`).
    """
    try:
        lines = smaps.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    found: tuple[int, int] | None = None
    unwritten = False
    for line in lines:
        name, value, *_ = *line.split(maxsplit=2), ""
        if not name.endswith(":"):  # the head of the next mapping
            head, unwritten = _MAPPING.match(line), False
            found = None
            if head is not None and (head[3] == program or _LIBRARY.search(head[3])):
                found = (int(head[1], 16), int(head[2], 16) - int(head[1], 16))
        elif name == "Anonymous:":
            unwritten = value == "0"
        elif name == "Swap:" and value == "0" and unwritten and found is not None:
            yield found


def _call(name: str, *values: Any) -> None:
    function: Any = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*values)
