"""How Xids of one GPU are one event: which of them names the fault, and which says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.words.base import Family, Finding, Part
from gpuchaos_agent.words.conclude import filled

#: The family of everything that the driver says about one GPU.
XID: Final = "xid"
#: The family of channels that were torn down because of another Xid, on whichever GPU.
TORN: Final = "xid_torn"

#: These speak of other Xids: they name the event's fault only where nothing else does.
_SPEAK_OF_OTHERS: Final = frozenset({45, 154})
#: Causes that come before all others where channels on several GPUs were torn down: a GPU that is gone, then a
#: link that went down on this side. Others are what the peers of such a GPU say (`caused by previous Xid N`).
_FIRST_CAUSES: Final = (79, 119, 120, 62, 149)


@dataclass(frozen=True, slots=True)
class Combination:
    """Xids that mean something else together: whose fault, and whose severity with scope and action."""

    codes: frozenset[int]
    fault_of: int
    severity_of: int
    action_of: int


#: NVIDIA's catalogue, workflow for Xid 48: with 63 or 64 drain and reset; 94 says that it was contained to the
#: program; what 64 says of the repair is worse than the error that needed it.
COMBINATIONS: Final = (
    Combination(frozenset({48, 64}), 64, 64, 64),
    Combination(frozenset({48, 94}), 48, 94, 48),
)


def of_one_gpu(parts: Sequence[Finding]) -> Finding:
    """The fault is that of the most severe Xid, 45 and 154 aside; the last Xid 154 says severity and action."""
    faults = [part for part in parts if part.part is Part.FAULT] or list(parts[:1])
    own = [part for part in faults if part.evidence.get("xid") not in _SPEAK_OF_OTHERS] or faults
    chosen = max(own, key=lambda part: part.severity.rank)
    by_code = {part.evidence.get("xid"): part for part in reversed(own)}
    evidence: Evidence = {}
    severity = chosen.severity
    for rule in COMBINATIONS:
        if rule.codes <= by_code.keys() and chosen.evidence.get("xid") in rule.codes:
            chosen = by_code[rule.fault_of]
            severity = by_code[rule.severity_of].severity
            evidence["scope"] = by_code[rule.severity_of].evidence.get("scope")
            evidence["action"] = by_code[rule.action_of].evidence.get("action")
            break
    asked = [part for part in faults if part.evidence.get("recovery_action")]
    if asked:
        severity = asked[-1].severity
        evidence["action"] = asked[-1].evidence["action"]
    numbers = [number for part in parts if (number := part.evidence.get("recovery_action")) is not None]
    if numbers:
        evidence["recovery_action"] = numbers[-1]
    codes = list(dict.fromkeys(str(part.evidence["xid"]) for part in faults if "xid" in part.evidence))
    if len(codes) > 1:
        evidence["xids"] = ",".join(codes)
    made = replace(chosen, severity=severity, evidence={**chosen.evidence, **evidence})
    return filled(made, parts)


def of_torn_channels(parts: Sequence[Finding]) -> Finding:
    """One incident on several GPUs: the fault, the GPU and the number of its first cause.

    `roots` names each cause with the GPUs whose channels it took (`149@0000:dc:00,145@0000:ed:00/0000:ba:00`),
    `devices` all of them.
    """
    causes = [part.evidence.get("root_xid") for part in parts]
    first = next((code for code in _FIRST_CAUSES if code in causes), causes[0])
    made = filled(next(part for part in parts if part.evidence.get("root_xid") == first), parts)
    devices = list(dict.fromkeys(part.device for part in parts if part.device))
    if len(devices) < 2:
        return made
    roots: dict[object, dict[str, None]] = {first: {}}
    for part in parts:
        roots.setdefault(part.evidence.get("root_xid"), {})[part.device or "?"] = None
    named = ",".join(f"{code}@{'/'.join(where)}" for code, where in roots.items())
    return replace(made, evidence={**made.evidence, "roots": named[:300], "devices": ",".join(devices)[:300]})


#: Seconds: a GSP that hangs answers nothing for many calls in a row, and Xid 119 was seen 16 s after its 120.
FAMILIES: Final = (
    Family(XID, gap_s=30.0, conclude=of_one_gpu),
    Family(TORN, gap_s=60.0, any_device=True, conclude=of_torn_channels),
)
