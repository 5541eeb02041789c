"""One Faust event per partition and fetch, instead of one per record.

Faust pays about 0.1 ms of asyncio for each event it delivers, whatever is in it: 5 to 12 thousand a second.
Here an event's value is the list of raw aiokafka `ConsumerRecord`s that one fetch brought from one partition
(two to three hundred thousand records a second), and is acknowledged and committed as a whole. Changelog
topics are still delivered record by record, so that tables recover as ever.

Offsets are tracked by message and not by number. Faust keeps sorted lists of acknowledged offsets and of gaps,
which a second delivery of the same offsets confuses for good (faust-streaming #596, robinhood/faust #559).

Private interfaces of faust-streaming 0.15.3 are used; the version is pinned (docs/decisions).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Final

import faust
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from faust.types import TP, ConsumerMessage

from gpuchaos_stream.stream.embedded import end_offsets
from gpuchaos_stream.stream.producer import SafeProducer

#: Seconds that a fetch waits where there is nothing to read: what a seek may have to wait for (Faust has 1 s).
FETCH_WAIT_S: Final = 0.2


class BulkSchema(faust.Schema):  # type: ignore[misc]  # Faust has no types here
    """Leaves the value as it is: a list of raw records."""

    def compile(self, app: Any, **_: Any) -> Any:
        """The decoder that the topic calls once per batch."""
        create_event = app.create_event

        async def decode(message: Any, *, propagate: bool = False) -> Any:  # noqa: ARG001  (Faust's signature)
            return create_event(None, message.value, message.headers, message)

        return decode


class BulkConsumerThread(AIOKafkaConsumerThread):  # type: ignore[misc]
    """Goes back for certain, and asks for the ends of changelogs in the way that is right on every broker."""

    async def seek_to_committed(self) -> Mapping[TP, int | None]:
        """Sets each partition back to its committed offset, or to its beginning where nothing is committed.

        aiokafka leaves the latter where they stand, so that whatever was fetched and set aside during the
        first recoveries of a new group would never be seen again (measured: a worker killed twice before its
        first commit, in 2 of 2 runs).
        """
        offsets: Mapping[TP, int | None] = await self.call_thread(self._seek_to_committed)
        return offsets

    async def _seek_to_committed(self) -> Mapping[TP, int | None]:
        consumer = self._ensure_consumer()
        offsets: Mapping[TP, int | None] = await consumer.seek_to_committed()
        changelogs = self.app.tables.changelog_topics  # never committed; recovery places them
        fresh = [tp for tp, offset in offsets.items() if not offset and tp.topic not in changelogs]
        if fresh:
            for tp, offset in (await consumer.beginning_offsets(fresh)).items():
                consumer.seek(tp, offset)
        return offsets

    async def _highwaters(self, partitions: Iterable[TP]) -> Mapping[TP, int]:
        ends = await end_offsets(self._ensure_consumer(), partitions)
        return {TP(tp.topic, tp.partition): offset for tp, offset in ends.items()}


class _Unread(dict[Any, None]):
    """Faust's table of read offsets, always empty.

    The drain loop drops what lies below the offset it remembers, and it remembers a batch that it handed over
    *before* a seek even after it, so that what is read again would be dropped. `BulkConsumer` sees to the order.
    """

    def __getitem__(self, _: Any) -> None:
        return None


class BulkConsumer(Consumer):  # type: ignore[misc]
    """Delivers a fetch as one message and commits in the order of delivery.

    A fetch and a seek exclude each other, and what was fetched before a seek is never delivered after it: with
    Faust's own consumer a rebalance can deliver records from beyond the committed offset first.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._delivered: dict[TP, deque[ConsumerMessage]] = defaultdict(deque)
        self._fetching = asyncio.Lock()
        self._seeks = 0
        self._seeks_at_fetch = 0
        super().__init__(*args, **kwargs)
        self._read_offset = _Unread()

    def _new_consumer_thread(self) -> BulkConsumerThread:
        return BulkConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, ConsumerMessage]]:  # noqa: ASYNC109  (as above)
        """Yields what one fetch brought: a message per partition, or per record for changelogs."""
        records, active = await self._wait_next_records(timeout)
        if not records or self.should_stop:
            return
        if not self.flow_active:
            await self._seek_back()
            return
        generation = self.app.consumer_generation_id
        for tp, batch in records.items():
            # Stopped, rebalanced or set back since the fetch: all of it is read again afterwards.
            if not self.flow_active or self._seeks != self._seeks_at_fetch:
                return
            if self.app.consumer_generation_id != generation:
                return
            if not batch or not (active is None or tp in active or tp in self._buffered_partitions):
                continue
            self.app.monitor.track_tp_end_offset(tp, self.highwater(tp))
            if self._is_changelog_tp(tp):
                for record in batch:
                    yield tp, self._to_message(tp, record)
            else:
                message = self._to_bulk(tp, batch)
                self._delivered[tp].append(message)
                yield tp, message

    async def perform_seek(self) -> None:
        """Goes back to the committed offsets; what was delivered from there on will be delivered again."""
        self._seeks += 1  # what is being handed over ends here
        async with self._fetching:
            self._seeks += 1  # and so does what was fetched while this waited
            try:
                await super().perform_seek()
            finally:
                self._forget(self._delivered)

    def on_buffer_drop(self, tp: TP) -> None:
        """Resumes a partition whose queue has room again, unless it is paused for a rebalance."""
        if tp in self._paused_partitions:
            self._buffered_partitions.discard(tp)
        else:
            super().on_buffer_drop(tp)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Lets what is in hand be finished and committed, then forgets the partitions."""
        try:
            await super().on_partitions_revoked(revoked)
        finally:
            self._forget(revoked)

    def _reset_state(self) -> None:
        super()._reset_state()
        self._delivered.clear()

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Any:  # noqa: ASYNC109
        async with self._fetching:
            self._seeks_at_fetch = self._seeks
            return await super()._getmany(active_partitions, min(timeout, FETCH_WAIT_S))

    def _to_bulk(self, tp: TP, batch: list[Any]) -> ConsumerMessage:
        message = self._to_message(tp, batch[-1])
        message.value = batch
        return message

    async def _seek_back(self) -> None:
        try:
            await self.perform_seek()
        except Exception as error:  # noqa: BLE001  (as Faust: the seek is tried again when the flow resumes)
            self.log.warning("seek to committed offsets while stopped: %r", error)

    def _forget(self, partitions: Iterable[TP]) -> None:
        for tp in list(partitions):
            self._delivered.pop(tp, None)
            self._acked.pop(tp, None)
            self._acked_index.pop(tp, None)
            self._gap.pop(tp, None)

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Nothing: a batch stands for all offsets up to its last one."""

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        return (tp for tp in list(self._delivered) if topics is None or tp in topics or tp.topic in topics)

    def _new_offset(self, tp: TP) -> int | None:
        """The offset after the last of the leading batches that are done; None where the first is not."""
        delivered = self._delivered.get(tp)
        last: int | None = None
        while delivered and delivered[0].acked:
            last = delivered.popleft().offset
        self._acked.pop(tp, None)  # Faust's own lists, which only grow
        self._acked_index.pop(tp, None)
        return None if last is None else last + 1


class BulkTransport(Transport):  # type: ignore[misc]
    """Faust's aiokafka transport with the consumer and the producer above."""

    Consumer = BulkConsumer
    Producer = SafeProducer


def install_bulk(app: Any) -> None:
    """Makes `app` deliver in bulk. Call it right after `App(…)`, before any topic, table or agent."""
    app.transport = BulkTransport(app.conf.broker_consumer, app)


def bulk_topic(app: Any, *names: str) -> Any:
    """A channel on `names` whose events' values are lists of raw records; for an app with `install_bulk`."""
    return app.topic(*names, schema=BulkSchema())
