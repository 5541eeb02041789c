"""A program's own log as records: containers' wrapping off, the time where the line tells it with its zone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from gpuchaos_agent.logs import literals, stamps
from gpuchaos_agent.logs.container import Unwrapped, Unwrapper
from gpuchaos_agent.logs.record import LogRecord, Writer

#: Longest line that is kept while it is not complete, bytes.
LONGEST_LINE: Final = 96 * 1024

_ENDS: Final = re.compile(rb"[\r\n]")
#: What stands in every line that a container's runtime wrapped: Docker's beginning, CRI's streams.
_WRAPPED: Final = re.compile(rb'\{"log":| stdout | stderr ')
#: The end of a text in Docker's wrapping, where it is no piece of a longer one.
_DOCKER_WHOLE: Final = re.compile(rb'(?<!\\)\\n"')
#: Beginning of CRI's wrapping: stamp, stream and mark lie in it, bytes.
_CRI_HEAD: Final = 64
#: A stamp without a zone is nobody's time: containers run in UTC, their nodes often do not.
_ISO: Final = re.compile(r"\W{0,2}(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(Z| UTC|[+-]\d\d:?\d\d)")
_JSON: Final = re.compile(r'"(?:ts|time|timestamp|@timestamp)": ?"?(\d[0-9T:.+Z -]{8,40})')
_RDKAFKA: Final = re.compile(r"%\d\|(\d{9,11}\.\d{1,6})\|")


class Application:
    """A `Framer` (`record.py`) of a program's log. Lines of over `LONGEST_LINE` are cut and counted in `bad`.

    `hints` are literals of which a text must hold one to be of interest: of lines without any `feed` makes no
    records. None makes all.
    """

    def __init__(self, tag: str = "", hints: Iterable[str] | None = None) -> None:
        self.bad = 0
        self.lost = 0
        self._tag = tag
        self._wanted = None if hints is None else literals.any_bytes(_written(hints))
        self._unwrapper = Unwrapper()
        self._rest = b""
        self._dropping = False

    def feed(self, data: bytes) -> list[LogRecord]:
        """The records that `data` completes."""
        lines = _ENDS.split(self._with_hints(self._rest + data))
        self._rest = lines.pop()
        if self._dropping and lines:
            lines[0], self._dropping = b"", False
        if self._dropping:
            self._rest = b""
        elif len(self._rest) > LONGEST_LINE:
            lines.append(self._rest[:LONGEST_LINE])
            self._rest, self._dropping = b"", True
            self.bad += 1
        return [record for line in lines if line and not self._idle(line) and (record := self.take(line)) is not None]

    def _with_hints(self, data: bytes) -> bytes:
        """The lines that hold a hint, and the last one; all where some may be wrapped."""
        end = data.rfind(b"\n") + 1
        waits = self._dropping or self._unwrapper.waiting
        if self._wanted is None or waits or not end or _WRAPPED.search(data) is not None:
            return data
        kept, at = [], 0
        while (hit := self._wanted.search(data, at, end)) is not None:
            begin, at = data.rfind(b"\n", 0, hit.start()) + 1, data.index(b"\n", hit.end()) + 1
            kept.append(data[begin:at])
        return b"".join((*kept, data[end:]))

    def _idle(self, line: bytes) -> bool:
        """Whether the line is whole by itself, wrapped or not, and holds no hint."""
        if self._wanted is None or self._unwrapper.waiting or self._wanted.search(line) is not None:
            return False
        if line.startswith(b'{"log":'):
            return _DOCKER_WHOLE.search(line) is not None
        return b" P" not in line[:_CRI_HEAD]

    def flush(self) -> list[LogRecord]:
        """The last line, if it has no end, and what a container's pieces left open."""
        rest, self._rest = self._rest, b""
        last = self.take(rest) if rest else None
        return [*([last] if last else []), *map(self._record, self._unwrapper.flush())]

    def take(self, line: bytes, key: str = "") -> LogRecord | None:
        """The record of one line; None where it is a piece of a longer one. Its `key` stands in `tags`."""
        whole = self._unwrapper.feed(line[:LONGEST_LINE], key)
        return None if whole is None else self._record(whole)

    def plain(self, line: bytes) -> bool:
        """Whether the line is a whole record by itself, so that it can be searched as it is."""
        return not self._unwrapper.waiting and not Unwrapper.wrapped(line)

    def _record(self, whole: Unwrapped) -> LogRecord:
        time = told(whole.text) if whole.time is None else whole.time
        tags = {"key": whole.key} if whole.key else {}
        return LogRecord(whole.text, writer=Writer.PROGRAM, time=time, tag=self._tag, tags=tags)


def _written(hints: Iterable[str]) -> frozenset[bytes]:
    """The hints as they stand in a text, and as they stand in Docker's JSON, which escapes HTML's letters as well."""
    written = set()
    for hint in hints:
        quoted = json.dumps(hint, ensure_ascii=False)[1:-1]
        for letter in "<>&":
            quoted = quoted.replace(letter, f"\\u{ord(letter):04x}")
        written |= {hint.encode(), quoted.encode()}
    return frozenset(written)


def told(text: str) -> float | None:
    """Seconds since the epoch, where the line begins with a stamp that has a zone, or holds one by name."""
    found = _ISO.match(text)
    if found is not None:
        return stamps.iso(found[1] + ("+00:00" if found[2] == " UTC" else found[2]))
    kafka = _RDKAFKA.match(text)
    if kafka is not None:
        return float(kafka[1])
    if text.startswith("{"):
        named = _JSON.search(text, 0, 2048)
        return None if named is None else _number_or_iso(named[1])
    return None


def _number_or_iso(text: str) -> float | None:
    if re.fullmatch(r"\d{9,10}(?:\.\d{1,9})?", text):
        return float(text)
    if re.fullmatch(r"\d{13}", text):
        return int(text) / 1000
    return stamps.iso(text.strip(), None) if re.search(r"(?:Z|[+-]\d\d:?\d\d)\Z", text.strip()) else None


def records(lines: Iterable[bytes], framer: Application | None = None) -> list[LogRecord]:
    """The records of whole lines."""
    framer = framer or Application()
    return [record for line in lines if line and (record := framer.take(line)) is not None]
