"""Reading the kernel's small text files: an unreadable one is None, never an exception, never a zero."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

#: No file of sysfs or procfs that we read is longer than this, bytes.
LARGEST: Final = 256 * 1024

#: Most are shorter than this, bytes. A buffer of `LARGEST` would be mapped anew for each of them.
_USUAL: Final = 8192

_FIRST_NUMBER = re.compile(r"^\s*(-?\d+(?:\.\d+)?)(?:\s|:|$)")


def text(path: Path) -> str | None:
    """The file's text without surrounding blanks, None where it is absent or refuses to be read (EINVAL, EIO).

    It never waits: a FIFO without a writer is empty.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        content = part = os.read(descriptor, _USUAL)
        # Files of several records come a page at a time, however much is asked for: only nothing is the end.
        while part and len(content) < LARGEST:
            part = os.read(descriptor, _USUAL)
            content += part
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return content[:LARGEST].decode("utf-8", "replace").strip()


def number(path: Path) -> float | None:
    """The number that the file begins with (`4` of `4: ACTIVE`), None for `N/A (no PMA)` and the like."""
    content = text(path)
    match = _FIRST_NUMBER.match(content) if content else None
    return float(match[1]) if match else None


def id_list(content: str | None) -> tuple[int, ...]:
    """The ids of a kernel list like `0-2,33,72-73`, sorted; empty for an empty list or one that is no list."""
    found: set[int] = set()
    for part in (content or "").strip().split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            continue
        low = int(first)
        high = int(last) if dash else low
        if high - low > 1 << 16:
            continue
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def names(path: Path) -> tuple[str, ...]:
    """The sorted names in a directory, empty where there is none."""
    try:
        return tuple(sorted(entry.name for entry in path.iterdir()))
    except OSError:
        return ()
