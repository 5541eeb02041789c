"""A program's own log: lines as they are, or wrapped by a container's runtime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.logs.application import Application
from gpuchaos_agent.logs.record import Writer
from gpuchaos_agent.logs.stream import records
from gpuchaos_agent.read import logs, shapes
from gpuchaos_agent.read.base import Conclusion, Sample
from gpuchaos_agent.words import registry

NAME: Final = "app"
SUMMARY: Final = "a program's log"

#: What any text is at least: nothing else may know it.
_ANY: Final = 0.06


def likelihood(sample: Sample) -> float:
    """By lines that say something as a program's; any text is a program's log if it is nothing else."""
    return max(_ANY, 0.62 if shapes.spoken(sample, Writer.PROGRAM) else 0.0)


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """What the program says of faults."""
    yield from logs.conclude(records(stream, Application(hints=registry.hints(Writer.PROGRAM))))
