"""Our own mark, and records in the hardware's words that a process wrote without it.

This module reads no text by itself: `story/hear.py` asks it about records that a process wrote to the kernel log.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import Family, Finding, Part
from gpuchaos_stream.events.base import Severity

HINTS: tuple[str, ...] = ()
WRITERS = frozenset({Writer.INJECTED})
#: One event for each device that somebody claims something of, however often and in whichever words.
FAMILIES = (Family("spoof", gap_s=60.0),)

#: Name of the fault of a record in the hardware's words that a process wrote.
SPOOF: Final = "spoof_or_injected"

#: What `memory-corruption` puts at the end of the records that it writes.
_MARK: Final = re.compile(r" gpuchaos-injected=(?P<fault_id>[A-Za-z0-9._-]{1,64})\s{0,4}\Z")
#: No mark is longer, characters.
_LONGEST: Final = 128
#: A process may sign its record (`eco-test: `, `tool[12]: `); hardware's words must follow at once, so that a
#: monitor that quotes a record inside its own log line does not make one.
_TAG: Final = re.compile(r"[A-Za-z0-9_.-]{1,32}(?:\[\d{1,10}\])?: ")


def read(record: LogRecord) -> Finding | None:
    """Nothing: a mark alone says nothing of a fault."""
    del record
    return None


def without_mark(text: str) -> tuple[str, str | None]:
    """The text before our mark, and the id of the fault in it; the whole text and None where there is none."""
    mark = _MARK.search(text[-_LONGEST:])
    if mark is None:
        return text, None
    return text[: len(text) - len(mark[0])], mark["fault_id"]


def without_tag(text: str) -> str | None:
    """The text behind the tag that a process signed with, None where it did not."""
    tag = _TAG.match(text)
    return None if tag is None else text[tag.end() :]


def spoof(finding: Finding, *, facility: int | None) -> Finding:
    """What a record that a process wrote comes to: not its fault, but that somebody claims it.

    Always a warning: what only informs opens no anomaly, and a process that speaks in the hardware's words must
    be seen. What it claims is in `claims`, `claims_severity` and the other evidence.
    """
    evidence: Evidence = {
        **finding.evidence,
        "claims": finding.fault,
        "claims_severity": finding.severity.value,
        "action": "find_writer",
    }
    if facility is not None:
        evidence["facility"] = facility
    made = replace(finding, fault=SPOOF, severity=Severity.WARNING, evidence=evidence)
    return replace(made, family="spoof", part=Part.FAULT)
