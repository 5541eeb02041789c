"""/dev/kmsg, followed: every record once, and those that were overwritten before we came counted."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpuchaos_agent.logs.kernel_source import Info, Sourced, keep, kept
from gpuchaos_agent.logs.kmsg import KmsgFramer
from gpuchaos_agent.logs.record import LogRecord

#: A read with less room than the record gives EINVAL; the kernel's longest is 8 KiB (CONSOLE_EXT_LOG_MAX), bytes.
BUFFER: Final = 16 * 1024
#: Reads per call, so that a flood does not keep the agent from its other work; the rest comes next time. The
#: device gives one record a read.
READS_PER_CALL: Final = 2000
#: Linux Documentation/admin-guide/devices.txt: 1 = /dev/mem's major, 11 = /dev/kmsg. Containers put /dev/null there.
_KMSG: Final = os.makedev(1, 11)


class DeviceSource:
    """Follows `path`, the device or a file that stands for it. `state` keeps boot id and number, None for nothing.

    The first start ever begins at the log's end (`from_start`: at its beginning); a later one where the last
    `save` was, and after a reboot at the log's beginning.
    `monotonic` gives seconds on the clock of the records (CLOCK_MONOTONIC).
    """

    name = "kmsg"

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        hints: Iterable[str] | None = None,
        state: Path | None = None,
        from_start: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem = ""
        self.behind = False
        self._path = path
        self._boot = boot_id
        self._state = state
        self._from_start = from_start
        self._monotonic = monotonic
        self._framer = KmsgFramer(hints)
        self._done: int | None = None  # the number up to which everything was handed out
        self._saved: int | None = None
        self._overwritten = 0
        self._fd: int | None = None
        self._is_file = False

    def open(self) -> bool:
        """Whether the device is open. At the first opening the position is found."""
        if self._fd is not None:
            return True
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            needs = "; it needs root or CAP_SYSLOG" if error.errno in {errno.EPERM, errno.EACCES} else ""
            self.problem = f"{self._path}: {os.strerror(error.errno or 0)}{needs}"
            return False
        status = os.fstat(self._fd)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev != _KMSG:
            self.close()
            self.problem = f"{self._path}: is another device than the kernel log's"
            return False
        self.problem = ""
        self._is_file = stat.S_ISREG(status.st_mode)
        if self._done is not None:
            return True  # reopened: what we had is passed over by its numbers
        position = kept(self._state)
        boot, number = position.get("boot_id"), position.get("seq")
        if not isinstance(boot, str) or type(number) is not int:
            if not self._from_start:
                self._skip(self._fd)
        elif boot == self._boot:
            self._done = self._saved = self._framer.seq = number
        return self._fd is not None

    def fileno(self) -> int | None:
        """The device's descriptor; a regular file cannot be waited on."""
        return None if self._is_file else self._fd

    def records(self, now: float) -> list[Sourced]:
        """Reads what is there. Times are taken from the records' own clock against `now`."""
        if self._fd is None:
            return []
        # Taken anew for each batch, so that a step of the wall clock does not stay in all later records.
        booted = now - self._monotonic()
        found = []
        for record, lost in self._take(self._fd):
            self._overwritten += lost
            when = now if record.usec is None else max(0.0, min(booted + record.usec / 1e6, now))
            key = f"kmsg/{self._boot}/{record.seq}"
            found.append(Sourced(f"{key}/gap" if lost else key, replace(record, time=when), lost))
        return found

    def info(self) -> Info:
        """Boot id, position (-1 before the first record), and what was left out."""
        return {
            "boot_id": self._boot,
            "position": -1 if self._done is None else self._done,
            "lost": self._overwritten,
            "suppressed": self._framer.suppressed,
            "skipped": self._framer.skipped,
            "unreadable": self._framer.bad,
        }

    def save(self) -> None:
        """Keeps boot id and number."""
        if self._state is not None and self._done is not None and self._done != self._saved:
            keep(self._state, {"boot_id": self._boot, "seq": self._done})
            self._saved = self._done

    def close(self) -> None:
        """Closes the device."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _skip(self, fd: int) -> None:
        """Goes to the end, record by record: a seek would leave the position unknown until the next record, and
        a kill before that would make the next start a first one again.
        """
        while self._fd is not None:
            for _ in self._take(fd):
                pass
            if not self.behind:
                break
        self._framer.lost = self._framer.suppressed = self._framer.skipped = self._framer.bad = 0

    def _take(self, fd: int) -> Iterator[tuple[LogRecord, int]]:
        """New records of interest, each with how many before it are missing."""
        framer = self._framer
        self.behind = False
        for _ in range(READS_PER_CALL):
            try:
                data = os.read(fd, BUFFER)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before we came; the gap shows in the numbers
                    continue
                self.problem = f"{self._path}: {os.strerror(error.errno or 0)}"
                self.close()
                return
            if not data:
                return
            before = framer.lost - framer.suppressed
            if self._is_file:
                found = [*framer.feed(data), *framer.settle()]
            else:
                one = framer.whole(data)
                found = [] if one is None else [one]
            missing = framer.lost - framer.suppressed - before
            done = -1 if self._done is None else self._done
            number = framer.seq
            if number is not None and number > done:
                self._done = number
                if missing > 0:
                    yield _gap(number, missing, found), missing
                yield from ((record, 0) for record in found if record.seq is not None and record.seq > done)
        self.behind = True


def _gap(number: int, missing: int, found: list[LogRecord]) -> LogRecord:
    """Stands where records are missing, before the first that was read again."""
    usec = found[0].usec if found else None
    return LogRecord(text=f"{missing} records were overwritten before they were read", usec=usec, seq=number)
