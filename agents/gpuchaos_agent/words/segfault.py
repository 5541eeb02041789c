"""Processes that the kernel ends for what they did: segmentation faults, traps.

    python3[4711]: segfault at 0 ip 00007f12… sp 00007ffd… error 4 in libnccl.so.2[7f12…+8c000]     (x86)
    traps: python3[4711] general protection fault ip:7f12… sp:7ffd… error:0 in libcuda.so.1[…]       (x86)
    python3[4711]: unhandled level 2 translation fault (11) at 0x00000000, esr 0x92000006, in …       (arm64)

Linux `arch/x86/mm/fault.c`, `arch/x86/kernel/traps.c`, `arch/arm64/kernel/traps.c`; x86 adds `likely on
CPU n` since 6.1.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import Family, Finding
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("segfault at ", "traps: ", "unhandled level ", "unhandled ")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
FAMILIES: Final = (Family("segfault", gap_s=5.0),)

_WHO: Final = r"(?P<name>.{1,64}?)\[(?P<pid>\d{1,10})\]:? "
_WHERE: Final = r"(?:[^\n]{0,200}? in (?P<path>[^\s\[\]]{1,128})\[)?"
_VERDICT: Final = ("app_segfault", Severity.ERROR, "restart_app")

RULES: Final = (
    Rule(
        re.compile(
            _WHO + r"segfault at [0-9a-f]{1,16} ip [0-9a-f]{1,16} sp [0-9a-f]{1,16} error [0-9a-f]{1,4}" + _WHERE
        ),
        *_VERDICT,
        "2.6; `likely on CPU` 6.1",
        "segfault",
        says={"scope": "app", "cause": "segfault"},
    ),
    Rule(
        re.compile(
            r"traps: " + _WHO + r"(?:trap )?(?P<cause>general protection(?: fault)?|invalid opcode|divide error|int3|"
            r"stack segment|overflow) ip:[0-9a-f]{1,16} sp:[0-9a-f]{1,16} error:[0-9a-f]{1,4}" + _WHERE
        ),
        *_VERDICT,
        "2.6.29",
        "segfault",
        says={"scope": "app"},
    ),
    Rule(
        re.compile(
            _WHO + r"unhandled (?P<cause>[a-z0-9 ,-]{1,60}?) \(\d{1,3}\) at 0x[0-9a-f]{1,16}, esr 0x[0-9a-f]{1,16}"
        ),
        *_VERDICT,
        "3.7 (arm64)",
        "segfault",
        says={"scope": "app"},
    ),
)


def read(record: LogRecord) -> Finding | None:
    """A process that the kernel ended: `name`, `pid` (the host's), `path` of the library it was in."""
    finding = table.read(RULES, record.text)
    return None if finding is None else replace(finding, device=str(finding.evidence["pid"]))
