"""How log lines look: shares of a sample, for guessing which framing a log has."""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.read.base import Sample
from gpuchaos_agent.words import registry

#: Most lines that are looked at.
MOST: Final = 400


def share(sample: Sample, pattern: re.Pattern[str], *, joined: bool = True) -> float:
    """Which part of the sample's lines matches from its start; indented lines count with the line above if `joined`."""
    lines = sample.lines[:MOST]
    if joined:
        lines = [line for line in lines if not line.startswith(("   ", "\t"))]
    return sum(bool(pattern.match(line)) for line in lines) / len(lines) if lines else 0.0


def spoken(sample: Sample, writer: Writer) -> int:
    """How many lines say something if `writer` wrote them as they stand."""
    return sum(registry.read(LogRecord(line, writer=writer)) is not None for line in sample.lines[:MOST])
