"""Where a follower is in its files, kept on disk over restarts of the agent."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

#: So many bytes before a position are kept with it, to see whether the file is still the same one.
BEFORE: Final = 64


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file by inode, how often it had been truncated, the first byte not handed out, the bytes before it."""

    inode: int
    generation: int
    offset: int
    before: str  # hexadecimal
    mtime_ns: int  # when it was last written, as far as was known


#: The files that were being read: those that lost their name first, the named one last.
Kept = tuple[KeptFile, ...]


def load(path: Path) -> Kept:
    """What was kept; empty where there is nothing, or nothing that can be read."""
    try:
        rows = json.loads(path.read_text())
        return tuple(
            KeptFile(int(inode), int(generation), max(0, int(offset)), bytes.fromhex(before).hex(), int(mtime_ns))
            for inode, generation, offset, before, mtime_ns in rows
        )
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return ()


def save(path: Path, kept: Kept) -> None:
    """Written whole beside and moved over, so that a crash leaves the old one.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps([astuple(one) for one in kept]))
    fresh.replace(path)
