"""Wordings as a table: a rule is one wording, its named groups are the evidence.

A group `device` is what the finding is about, `local` the RDMA device (a port of this node); all others become
evidence under their name, numbers where the name is in INTEGERS. Patterns are matched at the text's start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.words.base import TEXT_KEPT, Finding, Part
from gpuchaos_stream.events.base import Severity

#: How much of a text is read, characters: more than the kernel puts into one record (8 KiB).
LONGEST: Final = 16 * 1024
#: Longest value of evidence, characters (a name that a user or a server chose).
LONGEST_VALUE: Final = 128
#: A PCI address with its function; five digits of domain behind Intel VMD.
BDF: Final = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
#: Evidence that is a number.
INTEGERS: Final = frozenset({"pid", "cpu", "bank", "watts", "ce_count", "count", "port", "errno", "seconds"})
#: Evidence that is written in one case, whatever the driver does.
_LOWER: Final = frozenset({"bdf", "reporter", "pci_id"})


@dataclass(frozen=True, slots=True)
class Rule:
    """One wording. `since` says in which versions it is written so; `says` is evidence beside the groups."""

    text: re.Pattern[str]
    fault: str
    severity: Severity = Severity.INFO
    action: str = ""
    since: str = ""
    family: str = ""
    part: Part = Part.FAULT
    says: Evidence = field(default_factory=dict)


def read(rules: Iterable[Rule], text: str) -> Finding | None:
    """What the first rule that matches says, None where none does."""
    text = text[:LONGEST]
    for rule in rules:
        match = rule.text.match(text)
        if match is not None:
            return _finding(rule, match, text)
    return None


def _finding(rule: Rule, match: re.Match[str], text: str) -> Finding:
    found = {name: value.strip()[:LONGEST_VALUE] for name, value in match.groupdict().items() if value}
    device, local = found.pop("device", ""), found.get("local", "")
    evidence: Evidence = {name: _value(name, value) for name, value in found.items()}
    evidence.update(rule.says)
    if rule.action:
        evidence["action"] = rule.action
    evidence["text"] = text[:TEXT_KEPT]
    return Finding(
        fault=rule.fault,
        severity=rule.severity,
        kind="port" if local else "node",
        local=local,
        evidence=evidence,
        device=device.lower() if re.fullmatch(BDF, device) else device,
        family=rule.family,
        part=rule.part,
    )


def _value(name: str, value: str) -> str | int:
    if name in INTEGERS and value.removeprefix("-").isdecimal():
        return abs(int(value))
    return value.lower() if name in _LOWER else value
