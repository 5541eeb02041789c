"""The mlx5 driver (ConnectX, BlueField): firmware, health, transceivers, power. Its links are in `nic_link`.

Wordings: Linux `drivers/net/ethernet/mellanox/mlx5/core/{cmd,health,events}.c`, 4.14 to 6.14, and the same files
of MLNX_OFED. Function, line and pid before the words (`wait_func:1137:(pid 911): `) come and go with versions.
`ACCESS_REG … failed` is no fault: a monitor's reading of counters that the firmware refuses makes it.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import Family, Finding, Part
from gpuchaos_agent.words.table import BDF, Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("mlx5_core ",)
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})

_HEALTH: Final = "mlx5_health"
#: A health problem is looked at for a minute before the driver gives up on recovery (health.c, 60 s).
FAMILIES: Final = (Family(_HEALTH, gap_s=90.0), Family("mlx5_cmd", gap_s=60.0), Family("mlx5_module", gap_s=60.0))

_AT: Final = rf"mlx5_core (?P<device>{BDF})(?: \w{{1,32}})?: (?:\w{{1,64}}:\d{{1,6}}:\(pid (?:-?\d{{1,10}})\): )?"


def _rule(
    words: str,
    fault: str,
    severity: Severity,
    action: str = "",
    *,
    since: str = "4.14",
    family: str = "",
    part: Part = Part.FAULT,
    **says: str | bool,
) -> Rule:
    return Rule(re.compile(_AT + words), fault, severity, action, since, family, part, dict(says))


#: `mlx5_health.c` names of syndromes that are heat, not a broken adapter.
_HOT: Final = "[Hh]igh [Tt]emperature"

RULES: Final = (
    _rule(
        r"(?:cmd\[\d{1,4}\]: )?(?P<op>\w{1,64})\(0x[0-9a-f]{1,8}\) (?:Async, |No done completion )?timeout\. "
        r"Will cause a leak of a command resource",
        "nic_fw_cmd_timeout",
        Severity.CRITICAL,
        "replace_nic",
        since="4.14; `cmd[N]` and `Async` 5.10",
        family="mlx5_cmd",
    ),
    _rule(
        r"device's health compromised(?P<cause> - reached miss count)?",
        "nic_fw_hang",
        Severity.CRITICAL,
        "replace_nic",
        since="4.14; `reached miss count` 4.18",
        family=_HEALTH,
    ),
    _rule(r"Fatal error (?P<cause>\d{1,4}) detected", "nic_fatal", Severity.CRITICAL, "replace_nic", family=_HEALTH),
    _rule(
        rf"Health issue observed, (?P<cause>{_HOT}), severity\(\d\)",
        "nic_high_temp",
        Severity.ERROR,
        "check_cooling",
        since="5.14",
        family=_HEALTH,
    ),
    _rule(
        r"Health issue observed, (?P<cause>[^,\n]{1,80}), severity\([0-3]\)",
        "nic_fatal",
        Severity.CRITICAL,
        "replace_nic",
        since="5.14",
        family=_HEALTH,
    ),
    _rule(
        r"Health issue observed, (?P<cause>[^,\n]{1,80}), severity\([4-7]\)",
        "nic_fatal",
        Severity.WARNING,
        "investigate",
        since="5.14",
        family=_HEALTH,
    ),
    _rule(
        rf"synd 0x10: (?P<cause>{_HOT})",
        "nic_high_temp",
        Severity.ERROR,
        "check_cooling",
        since="to 5.13",
        family=_HEALTH,
    ),
    _rule(
        r"synd 0x0*[1-9a-f][0-9a-f]*: (?P<cause>[^\n]{1,80})",
        "nic_fatal",
        Severity.CRITICAL,
        "replace_nic",
        since="to 5.13",
        family=_HEALTH,
    ),
    _rule(
        r"(?P<cause>health recovery (?:flow aborted|failed)[^\n]{0,80})",
        "nic_fatal",
        Severity.CRITICAL,
        "replace_nic",
        family=_HEALTH,
    ),
    _rule(r"health recovery succe(?:eded|ssful)", "nic_fatal", Severity.INFO, family=_HEALTH, part=Part.CLEAR),
    _rule(
        rf"(?P<cause>{_HOT} on sensors with bit set [^\n]{{1,60}})",
        "nic_high_temp",
        Severity.WARNING,
        "check_cooling",
        since="4.18",
    ),
    _rule(
        rf"Port module event\[error\]: module (?P<port>\d{{1,3}}), Cable error, {_HOT}",
        "nic_module_high_temp",
        Severity.WARNING,
        "check_cooling",
        since="4.7",
        family="mlx5_module",
    ),
    _rule(
        r"Port module event\[error\]: module (?P<port>\d{1,3}), (?:Cable error, )?(?P<cause>[^\n]{1,80})",
        "nic_module_error",
        Severity.ERROR,
        "check_cable",
        since="4.7",
        family="mlx5_module",
    ),
    _rule(
        r"Detected insufficient power on the PCIe slot \((?P<watts>\d{1,5})W\)",
        "nic_pcie_power",
        Severity.WARNING,
        "check_pcie_power",
        since="5.0",
    ),
)


def read(record: LogRecord) -> Finding | None:
    """What the driver says of an adapter; `device` is its PCI address, `bdf` the same as evidence."""
    finding = table.read(RULES, record.text)
    if finding is not None:
        finding.evidence["bdf"] = finding.device
    return finding
