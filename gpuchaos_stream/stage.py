"""What every stage of the control loop is: events in, conclusions out, time passed in, state that can be saved.

A stage has no clock, no socket, no randomness. Its state is a set of named JSON values; after each batch the
stream room saves the changed ones in a Faust table, and after a restart or a rebalance gives them back.
Feeding an event twice must change nothing: delivery is at least once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Stateful(Protocol):
    """State that survives. Keys begin with the stage's own prefix (`correlate/…`)."""

    def dirty(self) -> dict[str, bytes | None]:
        """What changed since the last call, as key → JSON, None for what is gone. Clears the marks."""

    def load(self, items: Mapping[str, bytes]) -> None:
        """Replaces the whole state by `items`, of which the stage reads only its own prefix."""
