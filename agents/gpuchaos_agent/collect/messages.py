"""Kernel-log texts to findings: Xids, other words of the driver by table, and the mark of our own injections."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpuchaos_agent.collect import pci, xid
from gpuchaos_agent.collect.base import FactKind
from gpuchaos_agent.collect.xid import TEXT_KEPT, Finding
from gpuchaos_stream.events.base import Severity

#: What `memory-corruption` puts at the end of the records that it writes.
_MARK: Final = re.compile(r" gpuchaos-injected=(?P<fault_id>[A-Za-z0-9._-]{1,64})\s*\Z")
#: A process may sign its record (`eco-test: `, `tool[12]: `); hardware's words must follow at once, so that a
#: monitor that quotes an Xid inside its own log line does not make one.
_TAG: Final = re.compile(r"(?:[A-Za-z0-9_.-]{1,32}(?:\[\d{1,10}\])?: )?(?=NVRM: )")
#: Wrapping by rsyslog and by journald's kernel forwarder.
_REPEATED: Final = re.compile(r"message repeated (?P<times>\d{1,6}) times: \[ ?(?P<text>.*)\]\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """One wording. Named groups of `text` become evidence; a group `pci` or `device` names the entity."""

    text: re.Pattern[str]
    fault: str
    severity: Severity
    action: str
    kind: FactKind = "node"


_PCI: Final = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"

#: Wordings without an Xid (NVIDIA open kernel modules 570-595; nvme: kernel 6.x `drivers/nvme/host/multipath.c`).
RULES: Final = (
    Rule(
        re.compile(
            rf"NVRM: The NVIDIA GPU {_PCI}\s+(?:NVRM: )?\(PCI ID: (?P<pci_id>[0-9a-f]{{4}}:[0-9a-f]{{4}})\)[^\n]*"
            r"\s+(?:NVRM: )?fallen off the bus"
        ),
        "gpu_lost",
        Severity.CRITICAL,
        "reboot_node",
        "gpu",
    ),
    Rule(
        re.compile(rf"NVRM: GPU {_PCI}: GPU has fallen off the bus"),
        "gpu_lost",
        Severity.CRITICAL,
        "reboot_node",
        "gpu",
    ),
    Rule(
        re.compile(r"NVRM: .*(?:NV_ERR_GPU_IS_LOST|\bstatus=0x0000000f\b)"),
        "gpu_lost",
        Severity.CRITICAL,
        "reboot_node",
    ),
    Rule(
        re.compile(r"NVRM: .*(?:NV_ERR_RESET_REQUIRED|\bstatus=0x00000062\b)"),
        "gpu_reset_required",
        Severity.CRITICAL,
        "reset_gpu",
    ),
    Rule(
        re.compile(r"NVRM: knvlink(?:UpdatePostRxDetectLinkMask|DiscoverPostRxDetLinks)\w*: (?:.*?peer(?P<peer>\d+))?"),
        "gpu_nvlink_training",
        Severity.WARNING,
        "investigate",
    ),
    Rule(
        re.compile(r"nvidia-peermem .*detected invalid context"),
        "gpu_peermem_invalid_context",
        Severity.INFO,
        "none",
    ),
    Rule(
        re.compile(r"block (?P<device>nvme\w+): no available path - failing I/O"),
        "nvme_path_failure",
        Severity.CRITICAL,
        "check_storage_path",
    ),
)


@dataclass(frozen=True, slots=True)
class Message:
    """A finding with who is behind it: `fault_id` is that of the mark, None where there is none."""

    finding: Finding
    fault_id: str | None = None


def read_message(text: str, *, by_process: bool) -> Message | None:
    """What an unescaped kernel-log text says, None where it says nothing of a fault. Never raises.

    Only a record that a process wrote may carry a tag before the driver's words, or our mark: the kernel
    does neither, and a mark believed in its records would let a process name hide real hardware.
    """
    fault_id = None
    if by_process:
        mark = _MARK.search(text)
        if mark is not None:
            fault_id, text = mark["fault_id"], text[: mark.start()]
        text = _TAG.sub("", text, count=1) if _TAG.match(text) else text
    finding = _find(text)
    return None if finding is None else Message(finding, fault_id)


def _find(text: str) -> Finding | None:
    repeated = _REPEATED.match(text)
    if repeated is not None:
        text = repeated["text"]
    finding = xid.parse(text) or _by_rules(text)
    if finding is not None and repeated is not None:
        finding.evidence["count"] = int(repeated["times"])
    return finding


def _by_rules(text: str) -> Finding | None:
    for rule in RULES:
        match = rule.text.match(text)
        if match is not None:
            found = {name: value for name, value in match.groupdict().items() if value is not None}
            local = pci.normal(found.get("pci", "")) if rule.kind == "gpu" else ""
            evidence = {**found, "text": text[:TEXT_KEPT], "action": rule.action}
            return Finding(rule.fault, rule.severity, rule.kind, local, evidence)
    return None
