"""What several findings of one event come to, where their family has no rule of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.words.base import Finding, Part


def conclude(parts: Sequence[Finding]) -> Finding:
    """The most severe fault, the earliest among equals; what it does not know is filled from the other parts.

    Without any fault it is what clears, else the first part. A last part that clears makes `cleared` true and
    changes nothing else.
    """
    faults = [part for part in parts if part.part is Part.FAULT]
    clears = [part for part in parts if part.part is Part.CLEAR]
    return filled(max(faults or clears or parts[:1], key=lambda part: part.severity.rank), parts)


def filled(chosen: Finding, parts: Sequence[Finding]) -> Finding:
    """`chosen` with the evidence, the device and the entity that it lacks, each from the first part that has it."""
    evidence: Evidence = dict(chosen.evidence)
    device, kind, local = chosen.device, chosen.kind, chosen.local
    for part in parts:
        for name, value in part.evidence.items():
            if value is not None and evidence.get(name) is None:
                evidence[name] = value
        device = device or part.device
        if not local and part.local:
            kind, local = part.kind, part.local
    if parts and parts[-1].part is Part.CLEAR:
        evidence["cleared"] = True
    return replace(chosen, evidence=evidence, device=device, kind=kind, local=local)
