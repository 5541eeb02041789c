"""A capture made a tree again, so that collectors read it as they read a node."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

#: Longest line of a capture, bytes: the largest file that `capture` writes, escaped.
LONGEST: Final = 2 << 20
#: Roots that may be planted.
ROOTS: Final = ("sys", "proc")
#: Most lines and bytes that are planted: several of the largest nodes'.
MOST: Final = 300_000
MOST_BYTES: Final = 256 << 20


def plant(stream: BinaryIO, root: Path) -> tuple[int, int]:
    """Writes each `{"path", "content"}` line below `root`; how many were planted, and how many lines are none.

    A path with an `error` is left away, which is what a reader meets. Nothing is ever written outside `root`:
    a path that leaves it, or goes through a link that a line made, is counted as bad.
    """
    planted = bad = size = 0
    links: list[tuple[Path, str]] = []
    while line := stream.readline(LONGEST):
        if not line.strip():
            continue
        size += len(line)
        entry = _entry(line) if planted + len(links) < MOST and size < MOST_BYTES else None
        path = None if entry is None else _inside(root, str(entry["path"]))
        if entry is None or path is None:
            bad += 1
        elif "link" in entry:
            links.append((path, str(entry["link"])))
        elif isinstance(entry.get("content"), str):
            done = _write(path, entry["content"])
            planted += done
            bad += not done
    # Links come last: what a path went through is a folder by then, and a link never replaces one.
    for path, target in links:
        done = _link(root, path, target)
        planted += done
        bad += not done and not path.is_dir()
    return planted, bad


def _entry(line: bytes) -> dict[str, object] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(entry, dict) and isinstance(entry.get("path"), str)
    return entry if known and {"content", "error", "link"} & entry.keys() else None


def _inside(root: Path, name: str) -> Path | None:
    path = PurePosixPath(name)
    parts = path.parts[1:] if path.is_absolute() else path.parts
    if len(parts) < 2 or parts[0] not in ROOTS or ".." in parts or "\0" in name or len(name) > 1000:
        return None
    return root.joinpath(*parts)


def _write(path: Path, content: object) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(content), encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # a half of a surrogate pair is no name
        return False
    return True


def _link(root: Path, path: Path, target: str) -> bool:
    """A link that stays inside; where a folder stands in its place, the folder is what was captured of it.

    Only the beginning of its target may go up, as the kernel's do: what goes down and up again could lead out
    through a link that comes later.
    """
    down = target.lstrip("./")
    if ".." in PurePosixPath(down).parts:
        return False
    try:
        inside = (path.parent / target).resolve().is_relative_to(root.resolve())
        if not inside or "\0" in target or path.exists() or path.is_symlink():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    except (OSError, ValueError, RuntimeError):  # a ring of links is a RuntimeError to `resolve` before Python 3.13
        return False
    return True
