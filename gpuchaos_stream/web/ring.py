"""The events of a cluster's stream that were sent last, so that who was away for a moment gets what it missed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuchaos_stream.web import metrics

#: The most events and bytes that are kept.
MOST_EVENTS: Final = 2000
MOST_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sent:
    """One event of a stream: its number, its name and its JSON."""

    sequence: int
    name: str
    data: bytes

    def encoded(self, epoch: str) -> bytes:
        """As server-sent event. JSON has no line breaks, so one `data` line holds it."""
        return b"id: %s-%d\nevent: %s\ndata: %s\n\n" % (epoch.encode(), self.sequence, self.name.encode(), self.data)


class Ring:
    """The newest events, numbered from 1 on without gaps."""

    def __init__(self, most_events: int = MOST_EVENTS, most_bytes: int = MOST_BYTES) -> None:
        self.sequence = 0
        self._kept: deque[Sent] = deque()
        self._bytes = 0
        self._most_events = most_events
        self._most_bytes = most_bytes

    def add(self, name: str, data: bytes) -> Sent:
        """Numbers an event and keeps it; drops the oldest ones that are too many."""
        self.sequence += 1
        metrics.EVENTS.labels(event=name).inc()
        sent = Sent(self.sequence, name, data)
        self._kept.append(sent)
        self._bytes += len(data)
        while len(self._kept) > self._most_events or (self._bytes > self._most_bytes and len(self._kept) > 1):
            self._bytes -= len(self._kept.popleft().data)
        return sent

    def after(self, sequence: int) -> list[Sent] | None:
        """All events after `sequence`; None where some of them are gone, or where it has not been reached."""
        if sequence == self.sequence:
            return []
        if sequence > self.sequence or not self._kept or sequence < self._kept[0].sequence - 1:
            return None
        return list(self._from(sequence))

    def _from(self, sequence: int) -> Iterator[Sent]:
        begin = sequence + 1 - self._kept[0].sequence
        for number in range(begin, len(self._kept)):
            yield self._kept[number]
