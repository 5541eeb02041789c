"""Kafka without Faust, for the node agent, the command line and the simulator: send, read, survive its absence.

Sending is at least once: a record whose acknowledgement did not come is sent again, so readers go by event ids.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.envelope import Record, partition_for
from gpuchaos_stream.observe.logs import Sparingly
from gpuchaos_stream.stream.reader import Start, Subscription, open_subscription
from gpuchaos_stream.stream.refusals import FORBIDDEN, forbidden, unseen, why_not
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options

#: Seconds without an answer after which a request is given up and sent again on a new connection.
REQUEST_TIMEOUT_S: Final = 15.0
#: Bytes that one request may carry per partition: a cell's summary alone nearly fills aiokafka's default of 16 KiB.
BATCH_BYTES: Final = 262_144
#: Seconds between two attempts to reach a broker that is away.
RETRY_S: Final = 0.5
#: Seconds that a broker which answers may not know a topic before the record is refused.
TOPIC_TIMEOUT_S: Final = 5.0

#: What reading raises while no broker answers; for those who must not know Kafka's own errors.
BROKER_AWAY: Final = (KafkaError, OSError)

_log = structlog.get_logger(__name__)


class BusClosedError(RuntimeError):
    """The bus was stopped before the broker had acknowledged the record: it may or may not have arrived."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The broker has the record.

    `broker_time` is when it was appended, in epoch seconds on the broker's clock; None where the broker does
    not stamp (the embedded one), so that no one measures a clock against itself.
    """

    topic: str
    partition: int
    offset: int
    broker_time: float | None


@dataclass(slots=True, eq=False)
class _Item:
    record: Record
    future: asyncio.Future[Ack]
    tries: int = field(default=0)


class Bus:
    """One connection to send on and any number of readers. Use within one running loop.

    Records leave in the order in which they were given; after a failure, those of a broken batch are sent
    again before newer ones. While no broker answers they wait in memory: `pending` says how many, and
    cancelling a record's future takes it back unless it is already under way.
    """

    def __init__(self, settings: KafkaSettings, *, client_id: str = "gpuchaos", linger_s: float = 0.005) -> None:
        self._settings = settings
        self._client_id = client_id
        self._linger_ms = max(0, round(linger_s * 1000))
        self._queue: deque[_Item] = deque()
        self._again: deque[_Item] = deque()
        self._in_flight: set[_Item] = set()
        self._more = asyncio.Event()
        self._connected = asyncio.Event()
        self._partitions: dict[str, int] = {}
        self._producer: Any = None
        self._pump_task: asyncio.Task[None] | None = None
        self._patient = True
        self._worth_saying = Sparingly()
        self.failed = 0

    async def start(self, connect_timeout_s: float | None = 15.0) -> None:
        """Begins to connect. Waits for it up to `connect_timeout_s`; None: not at all, the bus keeps trying.

        Raises:
            UserError: no broker answered in time, or one does not let us in; the bus is stopped.
        """
        if self._pump_task is not None:
            raise RuntimeError("the bus is started")
        self._patient = connect_timeout_s is None
        self._pump_task = asyncio.create_task(self._pump(), name="bus")
        if connect_timeout_s is None:
            return
        waiting = asyncio.create_task(self._connected.wait())
        await asyncio.wait({waiting, self._pump_task}, timeout=connect_timeout_s, return_when="FIRST_COMPLETED")
        waiting.cancel()
        if self._pump_task.done():
            await self._pump_task
        if not self._connected.is_set():
            await self.stop(0)
            refusal = await why_not(self._settings)
            raise refusal.error(f"no Kafka broker answers after {connect_timeout_s:g} s{_if_default(self._settings)}; ")

    async def stop(self, flush_timeout_s: float = 5.0) -> None:
        """Waits up to `flush_timeout_s` for what is pending, then fails the rest with `BusClosedError`."""
        with contextlib.suppress(TimeoutError):
            await self.flush(flush_timeout_s)
        if self._pump_task is not None:
            self._pump_task.cancel()
            await asyncio.wait({self._pump_task})
            self._pump_task = None
        for item in [*self._again, *self._queue, *self._in_flight]:
            if not item.future.done():
                item.future.set_exception(BusClosedError(f"not acknowledged: {item.record.topic.name}"))
        self._queue.clear()
        self._again.clear()
        producer, self._producer = self._producer, None
        if producer is not None:
            # Its own stop waits for records that no broker may ever take.
            with contextlib.suppress(TimeoutError, KafkaError):
                await asyncio.wait_for(producer.stop(), timeout=1.0)

    @property
    def pending(self) -> int:
        """Records that the broker has not acknowledged."""
        return len(self._queue) + len(self._again) + len(self._in_flight)

    @property
    def connected(self) -> bool:
        """Whether a broker has ever answered. One that went away later shows as growing `pending`."""
        return self._connected.is_set()

    async def send(self, record: Record) -> Ack:
        """Sends `record` and returns when the broker has it, however long that takes; cancel to give up.

        Raises:
            UserError: the topic does not exist, we may not write it, or the record is larger than the broker takes.
            BusClosedError: the bus was stopped meanwhile.
        """
        return await self.send_nowait(record)

    def send_nowait(self, record: Record) -> asyncio.Future[Ack]:
        """Queues `record` and returns its future, which fails as `send` does; a failure is logged and counted."""
        item = _Item(record, asyncio.get_running_loop().create_future())
        item.future.add_done_callback(self._note_failure)
        self._queue.append(item)
        self._more.set()
        return item.future

    async def flush(self, timeout_s: float | None = None) -> None:
        """Returns when nothing is pending.

        Raises:
            TimeoutError: something still is after `timeout_s`.
        """
        async with asyncio.timeout(timeout_s):
            while self.pending:
                futures = [item.future for item in [*self._again, *self._queue, *self._in_flight]]
                if all(future.done() for future in futures):
                    await asyncio.sleep(0.001)  # taken back; the pump is about to drop them
                else:
                    await asyncio.wait([future for future in futures if not future.done()])

    async def subscribe(self, topics: Iterable[str], start: Start = "latest") -> Subscription:
        """Reads all partitions of `topics` without a group; positions are fixed when this returns.

        `start` is "earliest", "latest" (what is appended after this call), or an offset per partition, where a
        partition that is not named is read from its beginning. Waits while no broker answers.

        Raises:
            UserError: a topic that does not exist.
        """
        return await open_subscription(self._settings, tuple(topics), start, client_id=self._client_id)

    async def consume(self, topics: Iterable[str], start: Start = "latest") -> AsyncIterator[Any]:
        """The records (aiokafka's `ConsumerRecord`) of `subscribe`, for ever; positions are fixed at the first."""
        async with await self.subscribe(topics, start) as subscription:
            async for record in subscription:
                yield record

    async def snapshot(self, topics: Iterable[str]) -> list[Any]:
        """All records that `topics` hold now, oldest first per partition. For small, compacted topics."""
        async with await self.subscribe(topics, "earliest") as subscription:
            return await subscription.read_to_end()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _pump(self) -> None:
        self._producer = await self._connect()
        self._connected.set()
        while True:
            item = await self._next()
            self._in_flight.add(item)
            try:
                await self._hand_over(item)
            except BaseException:
                self._in_flight.discard(item)
                if not item.future.done():
                    self._again.appendleft(item)
                raise

    async def _next(self) -> _Item:
        while True:
            for queue in (self._again, self._queue):
                while queue:
                    item = queue.popleft()
                    if not item.future.done():
                        return item
            self._more.clear()
            await self._more.wait()

    async def _connect(self) -> Any:
        while True:
            producer = AIOKafkaProducer(
                **aiokafka_options(self._settings),
                client_id=self._client_id,
                acks="all",
                linger_ms=self._linger_ms,
                request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
                max_batch_size=BATCH_BYTES,
            )
            try:
                await producer.start()
            except (KafkaError, OSError):
                await producer.stop()
                refusal = await why_not(self._settings)
                if refusal.lasting and not self._patient:
                    raise refusal.error() from None
                if self._patient and self._worth_saying(refusal.problem):
                    _log.warning("no broker yet", **refusal.said())
                await asyncio.sleep(RETRY_S)
            except BaseException:
                await producer.stop()
                raise
            else:
                return producer

    async def _hand_over(self, item: _Item) -> None:
        """Gives one record to the producer; on its failure the record goes to `_again` or its future fails."""
        record = item.record
        while not item.future.done():
            try:
                partitions = await self._partition_count(record.topic.name)
                sent = await self._producer.send(
                    record.topic.name,
                    value=record.value,
                    key=record.key.encode(),
                    partition=partition_for(record.partition_by, partitions),
                    headers=record.headers,
                )
            except (KafkaError, UserError, AssertionError, ValueError) as error:
                if not _is_passing(error):
                    self._fail(item, error)
                    break
                await asyncio.sleep(RETRY_S)
            else:
                sent.add_done_callback(self._settled(item))
                return
        self._in_flight.discard(item)

    def _settled(self, item: _Item) -> Callable[[Any], None]:
        def settle(sent: Any) -> None:
            self._in_flight.discard(item)
            error = KafkaConnectionError("cancelled") if sent.cancelled() else sent.exception()
            if error is None:
                if not item.future.done():
                    item.future.set_result(_ack(sent.result()))
            elif _is_passing(error):
                item.tries += 1
                self._again.append(item)
                self._more.set()
            else:
                self._fail(item, error)

        return settle

    async def _partition_count(self, topic: str) -> int:
        known = self._partitions.get(topic)
        if known is None:
            try:
                known = len(await asyncio.wait_for(self._producer.partitions_for(topic), TOPIC_TIMEOUT_S))
            except (TimeoutError, UnknownTopicOrPartitionError) as error:
                if not await _answers(self._producer.client.force_metadata_update()):
                    raise KafkaConnectionError("no broker answers") from error
                raise unseen(self._settings, topic) from error
            self._partitions[topic] = known
        return known

    def _fail(self, item: _Item, error: BaseException) -> None:
        if isinstance(error, (MessageSizeTooLargeError, RecordTooLargeError)):
            size = len(item.record.value)
            error = UserError(f"topic {item.record.topic.name}", f"a record of {size} bytes is larger than it takes")
        elif isinstance(error, FORBIDDEN):
            error = forbidden(self._settings, f"topic {item.record.topic.name}", "write it")
        if not item.future.done():
            item.future.set_exception(error)

    def _note_failure(self, future: asyncio.Future[Ack]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self.failed += 1
            if self._worth_saying(str(error)):
                _log.warning("record not sent", error=str(error), so_far=self.failed)


def _if_default(settings: KafkaSettings) -> str:
    if "bootstrap_servers" in settings.model_fields_set:
        return ""
    return " (the default; set KAFKA_BOOTSTRAP_SERVERS, or run the export lines that `gpuchaos dev` printed)"


def _ack(metadata: Any) -> Ack:
    stamped = metadata.timestamp_type == 1  # 0 is the sender's own time
    return Ack(metadata.topic, metadata.partition, metadata.offset, metadata.timestamp / 1000 if stamped else None)


def _is_passing(error: BaseException) -> bool:
    """Whether sending again later can help: the broker is away, moving, or too slow."""
    return isinstance(error, KafkaTimeoutError) or (isinstance(error, KafkaError) and bool(error.retriable))


async def _answers(update: Awaitable[bool]) -> bool:
    try:
        return bool(await asyncio.wait_for(update, TOPIC_TIMEOUT_S))
    except (TimeoutError, KafkaError):
        return False
