"""The EFA driver (AWS): its admin queue stops when the adapter's firmware does not answer.

Wordings: Linux `drivers/infiniband/hw/efa/efa_com.c`, 5.2 to 6.14. Before the RDMA device is registered the line
begins with `efa BDF: `, after it with `efa BDF NAME: ` or `infiniband NAME: `: one event all the same, so
lines are joined whatever they name. ENA prints similar texts for its own admin queue; those are not read here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import Family, Finding
from gpuchaos_agent.words.conclude import conclude
from gpuchaos_agent.words.table import BDF, Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("efa ", "infiniband ")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})

_AT: Final = (
    rf"(?:efa (?P<bdf>{BDF})(?: (?P<local>[\w.-]{{1,32}}))?"
    r"|infiniband (?P<device>(?:rdmap|efa)[\w.-]{1,32})): "
)

RULES: Final = (
    Rule(
        re.compile(
            _AT + r"(?P<cause>Wait for completion \(polling\) timeout"
            r"|The device didn't send any completion for admin cmd"
            r"|The device sent a completion but the driver didn't receive any MSI-X interrupt for admin cmd"
            r"|Admin queue is closed"
            r"|Reset indication didn't turn o(?:n|ff)"
            r"|Device isn't ready, (?:can't reset device|abort com init))"
        ),
        "nic_fw_hang",
        Severity.CRITICAL,
        "replace_node",
        "5.2",
        "efa",
    ),
    Rule(
        re.compile(_AT + r"(?P<cause>Failed to (?:process|submit) command)"),
        "nic_fw_cmd_timeout",
        Severity.WARNING,
        "investigate",
        "5.2",
        "efa",
    ),
)


def conclude_efa(parts: Sequence[Finding]) -> Finding:
    """The worst of the lines; named by the RDMA device where any line knows it, with the PCI address beside."""
    made = conclude(parts)
    named = next((part for part in parts if part.local), None)
    if named is None:
        return made
    return replace(made, kind="port", local=named.local, device=named.local)


FAMILIES: Final = (Family("efa", gap_s=60.0, any_device=True, conclude=conclude_efa),)


def read(record: LogRecord) -> Finding | None:
    """What the driver says; `device` is the RDMA device or, where the line has none, the PCI address."""
    finding = table.read(RULES, record.text)
    if finding is None:
        return None
    name = finding.local or finding.device
    if name:
        finding.evidence["local"] = name
        return replace(finding, kind="port", local=name, device=name)
    return replace(finding, device=str(finding.evidence["bdf"]))
