"""MD arrays: members that fail, arrays that cannot go on, arrays assembled without all their members.

Wordings: Linux `drivers/md/{md,raid0,raid1,raid5,raid10,linear}.c`. raid0 and linear write no colon between level
and array (`md/raid0md0:`, 5.4 and later). raid1, 5 and 10 say in a second line with how many devices they go on.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import NONE, Family, Finding, Part
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("md/", "md: ")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
FAMILIES: Final = (Family("raid", gap_s=10.0),)

_AT: Final = r"md/(?P<level>raid10|raid0|raid1|raid|linear):?(?P<device>md[\w-]{1,30}): "
_MEMBER: Final = r"(?P<member>[\w!/-]{1,32})"

RULES: Final = (
    Rule(
        re.compile(_AT + rf"Disk failure on {_MEMBER} detected, failing array\."),
        "raid_failed",
        Severity.CRITICAL,
        "replace_disk",
        "5.4 (raid0), 5.5 (linear)",
        "raid",
    ),
    Rule(
        re.compile(_AT + rf"Disk failure on {_MEMBER}, disabling device\."),
        "raid_failed",
        Severity.ERROR,
        "replace_disk",
        "2.6",
        "raid",
    ),
    Rule(
        re.compile(_AT + r"(?P<cause>Cannot continue operation) \(\d{1,4}/\d{1,4} failed\)"),
        "raid_failed",
        Severity.CRITICAL,
        "replace_disk",
        "4.20",
        "raid",
    ),
    Rule(
        re.compile(_AT + r"Operation continuing on (?P<count>\d{1,4}) devices"),
        NONE,
        since="2.6, a record of its own where a log splits lines",
        family="raid",
        part=Part.DETAIL,
    ),
    Rule(
        re.compile(_AT + rf"{_MEMBER}: (?P<cause>unrecoverable I/O read error) for block \d"),
        "raid_failed",
        Severity.ERROR,
        "replace_disk",
        "2.6 (raid1, raid10)",
        "raid",
    ),
    Rule(
        re.compile(
            _AT + r"(?:raid level \d{1,2} )?active with (?P<has>\d{1,4}) out of (?!(?P=has)\b)(?P<wants>\d{1,4}) "
        ),
        "raid_failed",
        Severity.WARNING,
        "replace_disk",
        "2.6",
        "raid",
        says={"cause": "degraded"},
    ),
    Rule(
        re.compile(rf"md: (?P<cause>kicking non-fresh) {_MEMBER} from array!"),
        "raid_failed",
        Severity.ERROR,
        "replace_disk",
        "2.6",
        "raid",
    ),
)


def read(record: LogRecord) -> Finding | None:
    """A failed or degraded array: `device` is the array, `member` the disk. `count` is how many go on."""
    return table.read(RULES, record.text)
