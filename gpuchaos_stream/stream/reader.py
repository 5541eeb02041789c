"""Reading whole topics without a consumer group: every partition, from a position that is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Literal, Self

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from gpuchaos_stream.observe.logs import Sparingly
from gpuchaos_stream.stream.embedded import end_offsets
from gpuchaos_stream.stream.refusals import FORBIDDEN, forbidden, unseen, why_not
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options

#: Where to begin: all that is kept, what comes from now on, or an offset per partition.
Start = Literal["earliest", "latest"] | Mapping[TopicPartition, int]

#: Seconds between two attempts to reach a broker that is away.
RETRY_S: Final = 0.5
#: How long the broker may hold back an answer while there is nothing, milliseconds. A record is answered at once;
#: only a reader that has nothing to read pays for asking again, and there is one on every node.
_FETCH_WAIT_MS: Final = 3000
#: Bytes per partition of one fetch.
_FETCH_BYTES: Final = 4 * 1024 * 1024

_log = structlog.get_logger(__name__)


class Subscription:
    """An endless async iterator of aiokafka `ConsumerRecord`s. Goes on by itself when the broker comes back."""

    def __init__(self, settings: KafkaSettings, consumer: Any, ends: Mapping[TopicPartition, int]) -> None:
        self._settings = settings
        self._consumer = consumer
        self.ends = dict(ends)

    async def batch(self, timeout_s: float = 1.0, limit: int | None = None) -> list[Any]:
        """What has arrived, in order per partition; waits up to `timeout_s` for a first record.

        Raises:
            UserError: a topic that may be seen and not read.
        """
        try:
            fetched = await self._consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=limit)
        except FORBIDDEN as error:
            topics = ", ".join(sorted({tp.topic for tp in self.ends}))
            raise forbidden(self._settings, f"topic {topics}", "read it") from error
        return [record for records in fetched.values() for record in records]

    async def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next record of each partition: a `start` that continues exactly here."""
        return {tp: await self._consumer.position(tp) for tp in self.ends}

    async def read_to_end(self) -> list[Any]:
        """All records up to `ends`, which is where the topics ended when this was opened."""
        records: list[Any] = []
        waiting = {tp for tp, end in self.ends.items() if await self._consumer.position(tp) < end}
        while waiting:
            for record in await self.batch(0.2):
                if record.offset < self.ends[TopicPartition(record.topic, record.partition)]:
                    records.append(record)  # noqa: PERF401  (each batch is awaited)
            waiting = {tp for tp in waiting if await self._consumer.position(tp) < self.ends[tp]}
        return records

    async def stop(self) -> None:
        """Leaves the broker."""
        await self._consumer.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            for record in await self.batch():
                yield record


async def open_subscription(
    settings: KafkaSettings, topics: tuple[str, ...], start: Start, *, client_id: str
) -> Subscription:
    """Opens a reader whose positions are fixed when this returns. Waits while no broker answers.

    Raises:
        UserError: a topic that does not exist.
    """
    worth_saying = Sparingly()
    while True:
        consumer = AIOKafkaConsumer(
            **aiokafka_options(settings),
            client_id=client_id,
            group_id=None,
            enable_auto_commit=False,
            # Only used when a position has expired or the broker came back empty: rather twice than never.
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=_FETCH_BYTES,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            # How often the fetcher looks for partitions without being told; ours are fixed.
            consumer_timeout_ms=_FETCH_WAIT_MS,
        )
        try:
            await consumer.start()
            return await _position(settings, consumer, topics, start)
        except (KafkaError, OSError):
            await consumer.stop()
            refusal = await why_not(settings)
            if worth_saying(refusal.problem):
                _log.warning("no broker yet", **refusal.said())
            await asyncio.sleep(RETRY_S)
        except BaseException:
            await consumer.stop()
            raise


async def _position(settings: KafkaSettings, consumer: Any, topics: tuple[str, ...], start: Start) -> Subscription:
    # All topics are listed, none is asked for by name: that would make it on some brokers.
    cluster = await consumer._client.fetch_all_metadata()  # noqa: SLF001  (`topics()` makes no partitions known)
    partitions: list[TopicPartition] = []
    for topic in topics:
        known = cluster.partitions_for_topic(topic)
        if not known:
            raise unseen(settings, topic)
        partitions += [TopicPartition(topic, number) for number in sorted(known)]
    # Before the assignment: once it fetches, other requests wait on the same connection for an empty fetch's 0.5 s.
    ends = await end_offsets(consumer, partitions)
    begins = {
        TopicPartition(tp.topic, tp.partition): offset
        for tp, offset in (await consumer.beginning_offsets(partitions)).items()
    }
    consumer.assign(partitions)
    for tp in partitions:
        consumer.seek(tp, _first(tp, start, begins, ends))
    return Subscription(settings, consumer, ends)


def _first(
    tp: TopicPartition, start: Start, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> int:
    if start == "earliest":
        return begins[tp]
    if start == "latest":
        return ends[tp]
    return max(start.get(tp, begins[tp]), begins[tp])
