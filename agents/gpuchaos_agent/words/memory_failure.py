"""Pages that the kernel takes out of use after an uncorrected memory error (hwpoison), and whom it kills.

Wordings: Linux `mm/memory-failure.c`: `MCE 0x…: Killing …` to 4.18, `Memory failure: 0x…: ` since. Several
lines of one page are one event. Soft offlining (after corrected errors) moves the page and hurts nobody.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import Family, Finding
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("Memory failure: 0x", "MCE 0x", "hardware memory corruption")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
FAMILIES: Final = (Family("memory_failure", gap_s=5.0),)

_PAGE: Final = r"(?:Memory failure:|MCE|Memory error may not recovered:) (?P<device>0x[0-9a-f]{1,16}): "

RULES: Final = (
    Rule(
        re.compile(
            r"MCE: (?P<cause>Killing) (?P<victim>.{1,64}):(?P<pid>\d{1,10}) due to hardware memory corruption fault"
        ),
        "mem_ue",
        Severity.ERROR,
        "replace_dimm",
        "2.6.32 (a page that was poisoned before is touched)",
        "memory_failure",
    ),
    Rule(
        re.compile(
            _PAGE + r"(?P<cause>Sending SIGBUS to|Killing|forcibly killing) (?P<victim>.{1,64}):(?P<pid>\d{1,10}) "
            r"(?:(?:early )?due to hardware memory corruption|because of failure to unmap)"
        ),
        "mem_ue",
        Severity.ERROR,
        "replace_dimm",
        "2.6.32; `Sending SIGBUS` 5.0",
        "memory_failure",
    ),
    Rule(
        re.compile(
            _PAGE + r"recovery action for (?P<scope>[\w -]{1,64}): (?P<cause>Recovered|Ignored|Failed|Delayed)\b"
        ),
        "mem_ue",
        Severity.ERROR,
        "replace_dimm",
        "3.2",
        "memory_failure",
    ),
)


def read(record: LogRecord) -> Finding | None:
    """An uncorrected error of one page: `device` is the page frame, `victim` and `pid` who was told or killed."""
    return table.read(RULES, record.text)
