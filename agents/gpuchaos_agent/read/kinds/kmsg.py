"""Records of /dev/kmsg, as `cat /dev/kmsg` gives them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.logs.kmsg import KmsgFramer
from gpuchaos_agent.logs.stream import records
from gpuchaos_agent.read import logs, shapes
from gpuchaos_agent.read.base import Conclusion, Sample

NAME: Final = "kmsg"
SUMMARY: Final = "records of /dev/kmsg"

_RECORD: Final = re.compile(r"\d{1,10},\d{1,20},\d{1,20},[^;]{1,200};| [A-Z_]{2,32}=")


def likelihood(sample: Sample) -> float:
    """Sure by the four fields before a semicolon, and the tags below."""
    return 0.99 * shapes.share(sample, _RECORD, joined=False)


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """What the records say; those of processes are told as such."""
    framer = KmsgFramer(logs.kernel_hints())
    yield from logs.conclude(records(stream, framer), framer)
