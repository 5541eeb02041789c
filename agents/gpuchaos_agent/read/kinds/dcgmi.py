"""`dcgmi dmon`: a table of fields by card. `N/A` is a field that was never set or is not there, not a fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.read.base import Conclusion, Sample, lines

NAME: Final = "dcgmi"
SUMMARY: Final = "dcgmi dmon"

_HEADER: Final = re.compile(r"#\s?Entity((?:\s+[A-Z0-9]{2,12}){1,64})\s*\Z")
_ROW: Final = re.compile(r"(GPU|GPU-I|GPU-CI|NvSwitch|CPU) (\d{1,4})((?:\s+\S{1,32}){1,64})\s*\Z")


def likelihood(sample: Sample) -> float:
    """Sure where a header of fields and a row of an entity are there."""
    return 0.95 if any(map(_HEADER.match, sample.lines)) and any(map(_ROW.match, sample.lines)) else 0.0


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """One line a row: its values by the short names of the header above; those that are N/A are named apart."""
    fields: list[str] = []
    for text in lines(stream):
        if header := _HEADER.match(text):
            fields = header[1].split()
        elif row := _ROW.match(text):
            values = dict(zip(fields, row[3].split(), strict=False))
            unset = [name for name, value in values.items() if value == "N/A"]
            known = {name: value for name, value in values.items() if value != "N/A"}
            yield Conclusion(device=f"{row[1]}{row[2]}", details={**known, "not_available": ",".join(unset)})
