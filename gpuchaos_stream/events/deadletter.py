"""What could not be read, and why: a bad message stops nothing and is never lost."""

from __future__ import annotations

from gpuchaos_stream.events.base import Event


class DeadLetter(Event):
    """A record that was set aside. `value` is its bytes in base64, cut at 64 KiB (`truncated`)."""

    topic: str
    partition: int
    offset: int
    stage: str
    reason: str
    key: str | None = None
    value: str
    truncated: bool = False
