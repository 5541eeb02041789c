"""Network namespaces: a rule, a queue or a link is in one of them, and from another it looks as if it were gone.

So what a fault does to the network is journalled with the inode of the namespace, and an undo in another one claims
nothing. A namespace that nobody holds any more took everything in it along.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuchaos_agent import clock
from gpuchaos_agent.inject.base import Payload
from gpuchaos_agent.inject.nft import PREFIX
from gpuchaos_agent.journal import JournalEntry

#: The payload's name for it.
FIELD: Final = "netns"
#: Faults that are in a namespace whatever their payload holds: links, and queues of devices.
_ALWAYS: Final = frozenset({"rdma-link", "service-latency"})
_PROC: Final = Path("/proc")
_NAME: Final = re.compile(r"net:\[(\d+)\]")


def here() -> int | None:
    """The inode of this thread's network namespace, None where it cannot be told."""
    return _inode(_PROC / "thread-self/ns/net")


def stamped(fault: str, payload: Payload) -> Payload:
    """The payload with the namespace that the fault will stand in, where it touches the network at all."""
    touches = fault in _ALWAYS or str(payload.get("table", "")).startswith(PREFIX)
    inode = here() if touches else None
    return payload if inode is None else {**payload, FIELD: inode}


def elsewhere(entry: JournalEntry) -> str | None:
    """Why nothing can be said from here of a fault that stands in another namespace, with where to go; else None.

    None as well where that namespace is gone, or went with its boot.
    """
    inode = entry.payload.get(FIELD)
    if not isinstance(inode, int) or inode == here() or entry.boot_id != clock.boot_id():
        return None
    way = next(_ways(inode), None)
    if way is None:
        return None
    return (
        f"it stands in another network namespace: run it there "
        f"(nsenter --net={way} gpuchaos-agent undo --all, with the same --state-dir)"
    )


def _ways(inode: int) -> Iterator[Path]:
    """Paths by which the namespace can be entered: of processes, of their threads, of open files, of mounts."""
    for pattern in ("[0-9]*/ns/net", "[0-9]*/task/[0-9]*/ns/net", "[0-9]*/fd/*"):
        for link in _PROC.glob(pattern):
            if _inode(link) == inode:
                yield link
    for table in _PROC.glob("[0-9]*/mountinfo"):
        try:
            lines = table.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for words in (line.split(" ") for line in lines if f" net:[{inode}] " in line):
            yield table.with_name("root") / words[4].lstrip("/")


def _inode(link: Path) -> int | None:
    try:
        match = _NAME.fullmatch(str(link.readlink()))
    except OSError:
        return None
    return int(match[1]) if match else None
