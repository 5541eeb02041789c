"""What dmesg prints of the kernel log, in every way it can be asked to, and serial consoles.

- `[ 8123.617543] text` (also `-d`: `[ 8123.617543 <    0.000004>] `), `[Fri Jul  4 10:29:39 2025] text` (`-T`: off by
  the time that the machine slept), `2024-01-02T03:04:05,678901+00:00 text`, `[Nov30 10:45] text` and
  `[  +0.000012] text` (`-H`, no time taken), or no stamp at all (`-t`, and what people paste)
- before it `kern  :warn  : ` (`-x`) or `<4>` (`-r`): only these tell a process's record from the kernel's
- behind it the caller, `[ T1946]` a task or `[    C3]` a CPU (CONFIG_PRINTK_CALLER)
- then perhaps `host kernel: `, where a daemon's log was cut or `journalctl -o short-monotonic` was asked
- a printk of several lines: those after the first are padded by blanks to where its text begins
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, tzinfo
from typing import Final

from gpuchaos_agent.logs import repeats, stamps
from gpuchaos_agent.logs.lines import LineFramer
from gpuchaos_agent.logs.record import LogRecord, Writer

#: Names of util-linux `dmesg -x`, by number (sys-utils/dmesg.c: `facility_names`, `level_names`).
_FACILITIES: Final = (
    "kern",
    "user",
    "mail",
    "daemon",
    "auth",
    "syslog",
    "lpr",
    "news",
    "uucp",
    "cron",
    "authpriv",
    "ftp",
)
_LEVELS: Final = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")

_HEAD: Final = re.compile(
    rf"(?:<(?P<prefix>\d{{1,3}})>"
    rf"|(?P<facility>{'|'.join(_FACILITIES)}|local[0-7]) {{0,8}}:(?P<level>{'|'.join(_LEVELS)}) {{0,8}}: ?)?"
    r"(?:"
    r"\[ {0,12}(?P<seconds>\d{1,12})\.(?P<micro>\d{6})(?: <[ \d.+-]{1,24}>)?\] ?"
    r"|\[(?P<human>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ?"
    r"|(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]\d{1,9}(?:Z|[+-]\d\d:?\d\d)) "
    r"|\[[^\[\]]{1,40} \d\d:\d\d(?::\d\d)?(?: [^\[\]]{0,16})?\] ?"
    r"|\[ {0,12}\+\d{1,10}\.\d{6}\] ?"
    r")?"
    r"(?:\[ {0,12}[TC]\d{1,10}\] ?)?"
    r"(?:(?:(?P<host>[^\s\[\]]{0,254}[^\s\[\]:]) )?kernel: ?"
    r"|(?P<other_host>[^\s\[\]]{0,254}[^\s\[\]:]) (?P<tag>[^\s:\[\]]{1,64})\[(?P<pid>\d{1,10})\]: ?)?"
)
#: What a stamped line begins with, blanks aside: such a line continues nothing.
_STAMPED: Final = re.compile(
    rb"[ \t]{1,64}(?:<\d{1,3}>|\[ {0,12}\+?\d{1,12}\.\d{6}|\[[^\[\]]{1,40} \d\d:\d\d|\d{4}-\d\d-\d\dT\d\d:)"
)


class DmesgFramer(LineFramer):
    """Cuts dmesg's output into records. Any line is one, so nothing but a line that is too long is `bad`.

    `zone` is that of times without one (`-T`), None for this machine's.
    """

    def __init__(self, hints: Iterable[str] | None = None, *, zone: tzinfo | None = UTC) -> None:
        super().__init__(hints)
        self._zone = zone

    def _continues(self, line: bytes) -> bool:
        """Further in than the first line, and no stamp of its own."""
        return bool(self._group) and _indent(line) > _indent(self._group[0]) and _STAMPED.match(line) is None

    def _record(self, lines: Sequence[bytes]) -> LogRecord | None:
        first = lines[0].decode("utf-8", "replace").strip("\r\t ")
        head = _HEAD.match(first)
        if head is None:  # every part of it may be missing
            return None
        width = head.end() + _indent(lines[0])
        text = "\n".join((first[head.end() :], *(_unpadded(line, width) for line in lines[1:])))
        facility, level = _priority(head)
        text, repeated = repeats.unwrapped(text)
        writer = Writer.INJECTED if facility else Writer.KERNEL
        if head["tag"]:
            writer = Writer.PROGRAM
        return LogRecord(
            text=text,
            writer=writer,
            time=self._time(head),
            usec=int(head["seconds"]) * 1_000_000 + int(head["micro"]) if head["seconds"] else None,
            facility=facility,
            level=level,
            tag=head["tag"] or "",
            pid=int(head["pid"]) if head["pid"] else None,
            host=head["host"] or head["other_host"] or "",
            repeated=repeated,
        )

    def _time(self, head: re.Match[str]) -> float | None:
        if head["iso"]:
            return stamps.iso(head["iso"], self._zone)
        return stamps.human(head["human"], self._zone) if head["human"] else None


def _indent(line: bytes) -> int:
    return len(line) - len(line.lstrip(b" \t"))


def _unpadded(line: bytes, width: int) -> str:
    """A later line of a printk without the blanks that stand for the stamp above it."""
    return line[min(width, _indent(line)) :].decode("utf-8", "replace")


def _priority(head: re.Match[str]) -> tuple[int | None, int | None]:
    if head["prefix"]:
        return int(head["prefix"]) >> 3, int(head["prefix"]) & 7
    name = head["facility"]
    if not name:
        return None, None
    if name.startswith("local") and name[5:].isdigit():
        facility: int | None = 16 + int(name[5:])
    else:
        facility = _FACILITIES.index(name) if name in _FACILITIES else None
    return facility, _LEVELS.index(head["level"]) if head["level"] in _LEVELS else None
