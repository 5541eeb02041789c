"""Pages of another process moved from NUMA node to NUMA node, and back to where each of them was.

By move_pages(2), straight from the C library's `syscall`: libnuma is not needed. Where the pages are is kept as runs
(address, pages, node), one line each, because a process has millions of them and they lie in long rows.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import platform
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.kernelfs import numa_maps

#: asm/unistd.h: the number of move_pages.
_MOVE_PAGES: Final = {"x86_64": 279, "aarch64": 239, "ppc64le": 301}
_MPOL_MF_MOVE: Final = 1 << 1
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
#: Pages asked for at once: the process's mmap lock is held meanwhile.
_AT_ONCE: Final = 4096
#: How often pages that are hidden are read and asked for again.
_LOOKS: Final = 3
#: Parts that one process_vm_readv takes at most: UIO_MAXIOV.
_VECTOR: Final = 1024
#: Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
_PRESENT: Final = 1 << 63
_OF_FILE: Final = 1 << 61


class _Part(ctypes.Structure):
    """`struct iovec` of process_vm_readv(2)."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


@dataclass(frozen=True, slots=True)
class Run:
    """`pages` pages from `start` on that are on `node`."""

    start: int
    pages: int
    node: int


@dataclass(frozen=True, slots=True)
class Range:
    """One mapping. `of_file`: it is a file's, and private; what was not written in it is the page cache's."""

    start: int
    end: int
    of_file: bool = False


def unavailable() -> str | None:
    """Why pages cannot be moved on this machine, or None."""
    return None if platform.machine() in _MOVE_PAGES else f"move_pages is not known on {platform.machine()}"


def own_ranges(procfs: Path, pid: int) -> list[Range]:
    """Where the process's own memory is; mappings that are the page cache's alone are left out.

    Raises:
        OSError: the process has gone, or is not for us.
    """
    known: dict[int, Range] = {}
    for line in (procfs / str(pid) / "maps").read_text(errors="replace").splitlines():
        bounds, rights, _, _, _, *path = line.split(maxsplit=5)
        first, _, last = bounds.partition("-")
        of_file = rights.endswith("p") and bool(path) and path[0].startswith("/")
        known[int(first, 16)] = Range(int(first, 16), int(last, 16), of_file)
    found = []
    for line in (procfs / str(pid) / "numa_maps").read_text(errors="replace").splitlines():
        start = int(line.partition(" ")[0], 16)
        if start in known and numa_maps.bytes_by_node([line]):
            found.append(known[start])
    return found


def where(procfs: Path, pid: int, ranges: Iterable[Range]) -> Iterator[Run]:
    """Where each page of the ranges is that is anywhere; of a file's mapping only the process's private copies.

    Raises:
        InjectError: the process has gone, or is not for us.
        OSError: likewise.
    """
    for one in ranges:
        for at in range(one.start, one.end, _AT_ONCE * PAGE):
            addresses = range(at, min(one.end, at + _AT_ONCE * PAGE), PAGE)
            entries = _entries(procfs, pid, addresses)
            nodes = _nodes(pid, addresses, entries)
            if one.of_file:
                private = [not entry & _OF_FILE for entry in entries]
                nodes = [node if own else -errno.ENOENT for node, own in zip(nodes, private, strict=True)]
            offset = 0
            for node, group in itertools.groupby(nodes):
                count = sum(1 for _ in group)
                if node >= 0:
                    yield Run(addresses[offset], count, node)
                offset += count


def move(pid: int, runs: Iterable[Run], to: int | None = None) -> int:
    """Moves the pages of the runs to node `to`, each run to its own `node` where that is None. Returns bytes moved.

    Pages that others map as well, and pages that are pinned for a device, stay where they are.

    Raises:
        InjectError: the process has gone, or is not for us, or the node is not allowed to it.
    """
    moved = 0
    for run in runs:
        target = run.node if to is None else to
        for at in range(run.start, run.start + run.pages * PAGE, _AT_ONCE * PAGE):
            addresses = range(at, min(run.start + run.pages * PAGE, at + _AT_ONCE * PAGE), PAGE)
            moved += sum(node == target for node in _move(pid, addresses, target)) * PAGE
    return moved


def write(path: Path, runs: Iterable[Run]) -> None:
    """Keeps the runs, on disk before it returns.

    Raises:
        OSError: the disk refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{run.start:x} {run.pages} {run.node}\n" for run in runs)
        file.write("end\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Run] | None:
    """What `write` kept; None where it is not there or was not finished, and then no page was moved."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return None
    if not lines or lines[-1] != "end":
        return None
    parts = (line.split() for line in lines[:-1])
    return [Run(int(start, 16), int(pages), int(node)) for start, pages, node in parts]


def strayed(now: Iterable[Run], before: Sequence[Run], node: int, home: int) -> list[Run]:
    """The pages that are on `node` now and do not belong there: each with the node that it was on before.

    A page that was not there before was made during the fault, and belongs `home`.
    """
    known = sorted(before, key=lambda run: run.start)
    found: list[Run] = []
    at = 0
    for run in sorted((run for run in now if run.node == node), key=lambda run: run.start):
        start, end = run.start, run.start + run.pages * PAGE
        while at < len(known) and known[at].start + known[at].pages * PAGE <= start:
            at += 1
        index = at
        while start < end:
            if index < len(known) and known[index].start < end:
                other = known[index]
                if other.start > start:
                    found.append(Run(start, (other.start - start) // PAGE, home))
                    start = other.start
                stop = min(end, other.start + other.pages * PAGE)
                found.append(Run(start, (stop - start) // PAGE, other.node))
                start = stop
                index += 1
            else:
                found.append(Run(start, (end - start) // PAGE, home))
                start = end
    return [run for run in found if run.node != node]


def _entries(procfs: Path, pid: int, addresses: Sequence[int]) -> list[int]:
    """The entry of each page in /proc/PID/pagemap; what it does not reach to is nobody's own."""
    with (procfs / str(pid) / "pagemap").open("rb", buffering=0) as file:
        file.seek(addresses[0] // PAGE * 8)
        found = file.read(len(addresses) * 8)
    entries = struct.unpack(f"={len(found) // 8}Q", found)
    return [*entries, *[_OF_FILE] * (len(addresses) - len(entries))]


def _nodes(pid: int, addresses: Sequence[int], entries: Sequence[int]) -> list[int]:
    """The node of each page, or a negative error number.

    Linux 6.1 does not show move_pages what `kernel.numa_balancing` has marked to see who uses it. Such a page is read,
    which takes the mark away, and asked for again.
    """
    nodes = _move(pid, addresses, None)
    for _ in range(_LOOKS):  # it may be marked again before it is asked for
        hidden = [
            at for at, (node, said) in enumerate(zip(nodes, entries, strict=True)) if node < 0 and said & _PRESENT
        ]
        if not hidden:
            break
        _touch(pid, [addresses[at] for at in hidden])
        for at, node in zip(hidden, _move(pid, [addresses[at] for at in hidden], None), strict=True):
            nodes[at] = node
    return nodes


def _touch(pid: int, addresses: Sequence[int]) -> None:
    """Reads a byte of each page; one that cannot be read is passed by."""
    libc = ctypes.CDLL(None, use_errno=True)
    at = 0
    while at < len(addresses):
        parts = [_Part(address, 1) for address in addresses[at : at + _VECTOR]]
        there = (_Part * len(parts))(*parts)
        content = ctypes.create_string_buffer(len(there))
        here = _Part(ctypes.addressof(content), len(there))
        said = libc.process_vm_readv(
            ctypes.c_int(pid),
            ctypes.byref(here),
            ctypes.c_ulong(1),
            ctypes.byref(there),
            ctypes.c_ulong(len(there)),
            ctypes.c_ulong(0),
        )
        at += len(there) if said == len(there) else max(said, 0) + 1


def _move(pid: int, addresses: Sequence[int], to: int | None) -> list[int]:
    """The node of each page afterwards, or a negative error number; nothing is moved where `to` is None."""
    count = len(addresses)
    pages = (ctypes.c_void_p * count)(*addresses)
    nodes = None if to is None else (ctypes.c_int * count)(*[to] * count)
    status = (ctypes.c_int * count)(*[-errno.ENOENT] * count)
    libc = ctypes.CDLL(None, use_errno=True)
    number = _MOVE_PAGES[platform.machine()]
    # Typed one by one: the variadic `syscall` takes plain Python numbers as 32 bits.
    said = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_long(pid),
        ctypes.c_ulong(count),
        ctypes.byref(pages),
        ctypes.byref(nodes) if nodes is not None else None,
        ctypes.byref(status),
        ctypes.c_long(_MPOL_MF_MOVE),
    )
    if said < 0:
        code = ctypes.get_errno()
        # ENOENT: not one page of them could be moved. The status of each says why.
        if code != errno.ENOENT:
            raise InjectError(f"move_pages of process {pid}: {os.strerror(code)}")
    return list(status)
