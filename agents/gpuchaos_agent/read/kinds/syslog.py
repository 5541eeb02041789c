"""A file of a log daemon: BSD stamps (RFC 3164), ISO stamps (rsyslog), RFC 5424, and `journalctl` as text."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.logs.stream import records
from gpuchaos_agent.logs.syslog import SyslogFramer
from gpuchaos_agent.read import logs, shapes
from gpuchaos_agent.read.base import Conclusion, Sample

NAME: Final = "syslog"
SUMMARY: Final = "a log daemon's file"

_LINE: Final = re.compile(
    r"(?:<\d{1,3}>)?(?:"
    r"[A-Z][a-z]{2} [ \d]\d [\d:]{8}(?:\.\d{1,9})? +(?:\S{1,254} +)?[^\s:\[]{1,64}(?:\[\d{1,10}\])?: "
    r"|\d{4}-\d\d-\d\dT[\d:]{8}(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d) \S{1,254} [^\s:\[]{1,64}(?:\[\d{1,10}\])?: "
    r"|1 \d{4}-\d\d-\d\dT\S{1,64} \S{1,254} \S{1,64} \S{1,128} \S{1,32} )"
)


def likelihood(sample: Sample) -> float:
    """Sure by stamp, host and program before a colon."""
    return 0.95 * shapes.share(sample, _LINE)


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """What the kernel's lines say, and those of programs. A BSD stamp has no year: the last one that fits is taken."""
    framer = SyslogFramer(logs.all_hints(), reference=time.time())
    yield from logs.conclude(records(stream, framer), framer)
