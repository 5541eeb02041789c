"""A file replaced whole: who opens it sees the old bytes or the new ones, with the same owner, mode and attributes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from gpuchaos_agent.inject.base import InjectError


def sha256(content: bytes) -> str:
    """Hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def unfit(path: Path) -> str | None:
    """Why the file could not be replaced in this way, or None. Changes nothing."""
    try:
        found = path.stat()
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    if not path.is_file():
        return f"{path} is no file"
    if found.st_nlink != 1:
        return f"{path} has {found.st_nlink} names (hard links); replacing one would part them"
    if path.is_mount():
        return f"{path} is mounted by itself and cannot be replaced"
    if not os.access(path.parent, os.W_OK):
        return f"{path.parent} cannot be written by this agent"
    return None


def replace(path: Path, content: bytes, *, fresh: Path, mtime_ns: int | None = None) -> None:
    """Puts `content` at `path` by way of `fresh`, a name in the same folder; durable before it returns.

    Owner, mode and extended attributes (SELinux labels, access lists) are those of the present file; where there is
    none, the mode is 0600. `mtime_ns` sets the time of the last change.

    Raises:
        InjectError: it could not; the file is as it was.
    """
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(content)
            with contextlib.suppress(FileNotFoundError):
                _liken(descriptor, path)
            if mtime_ns is not None:
                os.utime(descriptor, ns=(mtime_ns, mtime_ns))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(path)
        _sync(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise InjectError(f"{path} cannot be replaced: {error.strerror}") from None


def keep(path: Path, content: bytes) -> None:
    """Writes a copy that only its owner reads; durable before it returns.

    Raises:
        InjectError: the disk refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InjectError(f"{path.parent} cannot be made: {error.strerror}") from None
    replace(path, content, fresh=_under_way(path))


def discard(path: Path) -> None:
    """Removes a copy, and what a kill has left of the writing of it: there may be a key in it."""
    for each in (path, _under_way(path)):
        each.unlink(missing_ok=True)


def _under_way(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _liken(descriptor: int, path: Path) -> None:
    before = path.stat()
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        os.fchown(descriptor, before.st_uid, before.st_gid)
    os.fchmod(descriptor, before.st_mode & 0o7777)
    for name in os.listxattr(path):
        value = os.getxattr(path, name)
        try:
            os.setxattr(descriptor, name, value)
        except OSError:
            # A label that the new file has by itself needs no setting.
            if os.getxattr(descriptor, name) != value:
                raise


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
