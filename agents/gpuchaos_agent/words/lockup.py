"""CPUs that do not get on: soft and hard lock-ups, RCU stalls, worker pools that are stuck.

Wordings: Linux `kernel/watchdog.c` (`BUG:` bare to 4.10, `NMI watchdog:` to 4.13, `watchdog:` since), `kernel/rcu/
tree_stall.h` (`INFO:` bare to 4.19, `rcu: INFO:` since), `kernel/workqueue.c`. On virtual machines a lock-up can be
the host's: the CPU was not given to the guest.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import NONE, Family, Finding, Part
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("soft lockup", "LOCKUP on cpu", "rcu", "workqueue lockup")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
#: A soft lock-up is told again every 20 to 30 s, a stall of RCU every 60 s or more.
FAMILIES: Final = (Family("cpu_lockup", gap_s=60.0), Family("rcu_stall", gap_s=200.0))

_DOG: Final = r"(?:NMI )?(?:watchdog: )?"
_RCU: Final = r"(?:rcu: )?INFO: rcu_\w{1,24} "

RULES: Final = (
    Rule(
        re.compile(
            _DOG + r"BUG: soft lockup - CPU#(?P<cpu>\d{1,5}) stuck for (?P<seconds>\d{1,9})s! "
            r"\[(?P<comm>.{1,64}):(?P<pid>\d{1,10})\]"
        ),
        "cpu_soft_lockup",
        Severity.ERROR,
        "check_stack",
        "2.6; `watchdog:` 4.13",
        "cpu_lockup",
    ),
    Rule(
        re.compile(_DOG + r"(?:CPU\d{1,5}: )?Watchdog detected hard LOCKUP on cpu (?P<cpu>\d{1,5})"),
        "cpu_hard_lockup",
        Severity.CRITICAL,
        "reboot_node",
        "2.6.38; `CPU1: ` (who saw it) 6.9",
        "cpu_lockup",
    ),
    Rule(
        re.compile(_RCU + r"self-detected stall on CPU"),
        "rcu_stall",
        Severity.ERROR,
        "check_stack",
        "2.6",
        "rcu_stall",
    ),
    Rule(
        re.compile(_RCU + r"detected (?:expedited )?stalls on CPUs/tasks:"),
        "rcu_stall",
        Severity.ERROR,
        "check_stack",
        "3.x",
        "rcu_stall",
    ),
    Rule(
        re.compile(r"rcu: rcu_\w{1,24} kthread (?P<cause>starved|timer wakeup didn't happen) for \d{1,12} jiffies"),
        "rcu_stall",
        Severity.ERROR,
        "check_stack",
        "4.1",
        "rcu_stall",
    ),
    Rule(
        re.compile(r"rcu: \s{0,4}(?P<cpu>\d{1,5})-[.A-Zo!?]{3,5}: \(\d{1,20} (?:GPs behind|ticks this GP)\)"),
        NONE,
        since="3.x",
        family="rcu_stall",
        part=Part.DETAIL,
    ),
    Rule(
        re.compile(
            r"BUG: workqueue lockup - pool cpus=(?P<cpus>[\d,-]{1,64}) [^\n]{0,80}stuck for (?P<seconds>\d{1,9})s!"
        ),
        "cpu_soft_lockup",
        Severity.WARNING,
        "check_stack",
        "4.5",
        says={"cause": "workqueue"},
    ),
)


def read(record: LogRecord) -> Finding | None:
    """A CPU that is stuck; `device` is the CPU (`cpu18`) where the line names it."""
    finding = table.read(RULES, record.text)
    if finding is not None and finding.part is Part.FAULT and isinstance(finding.evidence.get("cpu"), int):
        return replace(finding, device=f"cpu{finding.evidence['cpu']}")
    return finding
