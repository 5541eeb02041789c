"""`nvidia-smi -q`: what it says of ECC, remapped rows and recovery.

After an uncorrectable error the ECC mode may read `Unknown Error` and the counters `N/A` while the remapped rows are
still there: `N/A` is no zero, and the card needs a reset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.kernelfs import pci
from gpuchaos_agent.read.base import Conclusion, Sample, lines
from gpuchaos_agent.words.base import NONE
from gpuchaos_stream.events.base import Severity

NAME: Final = "smi-q"
SUMMARY: Final = "nvidia-smi -q"

_CARD: Final = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*\Z")
_PAIR: Final = re.compile(r"( *)(\S[^:\n]{0,80}?) *: (.{0,200})\Z")
_SECTION: Final = re.compile(r"( *)(\S[^:\n]{0,80}?)\s*\Z")

#: Path below the card → what a value there means. The first row that matches decides.
Judged = tuple[str, re.Pattern[str], str, Severity, str]
VERDICTS: Final[tuple[Judged, ...]] = (
    ("GPU Reset Status/Reset Required", re.compile("Yes"), "gpu_reset_required", Severity.CRITICAL, "reset_gpu"),
    (
        "Remapped Rows/Remapping Failure Occurred",
        re.compile("Yes"),
        "gpu_row_remap_failure",
        Severity.CRITICAL,
        "replace_gpu",
    ),
    ("ECC Mode/Current", re.compile("Unknown Error"), "gpu_needs_reset", Severity.ERROR, "reset_gpu"),
    ("Remapped Rows/Pending", re.compile("Yes"), "gpu_row_remap_pending", Severity.ERROR, "drain_then_reset"),
    ("GPU Recovery Action", re.compile(r"(?!None|N/A)\S"), "gpu_recovery_action", Severity.CRITICAL, "reset_gpu"),
    ("Fabric/State", re.compile("In Progress|Not Started"), "gpu_nvlink_training", Severity.WARNING, "investigate"),
)


def likelihood(sample: Sample) -> float:
    """Sure where a line is a card's header and lines below are indented pairs."""
    seen = sample.lines
    if not any(map(_CARD.match, seen)):
        return 0.0
    return 0.95 if sum(bool(_PAIR.match(line)) for line in seen) >= 3 else 0.4


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """One line a card: the first verdict of the table that holds, or that there is none."""
    card = ""
    path: list[tuple[int, str]] = []
    values: dict[str, str] = {}
    for line in lines(stream):
        if header := _CARD.match(line):
            if card:
                yield _judge(card, values)
            card, path, values = pci.normal(header[1]), [], {}
        elif pair := _PAIR.match(line):
            path = _below(path, len(pair[1]))
            values["/".join([*(name for _, name in path), pair[2]])] = pair[3].strip()
        elif section := _SECTION.match(line):
            path = [*_below(path, len(section[1])), (len(section[1]), section[2])]
    if card:
        yield _judge(card, values)


def _below(path: list[tuple[int, str]], indent: int) -> list[tuple[int, str]]:
    return [(at, name) for at, name in path if at < indent]


def _judge(card: str, values: dict[str, str]) -> Conclusion:
    counters = [value for name, value in values.items() if name.startswith("ECC Errors/")]
    details: Evidence = {}
    if values.get("ECC Mode/Current") == "Unknown Error" or (counters and set(counters) == {"N/A"}):
        details["ecc"] = "unreadable"
    pending = values.get("Remapped Rows/Pending")
    if pending in {"Yes", "No"}:
        details["remap_pending"] = pending == "Yes"
    for path, pattern, fault, severity, action in VERDICTS:
        if pattern.match(values.get(path, "")):
            details |= {"action": action, "because": f"{path}: {values[path]}"}
            return Conclusion(fault if fault in catalogue.fault_names() else NONE, severity, card, details)
    return Conclusion(device=card, details=details)
