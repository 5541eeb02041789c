"""Tables of wordings for programs' logs: as `table.py`, but found anywhere in a line, behind a logger's prefix."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.logs.record import LogRecord
from gpuchaos_agent.words.base import TEXT_KEPT, Finding, Part
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

#: Patterns look at so much of a text, characters: what a program prints into one line is shorter.
LOOKED_AT: Final = 4096
#: Evidence that is a number where the text holds one.
_NUMBERS: Final = frozenset({"pid", "gpu_index", "exitcode", "local_rank", "ib_status", "vendor_err", "errno", "seq"})


def wording(
    text: str,
    fault: str,
    severity: Severity = Severity.ERROR,
    action: str = "",
    *,
    part: Part = Part.FAULT,
    **says: str,
) -> Rule:
    """A row of a table. Named groups of `text` become evidence beside `says`; `device` is what it is about."""
    return Rule(re.compile(text), fault, severity, action, part=part, says=dict(says))


def meaning(
    fault: str, severity: Severity = Severity.ERROR, action: str = "", *, part: Part = Part.FAULT, **says: str
) -> Rule:
    """A row for something that is told by a number or a name, not by a pattern of its own."""
    return wording("", fault, severity, action, part=part, **says)


def first(rules: Iterable[Rule], record: LogRecord, *, family: str = "") -> Finding | None:
    """What the first wording that is found says; None where none is."""
    text = record.text[:LOOKED_AT]
    for rule in rules:
        match = rule.text.search(text)
        if match is not None:
            return made(rule, match.groupdict(), record, family=family)
    return None


def made(rule: Rule, groups: dict[str, str | None], record: LogRecord, *, family: str = "") -> Finding:
    """The finding of a rule whose groups are `groups`."""
    found = {name: number(name, value) for name, value in groups.items() if value}
    device = str(found.pop("device", ""))
    evidence: Evidence = {**rule.says, **found, "text": record.text[:TEXT_KEPT].strip()}
    if rule.action:
        evidence["action"] = rule.action
    return Finding(
        rule.fault, rule.severity, evidence=evidence, device=device, family=rule.family or family, part=rule.part
    )


def number(name: str, value: str) -> str | int:
    """The value of an evidence, as a number where its name stands for one."""
    return int(value) if name in _NUMBERS and value.lstrip("-").isdecimal() and len(value) < 19 else value
