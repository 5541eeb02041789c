"""Faust's producer, so that an offset is never committed before the table changes that belong to it are stored.

Faust's flush gives up after 0.1 s without progress, so under a slow or paused broker the commit overtakes the
changelog, and a kill then loses state. A send that fails for good is only counted by Faust; here it ends the
worker, which starts again from the last commit.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from faust.sensors.base import Sensor
from faust.transport.drivers.aiokafka import Producer
from faust.transport.producer import ProducerBuffer

#: Unsent messages at which delivery to the agents pauses. Faust's 100 is less than one batch changes keys.
UNSENT_MESSAGES: Final = 10_000

#: Seconds between two looks at a buffer that is being emptied.
_LOOK_S: Final = 0.005


class SafeBuffer(ProducerBuffer):  # type: ignore[misc]  # Faust has no types here
    """Counts a message as its own until the producer has taken it."""

    max_messages = UNSENT_MESSAGES

    def __post_init__(self) -> None:
        super().__post_init__()
        self._taken = 0

    async def _send_pending(self, fut: Any) -> None:
        self._taken += 1
        try:
            await super()._send_pending(fut)
        finally:
            self._taken -= 1

    @property
    def size(self) -> int:
        """Messages that the producer has not taken."""
        waiting: int = super().size
        return waiting + self._taken


class SafeProducer(Producer):  # type: ignore[misc]
    """Flushes completely."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.buffer = SafeBuffer(loop=self.loop, beacon=self.beacon)
        self.buffer.app = self.app

    async def flush(self) -> None:
        """Returns when the broker has acknowledged, or refused, all that was sent before."""
        while self.buffer.size and not self.buffer.should_stop:  # noqa: ASYNC110  (Faust's event is set once, not at the end)
            await asyncio.sleep(_LOOK_S)
        await super().flush()


class CrashOnSendError(Sensor):  # type: ignore[misc]
    """Ends the worker when a message could not be sent, before its source offset is committed."""

    def __init__(self, app: Any) -> None:
        super().__init__()
        self._app = app
        self._crashes: set[asyncio.Task[None]] = set()

    def on_send_error(self, producer: Any, exc: BaseException, state: Any) -> None:  # noqa: ARG002  (Faust's signature)
        """Called by Faust for each failed message."""
        crash = asyncio.get_running_loop().create_task(self._app.crash(exc))
        self._crashes.add(crash)
        crash.add_done_callback(self._crashes.discard)
