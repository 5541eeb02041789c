"""`journalctl -o export`: fields as lines, records between blank lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.logs.journal import ExportFramer
from gpuchaos_agent.logs.stream import records
from gpuchaos_agent.read import logs, shapes
from gpuchaos_agent.read.base import Conclusion, Sample

NAME: Final = "journal-export"
SUMMARY: Final = "journalctl -o export"

_CURSOR: Final = re.compile(r"__CURSOR=s=[0-9a-f]{32};")
_FIELD: Final = re.compile(r"[A-Z_][A-Z0-9_]{1,63}(?:=|\Z)")


def likelihood(sample: Sample) -> float:
    """Sure by a cursor in the first line and fields below."""
    return 0.97 * shapes.share(sample, _FIELD) if _CURSOR.match(sample.text) else 0.0


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """What the kernel's records say, and those of programs."""
    framer = ExportFramer(logs.all_hints())
    yield from logs.conclude(records(stream, framer), framer)
