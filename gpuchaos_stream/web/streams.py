"""Server-sent events: to each reader what it has not seen, and nothing kept for one that does not read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gpuchaos_stream.web import metrics
from gpuchaos_stream.web.board import Board
from gpuchaos_stream.web.cluster import ClusterBoard
from gpuchaos_stream.web.problems import ProblemError

#: Seconds between two words about freshness, which also keep a quiet connection alive.
PULSE_S: Final = 2.0
#: Seconds between two comments, for whoever goes by them.
HEARTBEAT_S: Final = 15.0
#: Seconds that a reader may leave an event lying.
SEND_S: Final = 20.0
#: The most events that one write hands over.
_MOST_EVENTS: Final = 200

Clock = Callable[[], float]

_log = structlog.get_logger(__name__)


class Streams:
    """All open streams of a server; at most `most` at a time."""

    def __init__(self, board: Board, clock: Clock, *, most: int = 200) -> None:
        self._board = board
        self._clock = clock
        self._most = most
        self._waiting: dict[asyncio.Event, str] = {}
        self.closed = False

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._waiting)

    def wake(self, cluster: ClusterBoard) -> None:
        """There is something new of `cluster`."""
        for event, name in self._waiting.items():
            if name == cluster.cluster:
                event.set()

    def close(self) -> None:
        """Ends all streams: the server stops."""
        self.closed = True
        for event in self._waiting:
            event.set()

    def open(self, cluster: ClusterBoard, last_id: str | None) -> EventStream:
        """A stream of `cluster`, which goes on after `last_id` where that is possible.

        Raises:
            ProblemError: too many are open.
        """
        if self.closed:
            raise ProblemError(503, "this server is stopping", retry_after="5")
        if len(self._waiting) >= self._most:
            raise ProblemError(
                503,
                f"{self._most} streams are open, the most that there may be",
                fix="try again later",
                retry_after="5",
            )
        wake = asyncio.Event()
        self._waiting[wake] = cluster.cluster
        metrics.STREAMS.set(len(self._waiting))
        return EventStream(self._events(cluster, last_id, wake), lambda: self._ended(wake))

    def _ended(self, wake: asyncio.Event) -> None:
        self._waiting.pop(wake, None)
        metrics.STREAMS.set(len(self._waiting))

    async def _events(self, cluster: ClusterBoard, last_id: str | None, wake: asyncio.Event) -> AsyncIterator[bytes]:
        position, first = self._begin(cluster, last_id)
        yield first
        pulsed = beaten = self._clock()
        while not self.closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), PULSE_S)
            wake.clear()
            missed = cluster.ring.after(position)
            if missed is None:
                metrics.DROPPED.inc()
                return
            parts = [event.encoded(self._board.epoch) for event in missed[:_MOST_EVENTS]]
            position += len(parts)
            if len(parts) < len(missed):
                wake.set()
            now = self._clock()
            if now - beaten >= HEARTBEAT_S:
                beaten = now
                parts.append(b": still here\n\n")
            if now - pulsed >= PULSE_S or not parts:
                pulsed = now
                parts.append(self._pulse(cluster, position, now))
            yield b"".join(parts)

    def _begin(self, cluster: ClusterBoard, last_id: str | None) -> tuple[int, bytes]:
        """Where the stream goes on, and what comes first: what was missed, or a whole snapshot."""
        epoch, _, number = (last_id or "").rpartition("-")
        if epoch == self._board.epoch and number.isascii() and number.isdecimal() and len(number) < 16:
            missed = cluster.ring.after(int(number))
            if missed is not None:
                parts = [event.encoded(epoch) for event in missed]
                parts.append(self._pulse(cluster, cluster.ring.sequence, self._clock()))
                return cluster.ring.sequence, b"retry: 1000\n\n" + b"".join(parts)
        snapshot = self._board.snapshot(cluster, self._clock())
        position = cluster.ring.sequence
        head = f"retry: 1000\nid: {self._board.epoch}-{position}\nevent: snapshot\ndata: ".encode()
        return position, head + snapshot + b"\n\n"

    def _pulse(self, cluster: ClusterBoard, position: int, now: float) -> bytes:
        fresh = cluster.freshness(now).model_dump_json()
        return f"id: {self._board.epoch}-{position}\nevent: pulse\ndata: {fresh}\n\n".encode()


class EventStream(Response):
    """Sends `events` until they end, the reader leaves, or it leaves a write lying for `SEND_S`; then calls `ended`."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  (ASGI's signature)
        """Answers."""
        sending = asyncio.create_task(self._send(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when="FIRST_COMPLETED")
        except asyncio.CancelledError:
            # The server ends, and this reader does not read: that is no fault to be logged with its stack.
            _log.info("a reader that did not read was left at the end")
        finally:
            self._ended()
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait({sending, leaving})
            await self._events.aclose()  # type: ignore[attr-defined]
        if not sending.cancelled() and (error := sending.exception()) is not None:
            if not isinstance(error, TimeoutError | OSError):
                raise error
            metrics.DROPPED.inc()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for chunk in self._events:
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    message: Any = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
