"""Which commands the control plane has carried out: a second record with one's nonce is a replay.

A record that is delivered again after a crash is none: it comes from the same place of the same partition, and
its repeat changes nothing. A nonce is forgotten when its command has expired and would be refused for that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.command import Command
from gpuchaos_stream.events.signing import CLOCK_TOLERANCE_S, Refusal, RefusedError

_PREFIX: Final = "heard/"


class Heard:
    """The commands of one cluster (`Stateful`, prefix `heard/`). Times are event time, epoch seconds."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[str, float]] = {}  # nonce's digest → place, end
        self._dirty: set[str] = set()

    def hear(self, command: Command, place: str) -> None:
        """Remembers a believed command from `place` (`partition/offset`).

        Raises:
            RefusedError: its nonce was heard from another place.
        """
        key = stable_id(command.nonce)
        known = self._heard.get(key)
        if known is None:
            self._heard[key] = (place, command.expires + CLOCK_TOLERANCE_S)
            self._dirty.add(key)
        elif known[0] != place:
            raise RefusedError(Refusal.REPLAYED, f"command {command.id} was carried out before")

    def forget(self, now: float) -> None:
        """Drops what has expired by `now`."""
        for key in [key for key, (_, end) in self._heard.items() if end < now]:
            del self._heard[key]
            self._dirty.add(key)

    def dirty(self) -> dict[str, bytes | None]:
        """See `stage.Stateful`."""
        out = {
            _PREFIX + key: json.dumps(self._heard[key]).encode() if key in self._heard else None
            for key in sorted(self._dirty)
        }
        self._dirty.clear()
        return out

    def load(self, items: Mapping[str, bytes]) -> None:
        """See `stage.Stateful`."""
        self._dirty.clear()
        self._heard = {
            key.removeprefix(_PREFIX): (str(place), float(end))
            for key, value in items.items()
            if key.startswith(_PREFIX)
            for place, end in [json.loads(value)]
        }
