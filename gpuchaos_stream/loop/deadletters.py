"""Dead letters: what could not be read is set aside with the reason, never dropped and never in the way."""

from __future__ import annotations

import base64
from typing import Final, Protocol

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.deadletter import DeadLetter
from gpuchaos_stream.events.envelope import Record, to_record
from gpuchaos_stream.observe import metrics

#: A dead letter carries at most this many bytes of the original; the rest can be read at its offset.
MOST_BYTES: Final = 64 * 1024


class RawRecord(Protocol):
    """What is used of a consumed record."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


def dead_letter(raw: RawRecord, *, stage: str, reason: str, source: str) -> Record:
    """The record to send for `raw`. Its id is made of topic, partition and offset: a replay makes the same."""
    metrics.DEADLETTERS.labels(raw.topic, stage).inc()
    value = raw.value or b""
    letter = DeadLetter(
        id=stable_id("deadletter", raw.topic, raw.partition, raw.offset, stage),
        time=max(0.0, raw.timestamp / 1000),
        cluster="-",
        topic=raw.topic,
        partition=raw.partition,
        offset=raw.offset,
        stage=stage,
        reason=reason[:2000],
        key=raw.key.decode("utf-8", "replace")[:200] if raw.key else None,
        value=base64.b64encode(value[:MOST_BYTES]).decode(),
        truncated=len(value) > MOST_BYTES,
    )
    return to_record(letter, topics.DEADLETTER, source=source)
