"""What a recording can be, and what reading one concludes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final, Protocol

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.words.base import NONE
from gpuchaos_stream.events.base import Severity

#: How much of a recording is looked at to guess what it is, bytes.
HEAD: Final = 64 * 1024
#: Longest line of a table, bytes: what is longer comes in pieces.
LONGEST: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Conclusion:
    """One thing that a recording says: a fault, or with `fault` "none" what is there and well.

    `device` is empty where the recording does not name one. `details` are named as evidence is
    (`story/story.py`); a list is written with commas.
    """

    fault: str = NONE
    severity: Severity = Severity.INFO
    device: str = ""
    details: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a recording, for guessing what it is: at most `HEAD` bytes, cut at a line's end."""

    name: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Lines that are not blank, without ANSI escapes."""
        return [line for line in self.text.splitlines() if line.strip()]


class Kind(Protocol):
    """A module of `kinds`. NAME is what `--kind` takes; SUMMARY says in a few words what it is."""

    NAME: str
    SUMMARY: str

    def likelihood(self, sample: Sample) -> float:
        """How sure it is, from what the sample shows, that it is of this kind: 0 (not) to 1 (no other looks so)."""

    def conclude(self, stream: BinaryIO) -> Iterator[Conclusion]:
        """What it says, as it is read; memory does not grow with the file."""


def lines(stream: BinaryIO) -> Iterator[str]:
    """The lines of a table of any size, without their ends."""
    while line := stream.readline(LONGEST):
        yield line.decode("utf-8", "replace").rstrip("\r\n")
