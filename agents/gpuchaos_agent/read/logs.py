"""Logs of all framings to conclusions: the words and the story of the live agent, told at the end of each event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.logs.record import Framer, LogRecord, Writer
from gpuchaos_agent.read.base import Conclusion
from gpuchaos_agent.story.hear import hear
from gpuchaos_agent.story.story import Event, Story
from gpuchaos_agent.words import registry


def kernel_hints() -> frozenset[str]:
    """Literals of which a text must hold one to say anything as the kernel's."""
    return registry.hints(Writer.KERNEL)


def all_hints() -> frozenset[str]:
    """The same for a log that holds the lines of programs as well."""
    return registry.hints(Writer.KERNEL) | registry.hints(Writer.PROGRAM)


def conclude(records: Iterable[LogRecord], framer: Framer | None = None) -> Iterator[Conclusion]:
    """One conclusion an event, in the order in which they end; at last what is missing, and what `framer`
    could not read.

    Memory holds the events that are open, no more. A log without stamps has no gaps: what its lines say is one
    event as long as they are of one family and device.
    """
    story = Story()
    for number, record in enumerate(records):
        heard = hear(record)
        if heard is None:
            continue
        time = time_of(record)
        story.tell(heard.finding, key=str(number), time=time, writer=record.writer, injected_mark=heard.injected_mark)
        yield from map(_conclusion, story.ended(time))
    yield from map(_conclusion, story.close())
    if framer is not None and framer.lost:
        yield Conclusion(details={"says": f"{framer.lost} records are missing from this log", "lost": framer.lost})
    if framer is not None and framer.bad:
        yield Conclusion(details={"says": f"{framer.bad} lines could not be read", "unreadable": framer.bad})


def time_of(record: LogRecord) -> float | None:
    """Seconds: since the epoch where the log says, else since the boot."""
    if record.time is not None:
        return record.time
    return None if record.usec is None else record.usec / 1e6


def _conclusion(event: Event) -> Conclusion:
    finding = event.finding
    evidence: Evidence = dict(finding.evidence)
    if event.count > 1:
        evidence["lines"] = event.count
    if event.first is not None:
        evidence["time"] = event.first
    return Conclusion(finding.fault, finding.severity, finding.device, evidence)
