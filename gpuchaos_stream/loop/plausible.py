"""Times that cannot be: milliseconds taken for seconds, infinities, a clock that is off by more than a day.

They are well formed, and once inside they do harm for good: a place from the year 33,000 is never replaced, a
state that holds an infinity cannot be read back after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from gpuchaos_stream.events.observation import CellSummary

#: How far ahead of its append at the broker an event's time may lie, seconds. Skew is reported, not refused; a
#: clock that is off by more than a day says nothing of when something was.
AHEAD_S: Final = 86_400.0


def implausible(event: Any, now: float) -> str:
    """Which time of `event` cannot be, appended at `now` (broker's clock, epoch seconds); empty if each can."""
    for name, time in _times(event):
        if not 0.0 <= time <= now + AHEAD_S:  # not a number is in no order with anything
            return f"{name}: {time:g} is no time in epoch seconds, or more than a day ahead of the broker's clock"
    return ""


def _times(event: Any) -> Iterator[tuple[str, float]]:
    """The times that stages reckon with; where an event knows its node's offset, that is taken into account."""
    yield "time", getattr(event, "event_time", event.time)
    for name in ("start", "end"):
        time = getattr(event, name, None)
        if time is not None:
            yield name, time
    if isinstance(event, CellSummary):
        for node, seen in event.nodes.items():
            yield f"nodes.{node}.last", seen.last
