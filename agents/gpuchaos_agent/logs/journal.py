"""The journal as journalctl gives it: `-o json` (a line a record) and `-o export` (fields, some of them binary).

Fields that begin with `_` are journald's own word and cannot be forged by who writes to it. It reads
/dev/kmsg itself: `_TRANSPORT=kernel`, with SYSLOG_FACILITY 0 where the kernel spoke, and 1 or more where a process
had written there. Of such a text it takes off what looks like a tag, into SYSLOG_IDENTIFIER (systemd
journald-kmsg.c); that may be the first of the driver's words (`NVRM: `), so it is put back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from gpuchaos_agent.logs import literals, losses
from gpuchaos_agent.logs.lines import LineFramer
from gpuchaos_agent.logs.record import LogRecord, Writer

#: Longest field that journald takes (DATA_SIZE_MAX in its journald-native.c), bytes.
_MOST: Final = 768 * 1024 * 1024
_CURSOR: Final = re.compile(rb'"__CURSOR"\s{0,4}:\s{0,4}"([^"\\]{1,300})"')
#: Fields that are kept, by the name under which a record's tags have them.
_TAGS: Final = {
    "_KERNEL_DEVICE": "DEVICE",
    "_KERNEL_SUBSYSTEM": "SUBSYSTEM",
    "__CURSOR": "__CURSOR",
    "_BOOT_ID": "_BOOT_ID",
    "_SYSTEMD_UNIT": "_SYSTEMD_UNIT",
}
_READ: Final = frozenset(
    {
        *_TAGS,
        "MESSAGE",
        "PRIORITY",
        "SYSLOG_FACILITY",
        "SYSLOG_IDENTIFIER",
        "SYSLOG_PID",
        "_COMM",
        "_HOSTNAME",
        "_PID",
        "_SOURCE_MONOTONIC_TIMESTAMP",
        "_TRANSPORT",
        "__MONOTONIC_TIMESTAMP",
        "__REALTIME_TIMESTAMP",
    }
)


class JournalFramer(LineFramer):
    """Cuts `journalctl -o json` into records. A text that is no UTF-8 comes as an array of bytes there."""

    LONGEST: ClassVar[int] = 512 * 1024

    def __init__(self, hints: Iterable[str] | None = None) -> None:
        super().__init__(None if hints is None else (*hints, *_HIDING))

    @property
    def cursor(self) -> str | None:
        """The cursor of the last record, made or skipped; None before the first."""
        found = _CURSOR.search(self._passed)
        return found[1].decode() if found else None

    @staticmethod
    def _written(hint: str) -> bytes:
        # journalctl writes non-ASCII as UTF-8, and of ASCII escapes what JSON asks for.
        return hint.encode() if hint in _HIDING else json.dumps(hint, ensure_ascii=False)[1:-1].encode()

    def _record(self, lines: Sequence[bytes]) -> LogRecord | None:
        self._passed = lines[0]
        try:
            found = json.loads(lines[0])
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.bad += 1
            return None
        return _record({name: _text(value) for name, value in found.items() if name in _READ})


#: What hides a text from hints: an array of numbers, and a tag that was taken off. Such entries are always read.
_HIDING: Final = frozenset(
    f'"{name}"{colon}{begin}'
    for colon in (":", ": ", " : ")
    for name, begin in (("MESSAGE", "["), *(("SYSLOG_FACILITY", f'"{digit}') for digit in range(1, 10)))
)


class ExportFramer:
    """Cuts `journalctl -o export` into records: `NAME=value` lines, or `NAME`, a length of 8 bytes (little-endian) and
    so many bytes; an empty line ends a record. Counts as `LineFramer` does.
    """

    #: A longer field is left out, bytes.
    LONGEST: Final = 64 * 1024

    def __init__(self, hints: Iterable[str] | None = None) -> None:
        self.bad = 0
        self.lost = 0
        self.suppressed = 0
        self.skipped = 0
        self._wanted = None if hints is None else re.compile(literals.any_of((*hints, *losses.LOSSES)))
        self._rest = b""
        self._dropping = False  # a line without an end
        self._skip = 0  # bytes of a field that is left out
        self._fields: dict[str, str] = {}

    def feed(self, data: bytes) -> list[LogRecord]:
        """The records that `data` completes."""
        done: list[LogRecord] = []
        data = self._rest + data if self._rest else data
        at: int | None = 0
        while at is not None:
            start = at
            at = self._field(data, start, done)
        self._rest = data[start:]
        return done

    def flush(self) -> list[LogRecord]:
        """The record that stands open."""
        done: list[LogRecord] = []
        line, self._rest, self._skip, self._dropping = self._rest, b"", 0, False
        if line and b"=" in line:
            self._keep(*line.split(b"=", 1))
        self._end(done)
        return done

    def _field(self, data: bytes, at: int, done: list[LogRecord]) -> int | None:
        """Takes one field, or a record's end; where the next begins, None where that is not there yet."""
        if self._skip:
            step = min(self._skip, len(data) - at)
            self._skip -= step
            return at + step if step else None
        end = data.find(b"\n", at, at + self.LONGEST + 1)
        if end < 0:
            if len(data) - at <= self.LONGEST:
                return None
            self.bad += not self._dropping
            self._dropping, self._skip = True, self.LONGEST
            return at
        line = data[at:end]
        if self._dropping:
            self._dropping = False
        elif not line:
            self._end(done)
        elif b"=" in line:
            self._keep(*line.split(b"=", 1))
        else:
            return self._binary(line, data, end + 1)
        return end + 1

    def _binary(self, name: bytes, data: bytes, at: int) -> int | None:
        if len(data) < at + 8:
            return None
        size = int.from_bytes(data[at : at + 8], "little")
        if size > _MOST:  # no field at all: go on with the next line
            self.bad += 1
            return at
        if size > self.LONGEST:
            self.bad += 1
            self._skip = size + 1
            return at + 8
        if len(data) < at + 8 + size + 1:
            return None
        self._keep(name, data[at + 8 : at + 8 + size])
        return at + 8 + size + 1

    def _keep(self, name: bytes, value: bytes) -> None:
        text = name.decode("utf-8", "replace")
        if text in _READ and text not in self._fields:
            self._fields[text] = value.decode("utf-8", "replace")

    def _end(self, done: list[LogRecord]) -> None:
        fields, self._fields = self._fields, {}
        if not fields:
            return
        tagged = fields.get("SYSLOG_FACILITY", "0") != "0"
        if self._wanted is not None and not tagged and self._wanted.search(fields.get("MESSAGE", "")) is None:
            self.skipped += 1
            return
        record = _record(fields)
        if record is None:
            return
        if record.writer is not Writer.INJECTED:
            lost = losses.lost_in(record.text)
            self.lost += lost
            self.suppressed += lost
        done.append(record)


def _text(value: Any) -> str:
    """A field's text: a string, bytes as an array of numbers, the first of several values; empty for null."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        if all(type(byte) is int and 0 <= byte < 256 for byte in value):
            return bytes(value).decode("utf-8", "replace")
        return _text(value[0]) if not isinstance(value[0], list) or _is_bytes(value[0]) else ""
    return ""


def _is_bytes(value: list[Any]) -> bool:
    return all(type(byte) is int and 0 <= byte < 256 for byte in value)


def _record(fields: dict[str, str]) -> LogRecord | None:
    """The record of an entry; None for one without a text, of which journals have many."""
    text = fields.get("MESSAGE")
    if not text:
        return None
    facility = _number(fields.get("SYSLOG_FACILITY"))
    tag = fields.get("SYSLOG_IDENTIFIER") or fields.get("_COMM") or ""
    writer = Writer.PROGRAM
    if fields.get("_TRANSPORT") == "kernel":
        # Before systemd 219 the kernel's own records had no facility, but always this tag.
        spoke = facility == 0 if facility is not None else tag == "kernel"
        writer = Writer.KERNEL if spoke else Writer.INJECTED
    pid = _number(fields.get("SYSLOG_PID") or fields.get("_PID"))
    if writer is Writer.INJECTED and fields.get("SYSLOG_IDENTIFIER"):
        text = f"{tag}: {text}" if pid is None else f"{tag}[{pid}]: {text}"
    usec = _number(fields.get("_SOURCE_MONOTONIC_TIMESTAMP")) if writer is not Writer.PROGRAM else None
    return LogRecord(
        text=text,
        writer=writer,
        time=_time(fields, usec),
        usec=usec,
        facility=facility,
        level=_number(fields.get("PRIORITY")),
        tag=tag,
        pid=pid,
        host=fields.get("_HOSTNAME", ""),
        tags={ours: fields[name] for name, ours in _TAGS.items() if name in fields},
    )


def _time(fields: dict[str, str], usec: int | None) -> float | None:
    """When it was said, seconds. journald stamps when it reads, which is late at boot and in a flood."""
    real, read = _number(fields.get("__REALTIME_TIMESTAMP")), _number(fields.get("__MONOTONIC_TIMESTAMP"))
    if real is None:
        return None
    late = read - usec if usec is not None and read is not None and 0 <= usec <= read else 0
    return (real - late) / 1e6


def _number(value: str | None) -> int | None:
    return int(value) if value and len(value) <= 20 and value.isascii() and value.isdigit() else None
