"""The cheapest read of a small kernel file: for sources that read hundreds of them every second.

`files.py` is the comfortable way. This one takes plain strings and four system calls, and is strict about what a
counter is, because a counter made of garbage would become a rate.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: An attribute of sysfs is never longer than a page, bytes.
PAGE: Final = 4096

#: A counter of the kernel has at most 64 bits.
_TOO_LARGE: Final = 1 << 64
_DIGITS: Final = 20


def raw(path: str, most: int = PAGE) -> bytes | None:
    """The first `most` bytes, None where the file is absent, gone (ENODEV), or refuses (EINVAL, EIO, EACCES)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return os.read(descriptor, most)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def text(path: str, most: int = PAGE) -> str | None:
    """The text without surrounding blanks, None as in `raw`. What is no UTF-8 is replaced."""
    content = raw(path, most)
    return None if content is None else content.decode("utf-8", "replace").strip()


def counter(path: str) -> int | None:
    """A whole number of up to 64 bits and nothing else: `N/A (no PMA)`, `-1`, `12abc` and an empty file are None."""
    content = raw(path, 64)
    if content is None:
        return None
    digits = content.strip()
    if not digits.isdigit() or len(digits) > _DIGITS:
        return None
    value = int(digits)
    return value if value < _TOO_LARGE else None


def names(path: str) -> tuple[str, ...]:
    """The sorted names in a directory, empty where there is none or it cannot be listed."""
    try:
        return tuple(sorted(os.listdir(path)))  # noqa: PTH208  (plain strings are what makes this cheap)
    except (OSError, ValueError):
        return ()


def link_name(path: str) -> str | None:
    """The last part of where a symbolic link leads (`driver` → `mlx5_core`), None where it is no link."""
    try:
        return Path(path).readlink().name or None
    except (OSError, ValueError):
        return None
