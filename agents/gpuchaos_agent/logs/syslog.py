"""Files of log daemons: RFC 3164 and 5424, rsyslog's ISO stamps, and `journalctl -o short*`.

`Feb  5 15:41:33 node-a kernel: [21584690.529862] text`; the host may be missing, the kernel's own stamp as well, and
where a line was cut out of its context (`kernel: text`, `node-a mcelog[22]: text`) the daemon's stamp. A line of
the tag `kernel` is the kernel's word as far as the daemon can tell: `logger -t kernel` looks the same in a file
without priorities, which is why the kernel log itself and the journal are believed first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import ClassVar, Final, NamedTuple

from gpuchaos_agent.logs import repeats, stamps
from gpuchaos_agent.logs.lines import LineFramer
from gpuchaos_agent.logs.record import LogRecord, Writer

_STAMP: Final = (
    r"(?:"
    r"(?P<bsd>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?P<bsd_fraction>\.\d{1,9})?"  # RFC 3164; short, short-precise
    r"|(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"  # rsyslog; short-iso
    r"|[A-Z][a-z]{2} (?P<full>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)(?: (?P<zone>[A-Z]{1,5}))?"  # short-full
    r"|(?P<unix>\d{9,11}\.\d{6})"  # short-unix
    r"|\[ {0,12}(?P<seconds>\d{1,12})\.(?P<micro>\d{6})(?: <[ \d.+-]{1,24}>)?\]"  # short-monotonic, short-delta
    r") {1,4}"
)
#: `dmesg -T` among a daemon's lines: people put both into one file.
_DMESG: Final = re.compile(r"\[(?P<human>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?")
_HOST: Final = r"(?P<host>[^\s\[\]]{0,254}[^\s\[\]:]) "
_TAG: Final = r"(?P<tag>[^\s:\[\]]{1,64})(?:\[(?P<pid>\d{1,10})\])?: ?"
_LINE: Final = re.compile(rf"(?:<(?P<prefix>\d{{1,3}})>)?{_STAMP}(?:{_HOST})?(?:{_TAG})?")
#: Without a stamp only what cannot be the beginning of a text is a tag.
_BARE: Final = re.compile(rf"(?:{_HOST})?(?P<tag>kernel|[^\s:\[\]]{{1,64}}(?=\[\d))(?:\[(?P<pid>\d{{1,10}})\])?: ?")
_RFC5424: Final = re.compile(
    r"(?:<(?P<prefix>\d{1,3})>)?1 (?P<iso>\d{4}-\d\d-\d\dT[\d:.+Z-]{8,32}|-) (?P<host>\S{1,255}) (?P<tag>\S{1,48})"
    r" (?P<pid>\S{1,128}) \S{1,32} "
)
#: What the kernel put before its text: its own stamp and who called.
_KERNEL: Final = re.compile(r"(?:\[ {0,12}(\d{1,12})\.(\d{6})\] ?)?(?:\[ {0,12}[TC]\d{1,10}\] ?)?")
#: rsyslog writes control characters as `#ooo` (octal).
_CONTROL: Final = re.compile(r"#(0[0-3][0-7])")
#: What journalctl puts between boots, and instead of nothing.
_RULES: Final = (b"-- ", b"-- Boot", b"-- Logs begin")


class SyslogFramer(LineFramer):
    """Cuts the file of a log daemon into records; a line that has neither stamp nor tag is `bad`.

    Some daemons leave tabs and line feeds as they are: a line that begins with a blank continues the one above.
    `reference` is a time at or after the last line's, seconds since the epoch: RFC 3164 has no year. `zone` is
    that of stamps without one, None for this machine's.
    """

    CONTINUES: ClassVar[frozenset[bytes]] = frozenset({b" ", b"\t"})

    def __init__(self, hints: Iterable[str] | None = None, *, reference: float, zone: tzinfo | None = UTC) -> None:
        super().__init__(None if hints is None else (*hints, "last message repeated"))
        self.reference = reference
        self._zone = zone
        self._last: LogRecord | None = None
        self._last_at = 0

    def _record(self, lines: Sequence[bytes]) -> LogRecord | None:
        line = lines[0].decode("utf-8", "replace").rstrip("\r")
        head = self._head(line)
        if head is None:
            if not lines[0].startswith(_RULES):
                self.bad += 1
            return None
        text, kernels = head.text, None
        if len(lines) > 1:
            text = "\n".join((text, *(more.decode("utf-8", "replace") for more in lines[1:])))
        if "#0" in text:
            text = _CONTROL.sub(lambda found: chr(int(found[1], 8)), text)
        again = repeats.of_the_last(text)
        if again is not None:
            return self._again(head.time, again)
        text, repeated = repeats.unwrapped(text)
        facility = head.prefix >> 3 if head.prefix is not None else None
        writer = Writer.PROGRAM
        if head.tag == "kernel":
            writer = Writer.INJECTED if facility else Writer.KERNEL
            kernels = _KERNEL.match(text)
        usec = head.usec
        if kernels is not None and kernels.end():
            text = text[kernels.end() :]
            usec = int(kernels[1]) * 1_000_000 + int(kernels[2]) if kernels[1] else usec
        self._last_at = self.skipped
        self._last = LogRecord(
            text=text,
            writer=writer,
            time=head.time,
            usec=usec,
            facility=facility,
            level=head.prefix & 7 if head.prefix is not None else None,
            tag=head.tag,
            pid=head.pid,
            host=head.host,
            repeated=repeated,
        )
        return self._last

    def _again(self, time: float | None, times: int) -> LogRecord | None:
        """The record before, if it was the line before and not one that was skipped."""
        last, self._last = self._last, None
        if last is None or self._last_at != self.skipped:
            return None
        return replace(last, time=last.time if time is None else time, repeated=times)

    def _head(self, line: str) -> _Head | None:
        found = _RFC5424.match(line)
        if found is not None:
            end = _structured(line, found.end())
            if end is not None:
                text = line[end:].removeprefix(" ").removeprefix("\ufeff")
                return _made(found, text, stamps.iso(found["iso"], self._zone), found["prefix"], None)
        found = _LINE.match(line)
        if found is not None:
            seconds = found["seconds"]
            usec = int(seconds) * 1_000_000 + int(found["micro"]) if seconds else None
            return _made(found, line[found.end() :], self._time(found), found["prefix"], usec)
        human = _DMESG.match(line)
        if human is not None:
            return _Head(line[human.end() :], stamps.human(human["human"], self._zone), None, None, "kernel", None, "")
        found = _BARE.match(line)
        return None if found is None else _made(found, line[found.end() :], None, None, None)

    def _time(self, found: re.Match[str]) -> float | None:
        if found["bsd"]:
            time = stamps.bsd(found["bsd"], self.reference, self._zone)
            return time if time is None or not found["bsd_fraction"] else time + float(found["bsd_fraction"])
        if found["iso"]:
            return stamps.iso(found["iso"], self._zone)
        if found["full"]:
            return stamps.iso(found["full"], UTC if found["zone"] == "UTC" else self._zone)
        return float(found["unix"]) if found["unix"] else None


class _Head(NamedTuple):
    """What stands before the text, and the text."""

    text: str
    time: float | None
    usec: int | None
    prefix: int | None
    tag: str
    pid: int | None
    host: str


def _made(found: re.Match[str], text: str, time: float | None, prefix: str | None, usec: int | None) -> _Head:
    tag, pid, host = found.group("tag", "pid", "host")
    return _Head(
        text=text,
        time=time,
        usec=usec,
        prefix=int(prefix) if prefix else None,
        tag="" if tag in {None, "-"} else tag,
        pid=int(pid) if pid and pid.isascii() and pid.isdigit() and len(pid) <= 10 else None,
        host="" if host in {None, "-"} else host,
    )


def _structured(line: str, at: int) -> int | None:
    """Where the structured data that begins at `at` ends: `-`, or `[id name="value"]…`; None if it does not."""
    if line.startswith("-", at):
        return at + 1
    begin, quoted = at, False
    while at < len(line):
        character = line[at]
        if character == "\\" and quoted:
            at += 1
        elif character == '"':
            quoted = not quoted
        elif character == "]" and not quoted and not line.startswith("[", at + 1):
            return at + 1 if line[begin] == "[" else None
        at += 1
    return None
