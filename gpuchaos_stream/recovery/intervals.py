"""Intervals of time in which something held: sorted, disjoint, closed pairs of seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


class Runs:
    """The runs of good samples, from the first good one to the last, in samples given in order of time.

    A bad sample ends a run, and so does a gap of more than `max_gap` seconds: silence is not health.
    """

    __slots__ = ("_last", "_max_gap", "_open", "intervals")

    def __init__(self, max_gap: float) -> None:
        self.intervals: list[Interval] = []
        self._max_gap = max_gap
        self._open = False
        self._last = -math.inf

    def add(self, time: float, *, good: bool) -> None:
        """Takes the next sample."""
        self._last = time
        if not good:
            self._open = False
        elif self._open and time - self.intervals[-1][1] <= self._max_gap:
            self.intervals[-1] = (self.intervals[-1][0], time)
        else:
            self.intervals.append((time, time))
            self._open = True

    def stretched(self, tail: float) -> list[Interval]:
        """The runs, the last of them `tail` seconds longer where the last sample of all was good."""
        if not tail or not self._open:
            return self.intervals
        return [*self.intervals[:-1], (self.intervals[-1][0], self._last + tail)]


def both(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """The intersection."""
    out: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start <= end:
            out.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return out


def either(parts: Iterable[Sequence[Interval]]) -> list[Interval]:
    """The union; touching intervals become one."""
    out: list[Interval] = []
    for start, end in sorted(interval for part in parts for interval in part):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def covered(intervals: Sequence[Interval], start: float, end: float) -> float:
    """How many seconds of [start, end] the intervals cover."""
    return sum(max(0.0, min(right, end) - max(left, start)) for left, right in intervals)
