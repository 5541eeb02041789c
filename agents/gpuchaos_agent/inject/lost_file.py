"""A file that was changed, found again: at its path, renamed, moved, or on a volume that came back elsewhere.

It is said to be gone only where that is measured: the filesystem is there and knows its handle no more, or, where
handles cannot be asked for, a complete search of the folder named in the settings finds its inode nowhere.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject import file_handle, file_systems
from gpuchaos_agent.inject.base import Env, InjectError, Payload
from gpuchaos_agent.inject.file_handle import GoneError
from gpuchaos_agent.journal import JournalEntry

#: A search for an inode takes no longer, seconds: an undo hangs after 90, and it looks twice.
_SEARCH_S: Final = 20.0
#: Answers to an open by handle that say nothing of the file: no right, no handles, too old a C library.
_UNASKED: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


def planned(descriptor: int, root: Path, env: Env) -> Payload:
    """What an open file below `root` is known by, as a journal keeps it."""
    told = os.fstat(descriptor)
    real = Path(f"/proc/self/fd/{descriptor}").readlink()
    return {
        "path": str(real),
        "root": str(root),
        "inode": told.st_ino,
        **file_systems.planned(real, env),
    }


@contextmanager
def found(env: Env, entry: JournalEntry, flags: int, is_ours: Callable[[int], bool]) -> Iterator[int | None]:
    """The file of the entry, open, wherever it is now; None where it is gone.

    `is_ours` says of an open file with the same inode number on some other filesystem that it is the one all the same.

    Raises:
        InjectError: it is not found, or cannot be opened, and may be as it was left.
    """
    path = Path(str(entry.payload.get("path")))
    try:
        descriptor = _open(env, entry, flags, is_ours)
    except OSError as error:
        raise InjectError(f"{path}: {error.strerror}") from error
    try:
        yield descriptor
    except OSError as error:
        raise InjectError(f"{path}: {error.strerror}") from error
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open(env: Env, entry: JournalEntry, flags: int, is_ours: Callable[[int], bool]) -> int | None:
    payload = entry.payload
    path = Path(str(payload.get("path")))
    with suppress(FileNotFoundError, NotADirectoryError):
        if _is_inode(path.stat(follow_symlinks=False), payload):
            there = file_systems.is_on(path, payload, env)
            descriptor = _same(path, flags, payload)
            if descriptor is not None and (there or is_ours(descriptor)):
                return descriptor
            if descriptor is not None:
                os.close(descriptor)
    places = file_systems.places(payload, env)
    if not places:
        if file_systems.has_ended(entry, env):
            return None
        raise InjectError(f"{path} may still be damaged: {file_systems.away(entry)}; mount it again")
    handle = payload.get("handle")
    if isinstance(handle, str):
        try:
            return _by_handle(places, handle, flags)
        except GoneError:
            return None
        except OSError as error:
            if error.errno not in _UNASKED:
                raise
    return _by_search(env, entry, flags)


def _by_handle(places: list[Path], handle: str, flags: int) -> int:
    """By the first mount that lets it be opened: some may be read-only."""
    for place in places[:-1]:
        with suppress(OSError), file_systems.opened(place) as mount:
            return file_handle.opened(mount, handle, flags)
    with file_systems.opened(places[-1]) as mount:
        return file_handle.opened(mount, handle, flags)


def _by_search(env: Env, entry: JournalEntry, flags: int) -> int | None:
    root = Path(str(entry.payload.get("root")))
    path = entry.payload.get("path")
    if not file_systems.is_on(root, entry.payload, env):
        raise InjectError(f"{path} was not found and may still be damaged: {root} is not on its filesystem now")
    until = time.monotonic() + _SEARCH_S
    device, left = root.stat().st_dev, [root]
    while left:
        folder = left.pop()
        if time.monotonic() > until:
            raise InjectError(f"{path} was not found in {_SEARCH_S:g} s and may still be damaged: {root} is too large")
        with suppress(FileNotFoundError, NotADirectoryError):
            if folder.stat(follow_symlinks=False).st_dev != device:
                continue
            with os.scandir(folder) as names:
                for name in names:
                    if name.is_dir(follow_symlinks=False):
                        left.append(folder / name.name)
                    elif name.inode() == entry.payload.get("inode"):
                        descriptor = _same(folder / name.name, flags, entry.payload)
                        if descriptor is not None:
                            return descriptor
    return None


def _same(path: Path, flags: int, payload: Payload) -> int | None:
    """The file open, if it is a regular one of that inode number."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if _is_inode(os.fstat(descriptor), payload):
        return descriptor
    os.close(descriptor)
    return None


def _is_inode(told: os.stat_result, payload: Payload) -> bool:
    return told.st_ino == payload.get("inode") and stat.S_ISREG(told.st_mode)
