"""How a process that is no child of ours ended, and the news of it at once: pidfds.

A pidfd becomes readable when its process ends (Linux 5.3). Since Linux 6.15 it also tells the exit status, to
anybody who held it before the parent took notice (`PIDFD_GET_INFO` with `PIDFD_INFO_EXIT`, linux/pidfd.h of 6.15).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
from collections.abc import Hashable
from typing import Final

#: _IOWR(0xFF, 11, struct pidfd_info) with the structure's first published size, 64 bytes.
_GET_INFO: Final = (3 << 30) | (64 << 16) | (0xFF << 8) | 11
_INFO_EXIT: Final = 1 << 3
_EXIT_CODE_AT: Final = 60


class Exits:
    """Holds a pidfd a process, under a key that names it for good. What cannot be held is not watched."""

    def __init__(self) -> None:
        self._poll: select.epoll | None = None
        self._held: dict[Hashable, int] = {}

    def fileno(self) -> int | None:
        """Readable when a watched process has ended and `news` was not called since; None with nothing to watch."""
        poll = self._poll
        return poll.fileno() if poll is not None and self._held else None

    def watch(self, key: Hashable, pid: int) -> bool:
        """Whether `pid` is watched from now on. The caller makes sure that it is still the process it means."""
        if key in self._held:
            return True
        try:
            held = os.pidfd_open(pid)
            self._poll = self._poll or select.epoll()
            self._poll.register(held, select.EPOLLIN)
        except (OSError, AttributeError):
            return False
        self._held[key] = held
        return True

    def news(self) -> None:
        """Takes notice of what has ended: it makes the descriptor readable no more. Its status stays to be asked."""
        if self._poll is not None:
            for held, _ in self._poll.poll(0):
                self._poll.unregister(held)

    def wait_status(self, key: Hashable) -> int | None:
        """How the watched process ended, as waitpid(2) gives it; None while it is not known.

        It is not before its parent took notice, and never on kernels before 6.15.
        """
        held = self._held.get(key)
        if held is None:
            return None
        info = bytearray(64)
        struct.pack_into("=Q", info, 0, _INFO_EXIT)
        try:
            fcntl.ioctl(held, _GET_INFO, info)
        except OSError:
            return None
        (given,) = struct.unpack_from("=Q", info)
        (code,) = struct.unpack_from("=i", info, _EXIT_CODE_AT)
        return int(code) if given & _INFO_EXIT else None

    def forget(self, key: Hashable) -> None:
        """Watches that process no longer."""
        held = self._held.pop(key, None)
        if held is None:
            return
        if self._poll is not None:
            with contextlib.suppress(OSError):
                self._poll.unregister(held)
        os.close(held)

    def close(self) -> None:
        """Gives back everything. May be called twice."""
        for key in tuple(self._held):
            self.forget(key)
        # Another thread may ask for the descriptor meanwhile.
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.close()


def exit_code(wait_status: int) -> int:
    """The exit code of a wait status; of a process that a signal ended, minus the signal (as torch elastic says it).

    Raises:
        ValueError: a status of a process that has not ended.
    """
    return os.waitstatus_to_exitcode(wait_status)
