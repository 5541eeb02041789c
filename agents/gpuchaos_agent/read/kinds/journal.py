"""`journalctl -o json`: one object a record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.logs.journal import JournalFramer
from gpuchaos_agent.logs.stream import records
from gpuchaos_agent.read import logs
from gpuchaos_agent.read.base import Conclusion, Sample

NAME: Final = "journal"
SUMMARY: Final = "journalctl -o json"


def likelihood(sample: Sample) -> float:
    """As sure as lines are objects with a MESSAGE and one of the journal's own fields."""
    lines = sample.lines[:20]
    return 0.98 * sum(map(_is_record, lines)) / len(lines) if lines else 0.0


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """What the kernel's records say, and those of programs."""
    framer = JournalFramer(logs.all_hints())
    yield from logs.conclude(records(stream, framer), framer)


def _is_record(line: str) -> bool:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(entry, dict) and "MESSAGE" in entry and bool({"__REALTIME_TIMESTAMP", "_TRANSPORT"} & entry.keys())
    )
