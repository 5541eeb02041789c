"""A page as data: what HTML and Markdown are both written from, so that they say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: How a value is meant: it also has a word or a sign, since not everybody sees colours, and paper has none.
Tone = Literal["good", "bad", "warn", "plain"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table. `share` (0..1 and more) is drawn as a bar where it is given: 1 is the limit."""

    text: str
    tone: Tone = "plain"
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Words:
    """One paragraph."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a caption. The first cell of a row is its heading."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: `svg` for those who see it, `lines` for every other reader. `title` names it for both."""

    title: str
    svg: str
    lines: tuple[str, ...]


Block = Heading | Words | Table | Picture


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page. `badge` is the verdict in a word, `lead` the sentence that says it all."""

    title: str
    badge: Cell
    lead: str
    blocks: tuple[Block, ...]


def row(*values: str | Cell) -> tuple[Cell, ...]:
    """A row of a table."""
    return tuple(value if isinstance(value, Cell) else Cell(value) for value in values)
