"""What the tests of the kernel's speakers share: a line in, what it says or what a few of them come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.story.story import Event, Story
from gpuchaos_agent.words import registry
from gpuchaos_agent.words.base import NONE, Finding, Part
from gpuchaos_agent.words.table import Rule


def said(text: str, *, writer: Writer = Writer.KERNEL, tag: str = "") -> Finding | None:
    """As the agent reads it: past the hints, by whichever speaker understands it."""
    return registry.read(LogRecord(text=text, writer=writer, tag=tag))


def fault(text: str) -> Finding:
    """The fault that the line states; fails where it states none."""
    finding = said(text)
    assert finding is not None, text
    assert finding.part is Part.FAULT, text
    assert finding.fault != NONE, text
    return finding


def events(lines: Iterable[str | tuple[float, str] | LogRecord]) -> list[Event]:
    """What the lines come to, without what says nothing. A line may have its time, in seconds."""
    story = Story()
    for number, line in enumerate(lines):
        time, record = _record(line)
        finding = registry.read(record)
        if finding is not None:
            story.tell(finding, key=str(number), time=time, writer=record.writer)
    return [event for event in story.close() if event.finding.fault != NONE]


def one(lines: Iterable[str | tuple[float, str] | LogRecord]) -> Finding:
    """The conclusion of lines that are one event."""
    (event,) = events(lines)
    return event.finding


def _record(line: str | tuple[float, str] | LogRecord) -> tuple[float | None, LogRecord]:
    if isinstance(line, LogRecord):
        return line.time, line
    if isinstance(line, str):
        return None, LogRecord(text=line)
    return line[0], LogRecord(text=line[1], time=line[0])


def agrees(finding: Finding, wanted: dict[str, Any]) -> None:
    """Every wanted value is there: `device`, `local`, `kind`, `severity`, or evidence."""
    for name, value in wanted.items():
        found = getattr(finding, name) if name in {"device", "kind", "severity"} else finding.evidence.get(name)
        assert found == value, (name, found, value)


def without_example(rules: Sequence[Rule], texts: Iterable[str]) -> list[str]:
    """Rules that are the first to match none of the texts: not tested, or hidden behind another."""
    seen = set()
    for text in texts:
        seen.add(next((number for number, rule in enumerate(rules) if rule.text.match(text)), None))
    return [rule.text.pattern for number, rule in enumerate(rules) if number not in seen]
