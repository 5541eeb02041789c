"""Xid lines of the NVIDIA driver: one record in, at most one finding out.

Grammar (open kernel modules 595.45.04, `kernel_rc.c`), with what older and newer drivers leave out or add:

    NVRM: Xid (PCI:DDDD:BB:DD[ GPU-I:NN[ GPU-CI:NN]]): CODE, [pid=P, name=NAME, ]MESSAGE[ caused by previous Xid N]

The code is what follows `): `. The process name is chosen by a user and may hold anything, so nothing is
ever found by searching past it. Each Xid is printed at level warn: the log's level says nothing of severity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Evidence, FactKind
from gpuchaos_agent.kernelfs import pci
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import nvlink, nvlink5
from gpuchaos_agent.words.base import NONE, TEXT_KEPT, Finding, Part
from gpuchaos_agent.words.xid_events import FAMILIES as _FAMILIES
from gpuchaos_agent.words.xid_events import TORN, XID
from gpuchaos_stream.events.base import Severity

HINTS = ("NVRM: Xid",)
WRITERS = frozenset({Writer.KERNEL})
FAMILIES = _FAMILIES

_LINE: Final = re.compile(r"NVRM: Xid \((?P<where>[^()\n]{0,80})\): (?P<code>\d{1,5})(?:, ?(?P<body>.*))?\Z", re.DOTALL)
_WHERE: Final = re.compile(
    r"(?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
    r"(?:[ ,]{1,4}GPU-I:(?P<gi>\d{1,4}))?(?:[ ,]{1,4}GPU-CI:(?P<ci>\d{1,4}))?"
)
_PROCESS: Final = re.compile(
    r"pid='?(?P<pid>\d{1,10}|<unknown>)'?(?:, name=(?P<name>[^\n]{0,128}?))?(?:, |\s*\Z)", re.DOTALL
)
_PREVIOUS: Final = re.compile(r" caused by previous Xid (\d{1,5})\s{0,4}\Z")
_LINK: Final = re.compile(r"\b[Ll]ink (-?\d{1,3})\b")
_GPU_INDEX: Final = re.compile(r"\bon GPU(\d{1,3})\b")
_PARTITION: Final = re.compile(r"\bpartition (\d{1,4})\b")
_RESET: Final = re.compile(r"\bRST: (Yes|No)\b")
_ACTION: Final = re.compile(
    r"recovery action changed from 0x([0-9a-fA-F]{1,4}) [^\n]{0,64}? ?to 0x([0-9a-fA-F]{1,4})\b"
)

#: `nvmlDeviceGpuRecoveryAction_t` (nvml.h 13.615, 6 and 7 are new there): number → severity, action. The names
#: that the driver prints beside the numbers changed in 610, the numbers did not.
RECOVERY_ACTIONS: Final[dict[int, tuple[Severity, str]]] = {
    0: (Severity.INFO, "none"),
    1: (Severity.CRITICAL, "reset_gpu"),
    2: (Severity.CRITICAL, "reboot_node"),
    3: (Severity.ERROR, "drain_p2p"),
    4: (Severity.CRITICAL, "drain_then_reset"),
    5: (Severity.CRITICAL, "recover_imex"),
    6: (Severity.CRITICAL, "reset_bus"),
    7: (Severity.CRITICAL, "reboot_node"),
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
    Refinement(frozenset({64}), re.compile("table is full|no spare|All reserved rows"), None, None, "replace_gpu"),
    Refinement(frozenset({63}), re.compile("Page Retirement"), "gpu_memory_repair_pending", None, "reset_gpu"),
    # `bBadTsg` of driver 610; the catalogue of 2025-10 still calls 51 unused.
    Refinement(frozenset({51}), re.compile("BAD_TSG"), "gpu_scheduler_fault", Severity.CRITICAL, "reset_gpu"),
)


def read(record: LogRecord) -> Finding | None:
    """What an Xid record says, None for any text that does not begin as one. Never raises.

    Evidence: `xid`, `xid_name`, `scope`, `action`, `text`, and where the record has them `pci`, `pid`, `name`,
    `gpu_instance`, `compute_instance`, `root_xid`, `nvlink`, `regs`, `recovery_action`, `reset_required`,
    `hardware_injected`, `gpu_index`, `partition`.
    """
    return parse(record.text)


def parse(text: str) -> Finding | None:
    """As `read`, of the bare text."""
    line = _LINE.match(text)
    if line is None:
        return None
    code = int(line["code"])
    body = line["body"] or ""
    evidence: Evidence = {"xid": code, "text": text[:TEXT_KEPT]}
    device = ""
    where = _WHERE.match(line["where"])
    if where is not None:
        device = pci.normal(where["pci"])
        evidence["pci"] = device
        _integers(evidence, gpu_instance=where["gi"], compute_instance=where["ci"])
    process = _PROCESS.match(body)
    if process is not None:
        if process["pid"].isdecimal():
            evidence["pid"] = int(process["pid"])
        if process["name"] and process["name"] != "<unknown>":
            evidence["name"] = process["name"][:64]
        body = body[process.end() :]
    return _judge(code, body, device, evidence)


def _judge(code: int, body: str, device: str, evidence: Evidence) -> Finding:
    table = catalogue.xids()
    entry = table.get(code)
    previous = _PREVIOUS.search(body[-64:])
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
        if code in rule.codes and rule.text.search(body, 0, 2048):
            fault, severity, action = rule.fault or fault, rule.severity or severity, rule.action or action
            break
    _details(evidence, body)
    part = Part.FAULT
    if code == 154:
        severity, action, part = _recovery(evidence, body)
        fault = NONE if part is Part.CLEAR else fault
    elif code == 74:
        severity, action = nvlink.judge(evidence, body)
    elif severity is None and previous is not None:
        severity, action = Severity.CRITICAL, "reset_gpu"  # the cause's own words are elsewhere: count as fatal
    elif severity is None:
        fault, severity, action = nvlink5.judge(code, body, fault, evidence)
    evidence["action"] = action
    kind: FactKind = "gpu" if device else "node"
    return Finding(fault, severity, kind, device, evidence, device, TORN if previous else XID, part)


def _recovery(evidence: Evidence, body: str) -> tuple[Severity, str, Part]:
    """Xid 154: the number says what to do; going back to 0 is a recovery, not a fault."""
    changed = _ACTION.search(body, 0, 512)
    if changed is None:
        return Severity.WARNING, "investigate", Part.FAULT
    number = int(changed[2], 16)
    evidence["recovery_action"] = number
    severity, action = RECOVERY_ACTIONS.get(number, (Severity.ERROR, "investigate"))
    return severity, action, Part.FAULT if number else Part.CLEAR


def _details(evidence: Evidence, body: str) -> None:
    for name, pattern in (("nvlink", _LINK), ("gpu_index", _GPU_INDEX), ("partition", _PARTITION)):
        found = pattern.search(body, 0, 2048)
        _integers(evidence, **{name: found[1] if found else None})
    reset = _RESET.search(body, 0, 2048)
    if reset is not None:
        evidence["reset_required"] = reset[1] == "Yes"


def _integers(evidence: Evidence, **values: str | None) -> None:
    evidence.update({name: int(value) for name, value in values.items() if value is not None})
