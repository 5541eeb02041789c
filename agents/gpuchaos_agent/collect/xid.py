"""Xid lines of the NVIDIA driver: one text in, at most one finding out.

Grammar (open kernel modules 595.45.04, `kernel_rc.c`), with what older and newer drivers leave out or add:

    NVRM: Xid (PCI:DDDD:BB:DD[ GPU-I:NN[ GPU-CI:NN]]): CODE, [pid=P, name=NAME, ]MESSAGE[ caused by previous Xid N]

The code is what follows `): `. The process name is chosen by a user and may hold anything, so nothing is
ever found by searching past it. Each Xid is printed at level warn: the log's level says nothing of severity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect import pci
from gpuchaos_agent.collect.base import Evidence, FactKind
from gpuchaos_stream.events.base import Severity

#: How much of a record is kept as evidence, characters.
TEXT_KEPT: Final = 300


@dataclass(frozen=True, slots=True)
class Finding:
    """What one text says: the fact without its time, its key and its origin."""

    fault: str
    severity: Severity
    kind: FactKind = "node"
    local: str = ""
    evidence: Evidence = field(default_factory=dict)


_LINE: Final = re.compile(r"NVRM: Xid \((?P<where>[^()\n]{0,80})\): (?P<code>\d{1,5})(?:, ?(?P<body>.*))?\Z", re.DOTALL)
_WHERE: Final = re.compile(
    r"(?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
    r"(?:[ ,]+GPU-I:(?P<gi>\d+))?(?:[ ,]+GPU-CI:(?P<ci>\d+))?"
)
_PROCESS: Final = re.compile(r"pid='?(?P<pid>\d+|<unknown>)'?(?:, name=(?P<name>.*?))?(?:, |\Z)", re.DOTALL)
_PREVIOUS: Final = re.compile(r" caused by previous Xid (\d{1,5})\s*\Z")
_LINK: Final = re.compile(r"\b[Ll]ink (\d{1,3})\b")
_GPU_INDEX: Final = re.compile(r"\bon GPU(\d{1,3})\b")
_PARTITION: Final = re.compile(r"\bpartition (\d{1,4})\b")
_RESET: Final = re.compile(r"\bRST: (Yes|No)\b")
_ACTION: Final = re.compile(r"recovery action changed from 0x([0-9a-fA-F]+) .*?to 0x([0-9a-fA-F]+)", re.DOTALL)
_NVLINK5: Final = re.compile(r"^(?P<unit>[A-Z0-9_]+) (?P<fatal>Fatal|Nonfatal) XC(?P<xc>\d) i(?P<i>\d)")

#: `nvmlDeviceGpuRecoveryAction_t` (nvml.h): number → severity, action. Names changed in driver 610, numbers did not.
RECOVERY_ACTIONS: Final[dict[int, tuple[Severity, str]]] = {
    0: (Severity.INFO, "none"),
    1: (Severity.CRITICAL, "reset_gpu"),
    2: (Severity.CRITICAL, "reboot_node"),
    3: (Severity.ERROR, "drain_p2p"),
    4: (Severity.CRITICAL, "drain_then_reset"),
}


@dataclass(frozen=True, slots=True)
class Refinement:
    """Where the text says more than the code: the first that matches replaces what the table says."""

    codes: frozenset[int]
    text: re.Pattern[str]
    fault: str | None = None
    severity: Severity | None = None
    action: str | None = None


#: Wordings: driver 595 sources; page retirement (before Ampere) and row remapping share the codes 63 and 64.
REFINEMENTS: Final = (
    Refinement(
        frozenset({64}), re.compile("already pending remapping"), "gpu_row_remap_pending", Severity.ERROR, "reset_gpu"
    ),
    Refinement(
        frozenset({64}),
        re.compile("Page Retirement|[Bb]lacklisting failed"),
        "gpu_retirement_failure",
        None,
        "replace_gpu",
    ),
    Refinement(frozenset({64}), re.compile("table is full|no spare"), None, None, "replace_gpu"),
    Refinement(frozenset({63}), re.compile("Page Retirement"), "gpu_memory_repair_pending", None, "reset_gpu"),
    Refinement(frozenset({149}), re.compile(r"^NETIR_(?!BER)"), "gpu_nvlink_error"),
    Refinement(frozenset({149}), re.compile(r"^NETIR_BER\w* Nonfatal"), None, None, "check_cable_if_repeated"),
)


def parse(text: str) -> Finding | None:
    """What an Xid record says, None for any text that does not begin as one. Never raises.

    Evidence: `xid`, `xid_name`, `scope`, `action`, `text`, and where the record has them `pci`, `pid`,
    `process`, `gpu_instance`, `compute_instance`, `root_xid`, `nvlink`, `recovery_action`, `recovered`,
    `reset_required`, `hardware_injected`, `gpu_index`, `partition`.
    """
    line = _LINE.match(text)
    if line is None:
        return None
    code = int(line["code"])
    body = line["body"] or ""
    evidence: Evidence = {"xid": code, "text": text[:TEXT_KEPT]}
    kind: FactKind = "node"
    local = ""
    where = _WHERE.match(line["where"])
    if where is not None:
        kind, local = "gpu", pci.normal(where["pci"])
        evidence["pci"] = local
        _integers(evidence, gpu_instance=where["gi"], compute_instance=where["ci"])
    process = _PROCESS.match(body)
    if process is not None:
        if process["pid"].isdecimal():
            evidence["pid"] = int(process["pid"])
        if process["name"] and process["name"] != "<unknown>":
            evidence["process"] = process["name"][:64]
        body = body[process.end() :]
    return _judge(code, body, kind, local, evidence)


def _judge(code: int, body: str, kind: FactKind, local: str, evidence: Evidence) -> Finding:
    table = catalogue.xids()
    entry = table.get(code)
    previous = _PREVIOUS.search(body)
    root = table.get(int(previous[1])) if previous else None
    if previous is not None:
        evidence["root_xid"] = int(previous[1])
    # A channel torn down because of another Xid is that Xid's fault; alone it is the table's.
    judged = root or entry
    fault = judged.fault if judged else "gpu_unknown_xid"
    severity = judged.severity if judged else Severity.WARNING
    action = judged.action if judged else "investigate"
    evidence["xid_name"] = entry.name if entry else None
    evidence["scope"] = judged.scope if judged else "gpu"
    for rule in REFINEMENTS:
        if code in rule.codes and rule.text.search(body):
            fault, severity, action = rule.fault or fault, rule.severity or severity, rule.action or action
            break
    _details(evidence, body)
    if code == 154:
        severity, action = _recovery(evidence, body)
    elif severity is None:
        severity, action = _by_words(evidence, body, action)
    evidence["action"] = action
    return Finding(fault, severity, kind, local, evidence)


def _recovery(evidence: Evidence, body: str) -> tuple[Severity, str]:
    """Xid 154: the number says what to do; going back to 0 is a recovery, not a fault."""
    changed = _ACTION.search(body)
    if changed is None:
        return Severity.WARNING, "investigate"
    number = int(changed[2], 16)
    evidence["recovery_action"] = number
    evidence["recovered"] = number == 0
    return RECOVERY_ACTIONS.get(number, (Severity.ERROR, "investigate"))


def _by_words(evidence: Evidence, body: str, action: str) -> tuple[Severity, str]:
    """Xids 144 to 150: Fatal or Nonfatal; XC1 ends the program though nonfatal; no word counts as fatal."""
    words = _NVLINK5.match(body)
    if words is None:
        return Severity.CRITICAL, "reset_gpu" if action == "follow_severity" else action
    evidence["unit"] = words["unit"]
    # Injected in hardware by whoever tests the link: not ours, so it is told but not marked as ours.
    evidence["hardware_injected"] = words["i"] != "0"
    if words["fatal"] == "Fatal":
        return Severity.CRITICAL, "reset_gpu" if action == "follow_severity" else action
    if words["xc"] == "1":
        return Severity.ERROR, "restart_app" if action == "follow_severity" else action
    return Severity.WARNING, "none" if action == "follow_severity" else action


def _details(evidence: Evidence, body: str) -> None:
    for name, pattern in (("nvlink", _LINK), ("gpu_index", _GPU_INDEX), ("partition", _PARTITION)):
        found = pattern.search(body)
        _integers(evidence, **{name: found[1] if found else None})
    reset = _RESET.search(body)
    if reset is not None:
        evidence["reset_required"] = reset[1] == "Yes"


def _integers(evidence: Evidence, **values: str | None) -> None:
    evidence.update({name: int(value) for name, value in values.items() if value is not None})
