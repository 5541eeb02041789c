"""What one message says to whoever is on call, whichever tool shows it.

Always in this order: what was injected, what broke with it, what is not explained, what was halted, whether the undo is
confirmed, what to do. Texts come from nodes and people, so they are cut and stripped of control characters here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from pydantic import Field

from gpuchaos_stream.events.base import Severity, Timestamp, Wire

#: Longest title and line, characters, and most lines of a section: with six sections a message stays below 20 kB,
#: which Standard Webhooks asks for.
TITLE: Final = 200
LINE: Final = 300
LINES: Final = 8


class Kind(StrEnum):
    """What a message is about an alert; a notice is of something that needs no answer."""

    OPENED = "opened"
    UPDATED = "updated"
    RESOLVED = "resolved"
    NOTICE = "notice"


class Part(StrEnum):
    """The parts of a message, in their order."""

    INJECTED = "Injected"
    BROKE = "Broke with it"
    UNEXPLAINED = "Not explained"
    HALTED = "Halted"
    UNDO = "Undo"
    DO = "What to do"


class Section(Wire):
    """One part and its lines; never without a line, so that silence is never read as good news."""

    part: Part
    lines: tuple[str, ...] = Field(min_length=1)

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)


class Message(Wire):
    """One message about one alert or notice.

    `id` is the same for the same state after any restart. `key` is what receivers deduplicate by: equal for opening,
    updates and resolve of one alert. `was` is the severity that the last message named, where it has changed.
    `starts` and `ends` are event time, epoch seconds; `ends` is None while it lasts.
    """

    id: str
    key: str
    kind: Kind
    name: str
    severity: Severity
    was: Severity | None = None
    title: str
    sections: tuple[Section, ...]
    labels: dict[str, str]
    cluster: str
    experiment_id: str | None = None
    starts: Timestamp
    ends: Timestamp | None = None
    link: str | None = None

    @property
    def firing(self) -> bool:
        """Whether what it tells of still lasts."""
        return self.kind in (Kind.OPENED, Kind.UPDATED)

    @property
    def description(self) -> str:
        """All parts as plain text."""
        return "\n".join(f"{section.part}: {section.text}" for section in self.sections)


def clean(text: str, limit: int = LINE) -> str:
    """`text` on one line without control characters, at most `limit` characters."""
    flat = " ".join(
        "".join(" " if c.isspace() else c for c in text if c.isspace() or unicodedata.category(c)[0] != "C").split()
    )
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def section(part: Part, lines: Iterable[str], otherwise: str) -> Section:
    """`lines` cleaned and bounded, with how many are left out; `otherwise` where there are none."""
    found = [clean(line) for line in lines]
    shown = found[:LINES] if len(found) <= LINES else [*found[: LINES - 1], f"+{len(found) - LINES + 1} more"]
    return Section(part=part, lines=tuple(shown) or (otherwise,))
