"""Floods: one fault printed a thousand times is one fact and a count (800,000 Xid 95 on one node were seen)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

#: A repeat within this many seconds of the last one let through is held back. Xid 13 prints four lines within
#: a millisecond and nvlink training repeats every 4 s; a halt must not wait for longer.
WINDOW_S: Final = 5.0
#: How many different things are remembered at most.
MOST: Final = 1024


class Repeats:
    """Lets the first of each key through, then one per window, and counts what it held back."""

    def __init__(self, window_s: float = WINDOW_S, most: int = MOST) -> None:
        self._window = window_s
        self._most = most
        self._seen: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        self.held_back = 0

    def passes(self, key: Hashable, time: float) -> int | None:
        """None to hold this one back, else how many of `key` were held back before it. `time` is the record's."""
        seen = self._seen.get(key)
        if seen is not None and abs(time - seen[0]) < self._window:
            self._seen[key] = (seen[0], seen[1] + 1)
            self.held_back += 1
            return None
        self._seen[key] = (time, 0)
        self._seen.move_to_end(key)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)
        return seen[1] if seen is not None else 0
