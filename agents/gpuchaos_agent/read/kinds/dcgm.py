"""A DCGM exporter page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.dcgm import page
from gpuchaos_agent.read.base import LONGEST, Conclusion, Sample
from gpuchaos_agent.read.recording import shown
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.base import Severity

NAME: Final = "dcgm"
SUMMARY: Final = "a DCGM exporter page"

_SERIES: Final = re.compile(r"DCGM_(?:FI|EXP)_[A-Z0-9_]{3,60}(?:\{| )")
#: A page is a few hundred lines for each card.
_LARGEST: Final = 16 << 20


def likelihood(sample: Sample) -> float:
    """Sure where lines begin with DCGM's series."""
    lines = [line for line in sample.lines if not line.startswith("#")]
    return 0.95 if lines and sum(bool(_SERIES.match(line)) for line in lines) * 2 > len(lines) else 0.0


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """One line a card or instance, and one for each Xid that its page knows.

    The page holds only the last Xid and those of its window: what came between and before is not there, nor is
    79, 119 or 120 in old releases. Read the kernel log as well.

    Raises:
        UserError: it is no page of Prometheus' text format.
    """
    text = stream.read(_LARGEST).decode("utf-8", "replace")
    if max(map(len, text.splitlines()), default=0) > LONGEST:
        raise UserError("the page", "has a line that is too long for one", "save the answer of /metrics")
    try:
        cards = page.parse(text)
    except ValueError as error:
        problem = f"is not in Prometheus' text format: {shown(str(error)[:200])}"
        raise UserError("the page", problem, "save the answer of /metrics") from error
    for card in cards:
        codes = dict.fromkeys(card.xids, True) | ({card.last_xid: True} if card.last_xid else {})
        for code in codes:
            yield _xid(card, code)
        details = {
            "gpu_index": int(card.gpu) if card.gpu.isdecimal() else None,
            "uuid": card.uuid,
            "gpu_instance": int(card.instance) if card.instance.isdecimal() else None,
            "reasons": ",".join(card.reasons) or None,
            "dropped": card.dropped or None,
            **card.values,
        }
        if card.values or card.reasons:
            yield Conclusion(device=_device(card), details=details)


def _xid(card: page.Card, code: int) -> Conclusion:
    entry = catalogue.xids().get(code)
    fault = entry.fault if entry else "gpu_unknown_xid"
    severity = (entry.severity if entry else None) or Severity.WARNING
    return Conclusion(
        fault=fault,
        severity=severity,
        device=_device(card),
        details={
            "xid": code,
            "xid_name": entry.name if entry else None,
            "gpu_index": int(card.gpu) if card.gpu.isdecimal() else None,
            "count": card.xids.get(code),
            "window_ms": card.window_ms,
            "action": entry.action if entry else "investigate",
        },
    )


def _device(card: page.Card) -> str:
    name = card.pci or (f"GPU{card.gpu}" if card.gpu else "")
    return f"{name}/GI{card.instance}" if card.instance else name
