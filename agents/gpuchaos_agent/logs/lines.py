"""Lines to records: what all framings have in common whose records are lines."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from gpuchaos_agent.logs import literals, losses
from gpuchaos_agent.logs.record import LogRecord, Writer

#: Fewer bytes than these are taken line by line: less than a search through the whole would cost.
_FEW: Final = 4096
#: What no record begins with. A log that was open in a crash holds runs of NUL where nothing was written.
_BLANKS: Final = b" \t\r\n\0"
#: A line that begins with a blank, or is empty; and one that does not, with which a record ends in every framing.
_INDENTED: Final = re.compile(rb"\n[ \t\r\n\0]")
_HEADED: Final = re.compile(rb"\n[^ \t\r\n\0]")


class LineFramer(ABC):
    """Cuts bytes into records of one line and the lines that continue it.

    `hints` are literals of which a text must hold one to be of interest: records without any are not made, only
    counted in `skipped`; None makes every record. Whole stretches without any are passed over at once, and counted
    as if they had been read line by line. `bad` counts lines that are no records, or too long for one;
    `lost` records that the log says are missing, `suppressed` those of them that it names itself.
    """

    #: A longer line is no record, bytes; so much is kept of one that is incomplete.
    LONGEST: ClassVar[int] = 64 * 1024
    #: What the lines begin with that continue the one above.
    CONTINUES: ClassVar[frozenset[bytes]] = frozenset()

    def __init__(self, hints: Iterable[str] | None = None) -> None:
        self.bad = 0
        self.lost = 0
        self.suppressed = 0
        self.skipped = 0
        self._wanted = None
        if hints is not None:
            self._wanted = literals.any_bytes(self._written(hint) for hint in (*hints, *losses.LOSSES))
        self._passed = b""
        self._rest = b""
        self._dropping = False
        self._group: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[LogRecord]:
        """The records that `data` completes: each is complete when the next one begins."""
        done: list[LogRecord] = []
        if self._wanted is not None and len(data) > _FEW and not self._dropping:
            data = self._skim(self._rest + data, self._wanted, done)
            self._rest = b""
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        if lines and self._dropping:
            self._dropping = False
            del lines[0]
        for line in lines:
            self._line(line, done)
        if self._dropping:
            self._rest = b""
        elif len(self._rest) > self.LONGEST:
            self._drop(done)
            self._rest, self._dropping = b"", True
        return done

    def settle(self) -> list[LogRecord]:
        """The record that stands open, where no line will continue it; a line without an end is kept."""
        done: list[LogRecord] = []
        self._end(done)
        return done

    def flush(self) -> list[LogRecord]:
        """The record that stands open, with a last line that has no end."""
        done: list[LogRecord] = []
        if self._rest:
            self._line(self._rest, done)
        self._rest, self._dropping = b"", False
        self._end(done)
        return done

    def _skim(self, data: bytes, wanted: re.Pattern[bytes], done: list[LogRecord]) -> bytes:
        """Takes all records of `data` but the last, reading only those with a hint; returns what is left of it."""
        # Each line then has a line feed before it.
        data = b"\n" + data
        first = _HEADED.search(data)
        last = _last_head(data)
        if first is None or last <= first.start() + 1 or self._has_long_line(data):
            return data[1:]
        at = first.start() + 1
        self._lines(data[1:at], done)
        while at < last:
            hit = wanted.search(data, at, last)
            if hit is None:
                self._end(done)
                self._pass(data, at, last, done)
                break
            # A blank before a record's first line is none of its own: the record begins further up.
            begin = data.rfind(b"\n", 0, hit.start() + 1) + 1
            while begin > at and data[begin] in _BLANKS:
                begin = data.rfind(b"\n", 0, begin - 1) + 1
            if begin > at:
                self._end(done)
                self._pass(data, at, begin, done)
            next_ = _HEADED.search(data, hit.end(), last + 1)
            at = last if next_ is None else next_.start() + 1
            self._lines(data[begin:at], done)
        return data[last:]

    def _has_long_line(self, data: bytes) -> bool:
        at = 0
        while len(data) - at > self.LONGEST:
            found = data.rfind(b"\n", at + 1, at + self.LONGEST + 2)
            if found < 0:
                return True
            at = found
        return False

    def _lines(self, data: bytes, done: list[LogRecord]) -> None:
        """Whole lines, one by one."""
        for line in data.split(b"\n")[:-1]:
            self._line(line, done)

    def _pass(self, data: bytes, start: int, end: int, done: list[LogRecord]) -> None:
        """Passes over the records from `start` to `end`, none of which has a hint.

        The first line is not indented; before each stands a line feed.
        """
        while start < end:
            found = _INDENTED.search(data, start, end)
            if found is None:
                self._pass_lines(data, start, end)
                return
            begin = data.rfind(b"\n", 0, found.start()) + 1
            if begin > start:
                self._pass_lines(data, start, begin)
            next_ = _HEADED.search(data, found.start() + 1, end)
            start = end if next_ is None else next_.start() + 1
            self._lines(data[begin:start], done)
            self._end(done)

    def _pass_lines(self, data: bytes, start: int, end: int) -> None:
        """Passes over records of one line each."""
        self.skipped += data.count(b"\n", start, end)
        self._pass_over(data[data.rfind(b"\n", 0, end - 1) + 1 : end - 1])

    def _line(self, line: bytes, done: list[LogRecord]) -> None:
        if len(line) > self.LONGEST:
            self._drop(done)
            return
        if line[:1] == b"\0":
            line = line.lstrip(b"\0")
        if line[:1] in b" \t\r":  # true for an empty line as well
            line = line.rstrip(b"\r\t ")
            if not line:
                return
            if self._continues(line):
                self._join(line)
                return
        self._end(done)
        self._group.append(line)

    def _join(self, line: bytes) -> None:
        if not self._group:
            self.bad += 1
            return
        self._size += len(line)
        if self._size > self.LONGEST:
            self.bad += 1
        else:
            self._group.append(line)

    def _drop(self, done: list[LogRecord]) -> None:
        """A line that is too long: what follows it continues nothing."""
        self._end(done)
        self.bad += 1

    def _end(self, done: list[LogRecord]) -> None:
        group = self._group
        if not group:
            return
        self._group, self._size = [], 0
        if self._wanted is not None and not any(map(self._wanted.search, group)):
            self.skipped += 1
            self._pass_over(group[0])
            return
        record = self._record(group)
        if record is None:
            return
        if record.writer is not Writer.INJECTED:
            lost = losses.lost_in(record.text)
            self.lost += lost
            self.suppressed += lost
        done.append(record)

    @staticmethod
    def _written(hint: str) -> bytes:
        """A hint as it stands in this framing's bytes."""
        return hint.encode()

    def _pass_over(self, head: bytes) -> None:
        """Called with the first line of a record that is not made."""
        self._passed = head

    def _continues(self, line: bytes) -> bool:
        """Whether a line that begins with a blank belongs to the record in `_group`."""
        return line[:1] in self.CONTINUES

    @abstractmethod
    def _record(self, lines: Sequence[bytes]) -> LogRecord | None:
        """The record of a first line and those that continue it; None, counted in `bad`, where it is none."""


def _last_head(data: bytes) -> int:
    """Where the last whole line that is not indented begins; 0 where there is none."""
    at = data.rfind(b"\n")
    while at > 0:
        begin = data.rfind(b"\n", 0, at) + 1
        if data[begin] not in _BLANKS:
            return begin
        at = begin - 1
    return 0
