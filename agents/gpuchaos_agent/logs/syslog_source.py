"""The kernel's lines in the file of a log daemon, followed: the last way where /dev/kmsg and journal are closed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpuchaos_agent.logs import literals, losses
from gpuchaos_agent.logs.follow import FileFollower, Line, Start
from gpuchaos_agent.logs.kernel_source import Info, Sourced
from gpuchaos_agent.logs.record import Writer
from gpuchaos_agent.logs.syslog import SyslogFramer

#: Read at most this much in one call, bytes.
PER_CALL: Final = 256 * 1024


class SyslogSource:
    """Follows the first of `paths` that can be read (distributions name it differently).

    `state` keeps the position, None for nothing. The first start ever begins at the file's end (`from_start`: at
    its beginning), a later one where the last `save` was.
    """

    name = "syslog"

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        hints: Iterable[str] | None = None,
        state: Path | None = None,
        from_start: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.problem = ""
        self._paths = tuple(paths)
        self._state = state
        self._from_start = from_start
        self._wall = wall
        self._wanted = None if hints is None else literals.any_bytes(hint.encode() for hint in (*hints, *_ALWAYS))
        self._framer = SyslogFramer(reference=wall(), zone=None)
        self._follower: FileFollower | None = None
        self._pending: list[Line] = []
        self._skipped = 0

    @property
    def behind(self) -> bool:
        """Whether more of the file is there than the last call took."""
        return self._follower is not None and self._follower.behind > 0

    def open(self) -> bool:
        """Whether a file is being followed."""
        if self._follower is not None:
            return True
        path = next((path for path in self._paths if os.access(path, os.R_OK)), None)
        if path is None:
            self.problem = f"{' and '.join(map(str, self._paths))}: not there, or not to be read"
            return False
        start: Start = "start" if self._from_start else "end"
        self._follower = FileFollower(path, start=start, per_call_bytes=PER_CALL, state=self._state)
        self._pending = self._follower.read()  # from here on, not from the next call
        self.problem = self._follower.problem
        return not self.problem

    def fileno(self) -> int | None:
        """A file cannot be waited on."""
        return None

    def records(self, now: float) -> list[Sourced]:
        """The lines that were completed since, as far as they are the kernel's."""
        if self._follower is None:
            return []
        lines, self._pending = [*self._pending, *self._follower.read()], []
        self.problem = self._follower.problem
        self._framer.reference = now
        found = []
        for line in lines:
            if self._wanted is not None and self._wanted.search(line.data) is None:
                self._skipped += 1
                continue
            for record in [*self._framer.feed(line.data + b"\n"), *self._framer.settle()]:
                if record.writer is not Writer.PROGRAM:
                    when = now if record.time is None else min(record.time, now)
                    found.append(Sourced(f"syslog/{line.key}", replace(record, time=when)))
        return found

    def info(self) -> Info:
        """File, inode, position, and what was left out."""
        inode, _, position = (0, 0, 0) if self._follower is None else self._follower.where
        return {
            "path": "" if self._follower is None else str(self._follower.path),
            "inode": inode,
            "position": position,
            "suppressed": self._framer.suppressed,
            "skipped": self._skipped,
            "unreadable": self._framer.bad,
        }

    def save(self) -> None:
        """Keeps inode and offset."""
        if self._follower is not None:
            self._follower.commit()

    def close(self) -> None:
        """Closes the file."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None


#: Lines that are read whatever is looked for.
_ALWAYS: Final = (*losses.LOSSES, "last message repeated")
