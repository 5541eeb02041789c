"""What the NVIDIA driver says without an Xid: a GPU that is gone or refuses, one that does not start, NVLink
training, peer memory, versions that do not match; and the lines that only add to an Xid (identity, dumps).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpuchaos_agent.collect.base import Evidence, FactKind
from gpuchaos_agent.kernelfs import pci
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import NONE, TEXT_KEPT, Family, Finding, Part
from gpuchaos_agent.words.xid_events import XID
from gpuchaos_stream.events.base import Severity

HINTS = ("NVRM: ", "nvidia-peermem ")
WRITERS = frozenset({Writer.KERNEL})
FAMILIES = (
    # Once at boot is common, again every 4 s is not: one event with its count.
    Family("nvlink_training", gap_s=60.0),
    # Printed at each end of a process that had memory registered.
    Family("peermem", gap_s=300.0),
    Family("gpu_refuses", gap_s=60.0),
    Family("driver_versions", gap_s=60.0),
)

#: The rules look at this much of a text, characters.
_LOOKED_AT: Final = 1024


@dataclass(frozen=True, slots=True)
class Rule:
    """One wording. Named groups become evidence (numbers where they are); `pci` names the GPU."""

    text: re.Pattern[str]
    fault: str
    severity: Severity
    action: str
    family: str
    part: Part = Part.FAULT


_PCI: Final = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
#: What newer drivers (565 and later) put before the function's name.
_GPU: Final = r"(?:GPU(?P<gpu_index>\d{1,3}) )?"
#: A line break inside one printk: the driver begins each line anew.
_NEXT: Final = r"\s{1,40}(?:NVRM: )?"

_LOST: Final = ("gpu_lost", Severity.CRITICAL, "reboot_node")
_DETAIL: Final = (NONE, Severity.INFO, "none", XID, Part.DETAIL)

#: Wordings of the open kernel modules 515 to 610 (`nv.c`, `nv-pci.c`, `osinit.c`, `rpc.c`, `kernel_nvlink*.c`,
#: `nvidia-peermem.c`); those for versions and BARs go back to 71. The first that matches is taken.
RULES: Final = (
    Rule(
        re.compile(
            rf"NVRM: The NVIDIA GPU {_PCI}{_NEXT}\(PCI ID: (?P<pci_id>[0-9a-fA-F]{{4}}:[0-9a-fA-F]{{4}})\)"
            rf"[^\n]{{0,80}}{_NEXT}fallen off the bus"
        ),
        *_LOST,
        XID,
    ),
    # The same, by a log daemon that cut it into its lines.
    Rule(re.compile(rf"NVRM: The NVIDIA GPU {_PCI}\s{{0,4}}\Z"), *_DETAIL),
    Rule(re.compile(r"NVRM: \(PCI ID: (?P<pci_id>[0-9a-fA-F]{4}:[0-9a-fA-F]{4})\) installed in this system"), *_DETAIL),
    Rule(re.compile(r"NVRM: fallen off the bus and is not responding to commands"), *_LOST, XID),
    Rule(re.compile(rf"NVRM: GPU (?:at (?:PCI:)?)?{_PCI}:? (?:GPU )?has fallen off the bus"), *_LOST, XID),
    Rule(re.compile(rf"NVRM: GPU at PCI:{_PCI}: (?P<uuid>GPU-[0-9a-fA-F-]{{36}})"), *_DETAIL),
    Rule(re.compile(rf"NVRM: GPU {_PCI}: GPU serial number is (?P<serial>\d{{1,20}})"), *_DETAIL),
    Rule(re.compile(rf"NVRM: {_GPU}kgspHealthCheck_\w{{1,16}}: \*{{1,80}} ?(?P<dump>GSP-CrashCat Report)"), *_DETAIL),
    Rule(
        re.compile(rf"NVRM: {_GPU}[^\n]{{0,512}}?(?:NV_ERR_GPU_IS_LOST|\bstatus=0x0000000f\b)"), *_LOST, "gpu_refuses"
    ),
    Rule(
        re.compile(rf"NVRM: {_GPU}[^\n]{{0,512}}?(?:NV_ERR_RESET_REQUIRED|\bstatus=0x00000062\b)"),
        "gpu_reset_required",
        Severity.CRITICAL,
        "reset_gpu",
        "gpu_refuses",
    ),
    Rule(
        re.compile(rf"NVRM: {_GPU}nvGpuOpsReportFatalError: uvm encountered global fatal error 0x[0-9a-fA-F]{{1,8}}"),
        "gpu_needs_reset",
        Severity.CRITICAL,
        "reboot_node",
        "gpu_refuses",
    ),
    Rule(
        re.compile(
            rf"NVRM: GPU {_PCI}: (?:RmInitAdapter failed! \((?P<code>[0-9a-fx:]{{1,40}})\)"
            r"|rm_init_adapter failed, device minor number (?P<minor>\d{1,4}))"
        ),
        "gpu_init_failed",
        Severity.CRITICAL,
        "reset_gpu",
        XID,
    ),
    Rule(
        re.compile(rf"NVRM: {_GPU}RmInitAdapter failed! \((?P<code>[0-9a-fx:]{{1,40}})\)"),
        "gpu_init_failed",
        Severity.CRITICAL,
        "reset_gpu",
        XID,
    ),
    Rule(
        re.compile(
            r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:"
            rf"{_NEXT}BAR0 is \d{{1,20}}M @ 0x[0-9a-fA-F]{{1,16}} \(PCI:{_PCI}\)"
        ),
        "gpu_init_failed",
        Severity.CRITICAL,
        "check_firmware_settings",
        XID,
    ),
    Rule(
        re.compile(
            r"NVRM: API mismatch: the client (?:'(?P<name>[^'\n]{0,64})' \(pid (?P<pid>\d{1,10})\)\s{1,40}(?:NVRM: )?)?"
            rf"has the version (?P<client>[\d.-]{{1,24}}), but(?:{_NEXT}this kernel module has the version"
            r" (?P<module>\d[\d.-]{0,22}\d))?"
        ),
        "gpu_driver_mismatch",
        Severity.ERROR,
        "update_software",
        "driver_versions",
    ),
    Rule(
        re.compile(
            rf"NVRM: {_GPU}knvlink(?:UpdatePostRxDetectLinkMask|DiscoverPostRxDetLinks)\w{{0,24}}: "
            r"(?:[^\n]{0,80}?\bpeer(?P<peer>\d{1,4}))?"
        ),
        "gpu_nvlink_training",
        Severity.WARNING,
        "investigate",
        "nvlink_training",
    ),
    Rule(
        re.compile(r"nvidia-peermem [^\n]{0,80}?\bdetected invalid context\b"),
        "gpu_peermem_invalid_context",
        Severity.INFO,
        "none",
        "peermem",
    ),
)

#: Evidence that keeps its form though it is made of digits.
_TEXTS: Final = frozenset({"pci_id", "uuid", "serial", "code", "client", "module", "name", "dump"})


def read(record: LogRecord) -> Finding | None:
    """What the driver's line says, by the table. Never raises."""
    if record.text.startswith("NVRM: Xid"):
        return None  # `xid.py` reads it; a flood of them need not pass all these patterns
    text = record.text[:_LOOKED_AT]
    for rule in RULES:
        match = rule.text.match(text)
        if match is not None:
            return _finding(rule, match.groupdict(), text)
    return None


def _finding(rule: Rule, groups: dict[str, str | None], text: str) -> Finding:
    device = pci.normal(groups.pop("pci", None) or "")
    evidence: Evidence = {
        name: value if name in _TEXTS else int(value) for name, value in groups.items() if value is not None
    }
    if device:
        evidence["pci"] = device
    if rule.part is Part.FAULT:
        evidence |= {"action": rule.action, "text": text[:TEXT_KEPT]}
    kind: FactKind = "gpu" if device else "node"
    return Finding(rule.fault, rule.severity, kind, device, evidence, device, rule.family, rule.part)
