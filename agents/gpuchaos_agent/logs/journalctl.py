"""The kernel's records of the journal, followed by a child `journalctl --follow` that goes on after a cursor.

For where /dev/kmsg is closed to us. journald reads it as we would; what it missed itself it says in a record of
its own, which is asked for as well. The child ends when we do: it watches the pipe that it writes to.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpuchaos_agent.logs import losses
from gpuchaos_agent.logs.journal import JournalFramer
from gpuchaos_agent.logs.kernel_source import Info, Sourced, keep, kept
from gpuchaos_agent.logs.record import Writer

#: Where journald keeps its files.
FOLDERS: Final = (Path("/run/log/journal"), Path("/var/log/journal"))
#: Read at most this much in one call, bytes; a kernel record is about 600 bytes of JSON.
PER_CALL: Final = 1024 * 1024
#: A child that ends is begun again after so many seconds, then twice that, up to the longest.
FIRST_AGAIN_S: Final = 1.0
LONGEST_AGAIN_S: Final = 60.0

_CHUNK: Final = 64 * 1024
#: SD_MESSAGE_JOURNAL_MISSED of systemd's sd-messages.h: "Missed N kernel messages".
_MISSED: Final = "MESSAGE_ID=e9bf28e6e834481bb6f48f548ad13606"
#: When an entry was written, microseconds in hexadecimal.
_WRITTEN: Final = re.compile(r"(?:\A|;)t=([0-9a-f]{1,16})(?:;|\Z)")


class JournalSource:
    """Follows the journal. `state` is the file that keeps the cursor, None to keep nothing.

    The first start ever begins at the journal's end (`from_start`: with this boot); a later one behind the last
    saved cursor, the end of an earlier boot included. `command` is journalctl with what it is to be told besides;
    `folders` are looked at for journal files before it is started, since without any it waits in silence.
    """

    name = "journal"
    behind = False  # the pipe says so

    def __init__(
        self,
        *,
        hints: Iterable[str] | None = None,
        state: Path | None = None,
        from_start: bool = False,
        command: Sequence[str] = ("journalctl",),
        folders: Sequence[Path] = FOLDERS,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.problem = ""
        self._command = tuple(command)
        self._folders = tuple(folders)
        self._state = state
        self._from_start = from_start
        self._monotonic = monotonic
        self._wall = wall
        self._hints = None if hints is None else tuple(hints)
        self._framer = JournalFramer(self._hints)
        cursor = kept(state).get("cursor")
        self._cursor = self._saved = cursor if isinstance(cursor, str) and cursor else None
        self._child: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._spoke = False
        self._not_before = 0.0
        self._again_at = float("-inf")
        self._again_s = FIRST_AGAIN_S
        self._missed = 0

    def open(self) -> bool:
        """Whether a child is at work; begins one if it is time to."""
        if self._child is not None:
            return True
        if self._monotonic() < self._again_at:
            return False
        try:
            if shutil.which(self._command[0]) is None:
                self.problem = f"{self._command[0]} is not there"
            elif not _readable(self._folders):
                self.problem = f"no journal that can be read in {' or '.join(map(str, self._folders))}"
            else:
                self._begin()
                return True
        except OSError as error:
            self.problem = f"{self._command[0]}: {os.strerror(error.errno or 0)}"
        self._later()
        return False

    def fileno(self) -> int | None:
        """The pipe's reading end while a child is at work."""
        return None if self._child is None or self._child.stdout is None else self._child.stdout.fileno()

    def records(self, now: float) -> list[Sourced]:
        """What the child has written since."""
        child = self._child
        if child is None or child.stdout is None:
            return []
        found = []
        left, ended = PER_CALL, False
        while left > 0 and not ended:
            try:
                data = os.read(child.stdout.fileno(), min(_CHUNK, left))
            except BlockingIOError:
                break
            left -= len(data)
            ended = not data
            found += self._framer.feed(data)
        found += self._framer.settle()
        cursor = self._framer.cursor
        if cursor is not None and cursor != self._cursor:
            self._cursor = cursor
            self._spoke, self._again_s = True, FIRST_AGAIN_S
        self._listen()
        if ended:
            self._ended(child)
        sourced = []
        for record in found:
            cursor = record.tags.get("__CURSOR", "")
            if _written(cursor) < self._not_before:
                continue
            when = now if record.time is None else min(record.time, now)
            lost = losses.lost_in(record.text) if record.writer is Writer.PROGRAM else 0
            self._missed += lost
            sourced.append(Sourced(f"journal/{cursor}", replace(record, time=when), lost))
        return sourced

    def info(self) -> Info:
        """Cursor, and what was left out."""
        return {
            "cursor": self._cursor or "",
            "lost": self._missed,
            "suppressed": self._framer.suppressed - self._missed,
            "skipped": self._framer.skipped,
            "unreadable": self._framer.bad,
        }

    def save(self) -> None:
        """Keeps the cursor."""
        if self._state is not None and self._cursor is not None and self._cursor != self._saved:
            keep(self._state, {"cursor": self._cursor})
            self._saved = self._cursor

    def close(self) -> None:
        """Ends the child; it has nothing to put in order."""
        if self._child is not None:
            self._reap(self._child)

    def _begin(self) -> None:
        command = [*self._command, "--follow", "--output=json", "--all", "--no-pager", "--quiet"]
        self._not_before = 0.0
        if self._cursor is not None:
            command += [f"--after-cursor={self._cursor}", "--no-tail"]
        elif self._from_start:
            command += ["--boot", "--no-tail"]
        else:
            # The last record there is tells where we are; it is of the past.
            command += ["--lines=1"]
            self._not_before = self._wall()
        command += ["_TRANSPORT=kernel", "+", "_TRANSPORT=driver", _MISSED]
        self._child = child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        self._said, self._spoke, self.problem = b"", False, ""
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)

    def _listen(self) -> None:
        """Takes what the child complains of, so that it never waits for a reader; the last of it is kept."""
        if self._child is None or self._child.stderr is None:
            return
        with contextlib.suppress(OSError):
            while data := os.read(self._child.stderr.fileno(), _CHUNK):
                self._said = (self._said + data)[-400:]

    def _ended(self, child: subprocess.Popen[bytes]) -> None:
        self._reap(child)
        why = self._said.decode("utf-8", "replace").strip()
        self.problem = f"journalctl ended ({child.returncode}){': ' if why else ''}{why}"
        if not self._spoke and self._cursor is not None and "cursor" in why.lower():
            # No such place in this journal any more: this boot again, under the keys that it had.
            self._cursor, self._from_start = None, True
        self._later()

    def _reap(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        child.wait()
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        self._child = None
        self._framer.flush()  # half a line of a child that is gone

    def _later(self) -> None:
        self._again_at = self._monotonic() + self._again_s
        self._again_s = min(2 * self._again_s, LONGEST_AGAIN_S)


def _readable(folders: Sequence[Path]) -> bool:
    """Whether there is a journal file that we may read."""
    return any(os.access(file, os.R_OK) for folder in folders for file in folder.glob("*/*.journal"))


def _written(cursor: str) -> float:
    """When journald wrote the entry, seconds since the epoch; infinity where the cursor does not say."""
    found = _WRITTEN.search(cursor)
    return int(found[1], 16) / 1e6 if found else float("inf")
