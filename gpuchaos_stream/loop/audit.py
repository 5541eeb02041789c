"""What the loop writes for others to read must stay readable: foreign records there are set aside, too."""

from __future__ import annotations

from collections.abc import Iterable

from gpuchaos_stream.events.envelope import BadMessageError, Record, from_value
from gpuchaos_stream.loop.deadletters import RawRecord, dead_letter
from gpuchaos_stream.observe import metrics


def audit(records: Iterable[RawRecord], *, source: str) -> list[Record]:
    """Dead letters for the records of output topics that are not of the contract."""
    out = []
    for raw in records:
        metrics.RECORDS.labels(raw.topic).inc()
        try:
            from_value(raw.topic, raw.value)
        except BadMessageError as error:
            out.append(dead_letter(raw, stage="audit", reason=str(error), source=source))
    return out
