"""From an event to the fact that the agent sends."""

from __future__ import annotations

from typing import Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Evidence, Fact
from gpuchaos_agent.logs.record import Writer
from gpuchaos_agent.story.story import Event
from gpuchaos_stream.events.fault import Origin

_ORIGINS: Final = {
    Writer.KERNEL: Origin.KERNEL,
    Writer.INJECTED: Origin.PROCESS,
    Writer.PROGRAM: Origin.APPLICATION,
}


def fact_of(event: Event, *, key: str, time: float, more: Evidence | None = None) -> Fact:
    """The fact of one telling. `key` and `time` are those of the record that made `Story.tell` say it.

    Evidence is the conclusion's with `advice` (what to do, a sentence), `device` where the record names one,
    `opened` (the first record's key, where this is a later telling, with `since`, its time), and `more`. What was
    cleared has no advice.
    """
    finding = event.finding
    evidence: Evidence = {**finding.evidence, **(more or {})}
    if finding.device:
        evidence.setdefault("device", finding.device)
    advice = catalogue.advice(str(evidence.get("action") or ""))
    if advice and not evidence.get("cleared"):
        evidence["advice"] = advice
    if event.key != key:
        evidence["opened"] = event.key
        evidence["since"] = event.first
    return Fact(
        key=key,
        fault=finding.fault,
        severity=finding.severity,
        time=time,
        kind=finding.kind,
        local=finding.local,
        origin=_ORIGINS[event.writer],
        injected_mark=event.injected_mark,
        evidence=evidence,
    )
