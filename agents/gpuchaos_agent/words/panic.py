"""The kernel in trouble with itself: panics and oopses. Many lines, one event.

Wordings: Linux `kernel/panic.c`, `arch/x86/mm/fault.c`, `arch/x86/kernel/{dumpstack,traps}.c`,
`arch/arm64/{mm/fault,kernel/traps}.c`, 4.14 to 6.14. What follows the first line (registers, stack) names no
other fault.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import NONE, Family, Finding, Part
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = (
    *("Kernel panic - not syncing: ", "BUG: unable to handle ", "BUG: kernel NULL pointer", "kernel BUG at "),
    *("Unable to handle kernel ", "Oops: ", "general protection fault", "CPU: "),
)
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
FAMILIES: Final = (Family("kernel_oops", gap_s=5.0, any_device=True),)

_OOPS: Final = ("kernel_oops", Severity.CRITICAL, "reboot_node")

RULES: Final = (
    Rule(
        re.compile(r"Kernel panic - not syncing: (?P<cause>[^\n]{1,120})"),
        "kernel_panic",
        Severity.CRITICAL,
        "reboot_node",
        "2.6",
        "kernel_oops",
    ),
    Rule(
        re.compile(
            r"BUG: (?P<cause>unable to handle (?:kernel|page fault)[^\n]{1,60}|kernel NULL pointer dereference)"
        ),
        *_OOPS,
        "`page fault`, `kernel NULL pointer` 5.1",
        "kernel_oops",
    ),
    Rule(re.compile(r"(?P<cause>kernel BUG at [^\s!]{1,120})!"), *_OOPS, "2.6", "kernel_oops"),
    Rule(
        re.compile(r"(?P<cause>Unable to handle kernel (?:NULL pointer dereference|paging request|access)[^\n]{0,40})"),
        *_OOPS,
        "3.7 (arm64)",
        "kernel_oops",
    ),
    Rule(
        re.compile(r"(?P<cause>(?:Internal error: )?Oops(?: - [\w ]{1,40})?): [^\n]{0,24}\[#\d{1,6}\]"),
        *_OOPS,
        "2.6",
        "kernel_oops",
    ),
    Rule(
        re.compile(r"(?:Oops: )?(?P<cause>general protection fault)[^\n\[]{0,100}: [0-9a-f]{4} \[#\d{1,6}\]"),
        *_OOPS,
        "2.6; `Oops: ` 6.9",
        "kernel_oops",
    ),
    Rule(
        re.compile(
            r"CPU: (?P<cpu>\d{1,5}) (?:UID: \d{1,10} )?PID: (?P<pid>\d{1,10}) "
            r"Comm: (?P<comm>.{1,64}?) (?:Not t|T)ainted"
        ),
        NONE,
        since="3.x; `UID` 6.12",
        family="kernel_oops",
        part=Part.DETAIL,
    ),
)


def read(record: LogRecord) -> Finding | None:
    """A panic or an oops, with what ran on that CPU; which device a panic names is for others to say."""
    return table.read(RULES, record.text)
