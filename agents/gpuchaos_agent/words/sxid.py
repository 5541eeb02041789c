"""SXid lines of NVSwitch: one record in, at most one finding out; what all switches of a node say is one event.

Grammar (open kernel modules 595.45.04, `error_nvswitch.c` and its macros; the word and the link may be missing):

    nvidia-nvswitchN: SXid (PCI:DDDD:BB:DD.F): CODE, [Fatal, |Non-fatal, |Correctable, ][Link NN ]MESSAGE
    nvidia-nvswitchN: SXid (PCI:DDDD:BB:DD.F): CODE, Severity S Engine instance NN Sub-engine instance NN
    nvidia-nvswitchN: SXid (PCI:DDDD:BB:DD.F): CODE, Data {0x…, …}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.kernelfs import pci
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import TEXT_KEPT, Family, Finding, Part
from gpuchaos_agent.words.conclude import filled
from gpuchaos_stream.events.base import Severity

HINTS = ("SXid (",)
WRITERS = frozenset({Writer.KERNEL})

_LINE: Final = re.compile(
    r"nvidia-nvswitch(?P<switch>\d{1,3}): SXid \((?:PCI:)?(?P<where>[^()\n]{0,40})\): "
    r"(?P<code>\d{1,6})(?:, ?(?P<body>.*))?\Z",
    re.DOTALL,
)
_PCI: Final = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?\Z")
_WORD: Final = re.compile(r"(Fatal|Non-fatal|Correctable), ")
_LINK: Final = re.compile(r"\bLink (\d{1,3})\b")
_DETAIL: Final = re.compile(r"Severity \d|Data \{|[A-Z ]{1,20}data\[\d{1,2}\]")

_NONFATAL: Final = "nvswitch_link_error"
_FATAL: Final = "nvswitch_link_fatal"
#: A name of this kind says only that it is an error; the word decides which.
_BY_WORD: Final = frozenset({_NONFATAL, _FATAL})


def read(record: LogRecord) -> Finding | None:
    """What an SXid record says. Never raises.

    Evidence: `sxid`, `sxid_name`, `switch` (the driver's number), `bdf`, `action`, `text`, `link` where named.
    """
    line = _LINE.match(record.text)
    if line is None:
        return None
    code, body = int(line["code"]), line["body"] or ""
    entry = catalogue.sxids().get(code)
    evidence: Evidence = {"sxid": code, "sxid_name": entry.name if entry else None, "switch": int(line["switch"])}
    device = ""
    if _PCI.match(line["where"]):
        device = pci.normal(line["where"])
        evidence["bdf"] = line["where"].lower()
    link = _LINK.search(body, 0, 512)
    if link is not None:
        evidence["link"] = int(link[1])
    fault, severity, action = _judge(entry, _WORD.match(body))
    evidence |= {"action": action, "text": record.text[:TEXT_KEPT]}
    part = Part.DETAIL if _DETAIL.match(body) else Part.FAULT
    return Finding(fault, severity, evidence=evidence, device=device, family="sxid", part=part)


def _judge(entry: catalogue.SxidEntry | None, word: re.Match[str] | None) -> tuple[str, Severity, str]:
    """The word of the record before the table; the table where the record has none."""
    fault = entry.fault if entry else _NONFATAL
    severity = entry.severity if entry else Severity.ERROR
    action = entry.action if entry else "investigate"
    if word is None:
        return fault, severity, action
    if word[1] == "Fatal":
        return (_FATAL if fault in _BY_WORD else fault), Severity.CRITICAL, "reset_fabric_reboot"
    mild = action if severity is not Severity.CRITICAL else "monitor"
    return (_NONFATAL if fault in _BY_WORD else fault), Severity.WARNING, mild


def conclude(parts: Sequence[Finding]) -> Finding:
    """The worst of all switches. `devices` names each with its links, `switches` is how many, `sxids` the codes."""
    faults = [part for part in parts if part.part is Part.FAULT] or list(parts[:1])
    made = filled(max(faults, key=lambda part: part.severity.rank), parts)
    evidence: Evidence = dict(made.evidence)
    links: dict[str, dict[str, None]] = {}
    for part in faults:
        seen = links.setdefault(str(part.evidence.get("bdf") or "unknown"), {})
        if part.evidence.get("link") is not None:
            seen[str(part.evidence["link"])] = None
    codes = sorted({code for part in faults if isinstance(code := part.evidence.get("sxid"), int)})
    if len(codes) > 1:
        evidence["sxids"] = ",".join(map(str, codes))
    if len(links) > 1 or any(len(seen) > 1 for seen in links.values()):
        evidence["devices"] = ",".join(f"{bdf}{_named(list(seen))}" for bdf, seen in links.items())[:TEXT_KEPT]
        evidence["switches"] = len(links)
    return replace(made, evidence=evidence)


def _named(links: list[str]) -> str:
    if not links:
        return ""
    return f"({'link' if len(links) == 1 else 'links'}{','.join(links)})"


FAMILIES = (Family("sxid", gap_s=10.0, any_device=True, conclude=conclude),)
