"""How fast a count rises: over a window that is longer than a tick and shorter than a breach takes to matter."""

from __future__ import annotations

from collections import deque
from typing import Final

#: Rates are taken over this long, seconds.
WINDOW_S: Final = 5.0


class Rate:
    """A count that was seen at times. A count that falls (resumed from a checkpoint) begins anew."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window = window_s
        self._samples: deque[tuple[float, float]] = deque()

    def see(self, now: float, count: float) -> None:
        """The count as it stands at `now`, seconds."""
        if self._samples and (count < self._samples[-1][1] or now < self._samples[-1][0]):
            self._samples.clear()
        self._samples.append((now, count))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window:
            self._samples.popleft()

    def per_second(self) -> float | None:
        """Counts a second over the window; None before two readings."""
        if len(self._samples) < 2:
            return None
        (then, before), (now, count) = self._samples[0], self._samples[-1]
        return (count - before) / (now - then) if now > then else None
