"""The broker's clock, as far as this process can know it: the newest append time, and what has passed since."""

from __future__ import annotations

import time
from collections.abc import Callable


class BrokerClock:
    """Never goes back. Before the first record it is this machine's own clock.

    `wall` and `monotonic` are seconds; they are arguments so that a test can move them.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._seen: tuple[float, float] | None = None
        self._heard = monotonic()
        self._last = 0.0

    def observe(self, timestamp_ms: int) -> None:
        """A record was appended at `timestamp_ms`, milliseconds since the epoch."""
        at = timestamp_ms / 1000
        self._heard = self._monotonic()
        if self._seen is None or at > self._seen[0] + (self._monotonic() - self._seen[1]):
            self._seen = (at, self._monotonic())

    def unheard(self) -> float:
        """Seconds for which no record was observed."""
        return self._monotonic() - self._heard

    def now(self) -> float:
        """Epoch seconds on the broker's clock."""
        at = self._wall() if self._seen is None else self._seen[0] + (self._monotonic() - self._seen[1])
        self._last = max(self._last, at)
        return self._last
