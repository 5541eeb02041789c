"""A log file, followed: every complete line once, through rotation, truncation, deletion and a new start.

What loggers and their keepers do to a file, and how it is seen here:

- renamed and made anew (logrotate `create`, Docker, kubelet): another inode under the name. The old one is
  read to its end first, and for a while longer, since its writer keeps it open until it is told. Files that came
  and went between two calls are found beside it by their names (`app.log.1`, `app.log-20260131`).
- truncated in place (logrotate `copytruncate`, `>`): shorter than our position, or, where it has grown again
  since, other bytes before it. What was copied away unread is read in the copy. A writer without O_APPEND leaves a
  hole before its next line: it is skipped.
- the name is a link that is swapped (Kubernetes' /var/log/containers): as renamed.
- deleted: read to its end, then let go so that its room on disk is given back; found again when it returns.
- an inode used again for another file while we were away: other bytes before the position we kept.

What cannot be seen: a file that is renamed twice within one grain of the filesystem's clock (4 ms), and one that is
truncated and grows again to the same bytes before our position.

A call reads at most `per_call_bytes`; the rest comes with the next call, nothing is left out. Only a line longer
than `LONGEST_LINE` is cut, which `cut` counts. A carriage return ends a line as well, since progress bars
print thousands of states before the first line feed.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuchaos_agent.logs import position
from gpuchaos_agent.logs.opened import LONGEST_LINE, TAIL, Line, OpenFile, Start

__all__ = ["LONGEST_LINE", "PER_CALL", "TAIL", "FileFollower", "Line", "Start"]

#: Read at most this much in one call, bytes.
PER_CALL: Final = 1024 * 1024
#: A file that lost its name is let go after so many calls that found nothing new in it.
LINGER: Final = 10
#: Files that are read beside the named one at most; more than that between two calls are counted as missed.
MOST_LEAVING: Final = 64

#: What rotation puts behind a file's name, or before its ending. Compressed ones have been read before.
_ROTATED: Final = re.compile(r"[.-]\d[\d.T:_-]{0,40}")


class FileFollower:
    """Follows `path`. `state` is the file that keeps the position over restarts, None to keep nothing.

    `start` is where a file begins that is there at the first call and of which no position is kept: at its end, at
    its beginning, or at its last `TAIL` bytes. A file that comes later is read from its beginning.
    """

    def __init__(
        self, path: Path, *, start: Start = "end", per_call_bytes: int = PER_CALL, state: Path | None = None
    ) -> None:
        self.path = path
        #: Why nothing can be read, in words; empty while the file is there.
        self.problem = ""
        #: Bytes of over-long lines that were not handed out.
        self.cut = 0
        #: Files that were rotated away unread.
        self.missed = 0
        #: Bytes that the last call read.
        self.last_read = 0
        self._start: Start = start
        self._per_call = per_call_bytes
        self._state = state
        self._saved: position.Kept = ()
        self._current: OpenFile | None = None
        self._leaving: list[OpenFile] = []
        self._gone: dict[tuple[int, int], position.KeptFile] = {}
        self._new = True

    @property
    def behind(self) -> int:
        """Bytes that are there and not yet read: more than 0 after a call means that the next has work at once."""
        return sum(file.behind() for file in self._files())

    @property
    def where(self) -> tuple[int, int, int]:
        """Inode, generation and bytes read of the named file; zeros while there is none."""
        file = self._current
        return (0, 0, 0) if file is None else (file.inode, file.generation, file.position)

    def begin(self) -> None:
        """Finds where to begin, and reads nothing: what is written from now on is handed out."""
        self._look()

    def read(self, most: int | None = None) -> list[Line]:
        """The lines that were completed since the last call, in order. Never raises, never waits.

        `most` bytes are read instead of `per_call_bytes`.
        """
        self._look()
        lines: list[Line] = []
        whole = self._per_call if most is None else most
        left = whole
        for file in self._files():  # those found meanwhile come with the next call
            try:
                left -= self._read_file(file, left, lines)
            except OSError as error:
                self.problem = _said(self.path, error)
            if left <= 0:
                break
        self.last_read = whole - left
        self._let_go(lines)
        return lines

    def peek_end(self, most: int) -> tuple[Line, ...]:
        """The complete lines within the last `most` bytes of the named file, read without moving on."""
        file = self._current
        return () if file is None else tuple(file.peek_end(most))

    def commit(self) -> None:
        """Keeps the position: every line handed out so far is safe.

        Raises:
            OSError: it cannot be written.
        """
        if self._state is None:
            return
        kept = tuple(file.kept() for file in self._files())
        if kept and kept != self._saved:
            position.save(self._state, kept)
            self._saved = kept

    def close(self) -> None:
        """Closes what is open, without keeping the position. May be called twice; nothing is read after it."""
        for file in self._files():
            file.close()
        self._current, self._leaving = None, []

    def _files(self) -> tuple[OpenFile, ...]:
        return (*self._leaving, self._current) if self._current is not None else tuple(self._leaving)

    def _read_file(self, file: OpenFile, most: int, lines: list[Line]) -> int:
        read, cut = file.read(most, lines)
        self.cut += cut
        if file.truncated is not None:
            was, file.truncated = file.truncated, None
            if file is self._current:
                self._between(file, was)  # whoever truncated it may have copied first what we had not read
        return read

    def _look(self) -> None:
        """Opens what stands under the name now, and keeps what stood there before until it is read."""
        try:
            status = self.path.stat()
            if not stat.S_ISREG(status.st_mode):
                self.problem = f"{self.path}: is no regular file"
                return
            if self._current is None or (status.st_dev, status.st_ino) != self._current.identity:
                self._switch()
            self.problem = ""
        except OSError as error:
            self.problem = _said(self.path, error)
            if error.errno == errno.ENOENT:
                self._start = "start"  # what comes under the name from now on was written while we looked

    def _switch(self) -> None:
        fresh = OpenFile(self.path)
        if self._new:
            self._new = False
            self._begin(fresh)
        elif self._current is not None:
            self._leave(self._current, fresh)
        self._current = fresh

    def _begin(self, fresh: OpenFile) -> None:
        """The first file ever: from the kept position on, else as `start` says."""
        kept = position.load(self._state) if self._state is not None else ()
        if not kept:
            fresh.start(self._start)
            return
        self._saved = kept
        *leaving, last = kept
        self._leaving += [file for one in leaving if (file := self._find(fresh, one)) is not None]
        if fresh.inode == last.inode:
            same = fresh.holds(last)
            fresh.generation = last.generation + (not same)
            if same and last.before:
                fresh.resume(last)
                return  # where nothing had been read yet, the number alone may be another file's
        found = self._find(fresh, last)
        if found is not None:
            self._leaving.append(found)
        self._between(fresh, last)

    def _find(self, fresh: OpenFile, kept: position.KeptFile) -> OpenFile | None:
        """The kept file under the name that rotation gave it since, at the kept position."""
        return next((file for file in _beside(fresh.path) if file.resumes(kept)), None)

    def _leave(self, old: OpenFile, fresh: OpenFile) -> None:
        self._leaving.append(old)
        self._between(fresh, old.kept())
        while len(self._leaving) > MOST_LEAVING:
            self._leaving.pop(0).close()
            self.missed += 1

    def _between(self, fresh: OpenFile, read: position.KeptFile) -> None:
        """Files that were written since the last reading and rotated away before `fresh` came.

        One of them may be a copy of what was `read`, made before that was truncated: it is read on from there.
        """
        known = {fresh.identity, *(file.identity for file in self._leaving)}
        found = []
        for file in _beside(fresh.path):
            if file.identity in known or file.mtime_ns() <= read.mtime_ns:
                file.close()
                continue
            gone = self._gone.get(file.identity)  # its writer may have gone on after we had let it go
            at = next((at for at in (gone, read) if at is not None and at.before and file.holds(at)), None)
            if at is not None:
                file.resume(at)
            found.append(file)
        self._leaving += sorted(found, key=OpenFile.mtime_ns)

    def _let_go(self, lines: list[Line]) -> None:
        """Closes files without a name that have nothing more to say, their last unended line handed out."""
        for file in tuple(self._leaving):
            if file.quiet > (0 if file.nameless() else LINGER):
                lines += file.last()
                if not file.nameless():  # else its number is free for another file
                    self._gone[file.identity] = file.kept()
                while len(self._gone) > MOST_LEAVING:
                    del self._gone[next(iter(self._gone))]
                file.close()
                self._leaving.remove(file)
        current = self._current
        if self.problem and current is not None and current.quiet and current.nameless():
            lines += current.last()
            current.close()
            self._current = None


def _beside(path: Path) -> Iterator[OpenFile]:
    """The files that rotation of `path` can have made, opened; the taker closes them."""
    try:
        entries = sorted(path.parent.iterdir())
    except OSError:
        return
    for entry in entries:
        after = entry.name[len(path.name) :] if entry.name.startswith(path.name) else ""
        inside = entry.name.startswith(path.stem) and entry.name.endswith(path.suffix)
        middle = entry.name[len(path.stem) : len(entry.name) - len(path.suffix)] if path.suffix and inside else ""
        if not (_ROTATED.fullmatch(after) or _ROTATED.fullmatch(middle)):
            continue
        try:
            file = OpenFile(entry) if stat.S_ISREG(entry.stat().st_mode) else None
        except OSError:
            continue
        if file is not None:
            yield file


def _said(path: Path, error: OSError) -> str:
    return f"{path}: {os.strerror(error.errno or 0)}"
