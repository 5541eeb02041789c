"""Being told when a folder changes (inotify(7)), instead of looking several times a second for months."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from pathlib import Path
from typing import Any, Final

#: sys/inotify.h: CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE, and for the folder itself DELETE_SELF, MOVE_SELF.
_ENTRIES: Final = 0x8 | 0x40 | 0x80 | 0x100 | 0x200
_SELF: Final = 0x400 | 0x800
#: UNMOUNT and IGNORED: the watch is gone.
_GONE: Final = _SELF | 0x2000 | 0x8000
#: `struct inotify_event` without its name: wd, mask, cookie, length of the name.
_HEAD: Final = struct.Struct("iIII")


class Notice:
    """Watches the entries of `folder`. Changes from the constructor on are noticed, so look after making it."""

    def __init__(self, folder: Path) -> None:
        self._fd: int | None = None
        try:
            libc: Any = ctypes.CDLL(None)
            fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            if fd >= 0:
                self._fd = fd
                if libc.inotify_add_watch(fd, os.fsencode(folder), _ENTRIES | _SELF) < 0:
                    self.close()
        except (AttributeError, OSError):
            self.close()

    def fileno(self) -> int | None:
        """Readable when something has changed; None where nothing is told: too many watches, another system, or the
        folder itself went away. Look by the clock then.
        """
        return self._fd

    def take(self) -> None:
        """Forgets what was told so far: look after it."""
        while self._fd is not None:
            try:
                told = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            at = 0
            while at + _HEAD.size <= len(told):
                _, mask, _, length = _HEAD.unpack_from(told, at)
                if mask & _GONE:
                    self.close()
                    return
                at += _HEAD.size + length

    def close(self) -> None:
        """Stops watching. May be called twice."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)
