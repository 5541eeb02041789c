"""Recordings of any size as records, in flat memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.logs.record import Framer, LogRecord

_CHUNK: Final = 256 * 1024


def records(file: BinaryIO, framer: Framer) -> Iterator[LogRecord]:
    """Every record of `file`, as it is read.

    Raises:
        OSError: it cannot be read on.
    """
    while data := file.read(_CHUNK):
        yield from framer.feed(data)
    yield from framer.flush()
