"""Counters made rates, with resets understood: what the agent sends never has to be differentiated again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class Rates:
    """Remembers the last value of each counter and when it was read."""

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, float]] = {}

    def rate(self, key: Hashable, value: float | None, now: float) -> float | None:
        """Increments per second since the last read of `key`, `now` in seconds of any steady clock.

        None at the first read, after a gap in which it could not be read, when no time has passed, and when
        the value became smaller: that is a reset (reboot, driver reload), never a negative rate, and the new
        value is the next baseline.
        """
        last = self._last.get(key)
        if value is None:
            self._last.pop(key, None)
            return None
        self._last[key] = (value, now)
        if last is None:
            return None
        before, then = last
        if value < before or now <= then:
            return None
        return (value - before) / (now - then)

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Drops the baselines of devices that are gone, so that memory stays bounded."""
        for key in keys:
            self._last.pop(key, None)

    def keep(self, devices: Iterable[Hashable]) -> None:
        """Drops every key whose first part is not in `devices` (keys are tuples that begin with the device)."""
        alive = set(devices)
        self.forget([key for key in self._last if isinstance(key, tuple) and key[0] not in alive])
