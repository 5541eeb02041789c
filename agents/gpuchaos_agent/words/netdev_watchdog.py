"""A transmit queue that does not drain: the network core's watchdog and the drivers' own words for it.

Wordings: Linux `net/sched/sch_generic.c`. To 6.7 (and 6.6.46, 6.1.106) `NETDEV WATCHDOG: eth0 (mlx5_core):
transmit queue 0 timed out`, from 6.4 with milliseconds; since then the device comes first and the CPU is named.
mlx5e adds `TX timeout detected` (`en_main.c`). The driver resets the queue: it recovers by itself, mostly.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import Family, Finding, Part
from gpuchaos_agent.words.table import BDF, Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("NETDEV WATCHDOG: ", "TX timeout ")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
#: The core looks every 5 s (`watchdog_timeo`).
FAMILIES: Final = (Family("nic_tx", gap_s=30.0),)

_NAME: Final = r"(?P<device>[\w.@-]{1,16})"
_FAULT: Final = ("nic_tx_timeout", Severity.WARNING, "monitor")

RULES: Final = (
    Rule(
        re.compile(rf"NETDEV WATCHDOG: {_NAME} \(\w{{1,32}}\): transmit queue (?P<queue>\d{{1,6}}) timed out"),
        *_FAULT,
        "to 6.7",
        "nic_tx",
    ),
    Rule(
        re.compile(
            rf"\w{{1,32}} (?:(?P<bdf>{BDF})|[\w.:-]{{1,40}}) {_NAME}(?: \(un\w{{1,32}}\))?: NETDEV WATCHDOG: "
            r"CPU: (?P<cpu>\d{1,5}): transmit queue (?P<queue>\d{1,6}) timed out"
        ),
        *_FAULT,
        "6.8, 6.6.47, 6.1.107",
        "nic_tx",
    ),
    Rule(
        re.compile(rf"mlx5_core (?P<bdf>{BDF}) {_NAME}: TX timeout (?:detected|on queue: (?P<queue>\d{{1,6}}),)"),
        *_FAULT,
        "4.4",
        "nic_tx",
        Part.FAULT,
    ),
)


def read(record: LogRecord) -> Finding | None:
    """The timed-out queue; `device` is the network device in all wordings, `bdf` where the line has it."""
    finding = table.read(RULES, record.text)
    if finding is not None:
        finding.evidence["netdev"] = finding.device
    return finding
