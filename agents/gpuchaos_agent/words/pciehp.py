"""PCIe hotplug: a slot whose link goes down, or whose card is gone, without anyone having asked for it.

Wordings: Linux `drivers/pci/hotplug/pciehp_ctrl.c`, 4.9 to 6.14. An administrator's removal (`Powering off due
to button press`, `sysfs`) prints other words.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import NONE, Family, Finding, Part
from gpuchaos_agent.words.table import BDF, Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("pciehp",)
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
FAMILIES: Final = (Family("pciehp", gap_s=10.0),)

_AT: Final = (
    rf"(?:pcieport|pciehp) (?P<device>{BDF})(?::pcie\d{{1,3}})?: (?:pciehp: )?Slot\((?P<slot>[\w-]{{1,16}})\): "
)

RULES: Final = (
    Rule(
        re.compile(_AT + r"(?P<cause>Link Down|Card not present)"),
        "pcie_link_down",
        Severity.ERROR,
        "check_pcie",
        "4.9; `pcieport … pciehp:` 5.0",
        "pciehp",
    ),
    Rule(
        re.compile(_AT + r"(?P<cause>Link Up|Card present)"),
        NONE,
        since="4.9",
        family="pciehp",
        part=Part.DETAIL,
    ),
)


def read(record: LogRecord) -> Finding | None:
    """The slot's port as `device`; which card sat in it is not in the line."""
    return table.read(RULES, record.text)
