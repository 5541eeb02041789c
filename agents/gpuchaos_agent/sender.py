"""What empties the outbox onto the bus: fault events in order and until they are acknowledged, telemetry as it goes."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from gpuchaos_agent import clock
from gpuchaos_agent.clock import BrokerOffset, Now
from gpuchaos_agent.outbox import Ring, Spool
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.envelope import Record
from gpuchaos_stream.observe.logs import Sparingly
from gpuchaos_stream.stream.bus import Ack, Bus, BusClosedError

_log = structlog.get_logger(__name__)

#: Frames handed to the bus and not acknowledged, at most; the rest waits in the ring, where the oldest can go.
_UNDER_WAY: Final = 32
_BATCH: Final = 100
_RETRY_S: Final = 1.0


class Sender:
    """Two tasks of one loop. `wake_faults` and `wake_frames` tell that there is something new."""

    def __init__(self, bus: Bus, ring: Ring, spool: Spool, offset: BrokerOffset) -> None:
        self._bus = bus
        self._ring = ring
        self._spool = spool
        self._offset = offset
        self._faults = asyncio.Event()
        self._frames = asyncio.Event()
        self._under_way = 0
        self._worth_saying = Sparingly()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins; what an earlier run left in the spool goes first."""
        self._faults.set()
        self._tasks = [
            asyncio.create_task(self._send_faults(), name="send-faults"),
            asyncio.create_task(self._send_frames(), name="send-frames"),
        ]

    async def stop(self) -> None:
        """Ends at once; what is not acknowledged stays in the spool."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def wake_faults(self) -> None:
        """Something was put into the spool. From the loop's own thread."""
        self._faults.set()

    def wake_frames(self) -> None:
        """Something was put into the ring. From the loop's own thread."""
        self._frames.set()

    async def drained(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` until every fault event is acknowledged; whether it is so."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._spool.peek(1):
                    self._faults.set()
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return False
        return True

    async def _send_faults(self) -> None:
        while True:
            await self._faults.wait()
            self._faults.clear()
            while batch := self._spool.peek(_BATCH):
                if not await self._send_batch(batch):
                    await asyncio.sleep(_RETRY_S)

    async def _send_batch(self, batch: list[Record]) -> bool:
        sent = clock.now()
        futures = [self._bus.send_nowait(record) for record in batch]
        try:
            for number, future in enumerate(futures):
                try:
                    self._learn(sent, await future)
                except (UserError, BusClosedError) as error:
                    if self._worth_saying(str(error)):
                        _log.error("fault event refused by the broker", error=str(error), left=len(batch) - number)
                    return False
                self._spool.ack(1)
        finally:
            for future in futures:
                future.cancel()
        return True

    async def _send_frames(self) -> None:
        while True:
            await self._frames.wait()
            self._frames.clear()
            while self._under_way < _UNDER_WAY and (record := self._ring.pop()) is not None:
                sent = clock.now()
                self._under_way += 1
                self._bus.send_nowait(record).add_done_callback(lambda f, s=sent: self._frame_done(s, f))  # type: ignore[misc]

    def _frame_done(self, sent: Now, future: asyncio.Future[Ack]) -> None:
        self._under_way -= 1
        self._frames.set()
        if future.cancelled() or future.exception() is not None:
            self._ring.dropped += 1
        else:
            self._learn(sent, future.result())

    def _learn(self, sent: Now, ack: Ack) -> None:
        if ack.broker_time is not None:
            self._offset.add(sent, clock.now(), ack.broker_time)
