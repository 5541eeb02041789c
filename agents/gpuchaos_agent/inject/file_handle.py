"""A file by its handle (open_by_handle_at(2)): its inode and that inode's generation, whatever it is called now.

The one way to learn that a file is gone for good, and not only renamed. The kernel asks for CAP_DAC_READ_SEARCH, and
some filesystems (overlay) have no handles: what cannot be asked is told apart from what is gone.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any, Final

_MOST: Final = 128  # MAX_HANDLE_SZ
_AT_EMPTY_PATH: Final = 0x1000


class GoneError(Exception):
    """No such file is on the filesystem any more."""


class _Handle(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint), ("kind", ctypes.c_int), ("bytes", ctypes.c_ubyte * _MOST))


def of(descriptor: int) -> str | None:
    """The handle of an open file as text, None where its filesystem has none."""
    handle, mount = _Handle(length=_MOST), ctypes.c_int()
    call = getattr(_libc(), "name_to_handle_at", None)
    if call is None or call(descriptor, b"", ctypes.byref(handle), ctypes.byref(mount), _AT_EMPTY_PATH):
        return None
    return f"{handle.kind}:{bytes(handle.bytes[: handle.length]).hex()}"


def opened(mount: int, handle: str, flags: int) -> int:
    """A descriptor of the file, by any open file of its filesystem.

    Raises:
        GoneError: it was deleted.
        OSError: it cannot be asked (EPERM, EOPNOTSUPP), or not be opened.
    """
    kind, _, text = handle.partition(":")
    value = bytes.fromhex(text)
    asked = _Handle(length=len(value), kind=int(kind), bytes=(ctypes.c_ubyte * _MOST)(*value))
    call = getattr(_libc(), "open_by_handle_at", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    found = int(call(mount, ctypes.byref(asked), flags | os.O_CLOEXEC))
    if found >= 0:
        return found
    code = ctypes.get_errno()
    if code == errno.ESTALE:
        raise GoneError
    raise OSError(code, os.strerror(code))


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
