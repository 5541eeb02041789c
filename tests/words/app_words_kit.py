"""Lines of a program's log, as what they come to."""

from __future__ import annotations

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.story.hear import hear
from gpuchaos_agent.story.story import Event, Story
from gpuchaos_agent.words.base import Finding


def finding(text: str) -> Finding | None:
    """What one line says through all words."""
    heard = hear(LogRecord(text, writer=Writer.PROGRAM))
    return None if heard is None else heard.finding


def events(*texts: str, apart_s: float = 0.01) -> list[Event]:
    """The events that the lines come to, in the order in which they opened; details alone are none."""
    story = Story()
    for number, text in enumerate(texts):
        found = finding(text)
        if found is not None:
            story.tell(found, key=str(number), time=1000.0 + number * apart_s, writer=Writer.PROGRAM)
    return sorted((event for event in story.close() if event.count), key=lambda event: int(event.key))


def one(*texts: str, apart_s: float = 0.01) -> Finding:
    """The conclusion of the one event that the lines are."""
    (event,) = events(*texts, apart_s=apart_s)
    return event.finding


def said(text: str) -> str:
    """The name of the fault that a line says, `none` where it says nothing."""
    found = finding(text)
    return "none" if found is None else found.fault
