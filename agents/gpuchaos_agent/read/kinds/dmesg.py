"""What dmesg prints, in all its ways, or the bare texts that people paste."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.logs.dmesg import DmesgFramer
from gpuchaos_agent.logs.record import Writer
from gpuchaos_agent.logs.stream import records
from gpuchaos_agent.read import logs, shapes
from gpuchaos_agent.read.base import Conclusion, Sample

NAME: Final = "dmesg"
SUMMARY: Final = "a kernel log as dmesg prints it"

_STAMPED: Final = re.compile(
    r"(?:<\d{1,3}>|[a-z]{3,8} {0,8}:[a-z]{3,6} {0,8}: ?)?"
    r"(?:\[ {0,12}\d{1,12}\.\d{6}(?: <[^>]{1,24}>)?\]|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4}\]"
    r"|\d{4}-\d\d-\d\dT[\d:]{8},\d{6}[+-]|\[[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d\]|\[ {0,12}\+\d{1,10}\.\d{6}\])"
)
_KERNEL: Final = re.compile(r"(?:\S{1,254} )?kernel: |\S{1,254} \S{1,64}\[\d{1,10}\]: ")


def likelihood(sample: Sample) -> float:
    """Sure by dmesg's stamps; without any, by lines that say something as the kernel's and not as a program's."""
    stamped, named = shapes.share(sample, _STAMPED), shapes.share(sample, _KERNEL)
    spoken = shapes.spoken(sample, Writer.KERNEL) > shapes.spoken(sample, Writer.PROGRAM)
    return max(0.9 * stamped, 0.8 * named, 0.6 if spoken else 0.0)


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """What the records say; times are since the boot where the stamps are."""
    framer = DmesgFramer(logs.all_hints())
    yield from logs.conclude(records(stream, framer), framer)
