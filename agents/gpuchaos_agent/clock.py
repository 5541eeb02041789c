"""Clocks: this node's two, and how far its wall clock is from the broker's.

Experiments are timed on one clock, the broker's. Each acknowledged record brings the broker's append time;
against the midpoint of sending and acknowledgement that is a sample of the offset, wrong by at most half the
round trip (Cristian 1989). The median of the last samples is told in every frame.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: A wall clock that moved this much against the boot-time clock between two samples was set, seconds.
STEP_S: Final = 0.05
#: A sample is kept while its round trip is no longer than this, seconds: it may be wrong by half of it.
LONGEST_ROUND_TRIP_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Now:
    """One instant on both clocks, seconds: `wall` since the epoch, `boot` since the boot, suspend included.

    Leases run on `boot`: nobody sets it, and a suspended node's lease runs out.
    """

    wall: float
    boot: float


def now() -> Now:
    """The instant of the call."""
    return Now(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))


def boot_id(procfs: Path = Path("/proc")) -> str:
    """The kernel's id of this boot, `unknown` where it tells none."""
    try:
        return (procfs / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


class BrokerOffset:
    """What to add to this node's wall clock to get the broker's; None until `least` samples are there."""

    def __init__(self, *, size: int = 31, least: int = 3) -> None:
        self._samples: deque[float] = deque(maxlen=size)
        self._least = least
        self._wall_minus_boot: float | None = None

    def add(self, sent: Now, acked: Now, broker_time: float) -> None:
        """One acknowledged record: when it was sent and acknowledged here, when the broker appended it."""
        difference = acked.wall - acked.boot
        if self._wall_minus_boot is not None and abs(difference - self._wall_minus_boot) > STEP_S:
            self._samples.clear()
        self._wall_minus_boot = difference
        round_trip = acked.boot - sent.boot
        if 0 <= round_trip <= LONGEST_ROUND_TRIP_S and abs((sent.wall - sent.boot) - difference) <= STEP_S:
            self._samples.append(broker_time - (acked.wall - round_trip / 2))

    @property
    def seconds(self) -> float | None:
        """The offset, seconds."""
        if len(self._samples) < self._least:
            return None
        return statistics.median(self._samples)
