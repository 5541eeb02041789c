"""What was before: records of the recent past, read on the side when a partition comes to this worker.

Detectors hold windows that are rebuilt from Kafka. A partition that has just come (a start, a rebalance) is read
back for as long as a baseline needs, up to where the worker goes on, and what was open is taken over.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyPhase
from gpuchaos_stream.events.envelope import BadMessageError, from_value, partition_for
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.observe import logs
from gpuchaos_stream.stream.embedded import end_offsets
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options

#: How far back an anomaly may have been opened and still be open, seconds: longer ones the detector calls normal.
OPEN_S: Final = 900.0
#: Milliseconds that one fetch may take; an answer without records ends the reading.
_FETCH_MS: Final = 2000
_FETCH_BYTES: Final = 4 * 1024 * 1024

log = logs.logger(__name__)


@dataclass(frozen=True, slots=True)
class Past:
    """What a partition's detector needs to go on: its records, anomalies that were open, and faults of the time."""

    records: tuple[Any, ...] = ()
    still_open: tuple[Anomaly, ...] = ()
    faults: tuple[FaultEvent, ...] = ()


async def telemetry_before(settings: KafkaSettings, first: Any, seconds: float) -> Past:
    """The past of the partition whose next record is `first`: `seconds` of it, and more where something was open.

    A baseline that begins within an anomaly would take it for normal, so the records begin before the oldest open
    one. A broker that cannot be asked gives nothing: the detector then begins with empty windows.
    """
    if first.offset == 0:
        return Past()  # the first record that the partition ever had
    now = first.timestamp / 1000
    consumer: Any = AIOKafkaConsumer(
        **aiokafka_options(settings),
        group_id=None,
        enable_auto_commit=False,
        max_partition_fetch_bytes=_FETCH_BYTES,
        # Other requests wait on the same connection for as long as a fetch that finds nothing.
        fetch_max_wait_ms=10,
    )
    try:
        await consumer.start()
        cluster = await consumer._client.fetch_all_metadata()  # noqa: SLF001  (no public call lists partitions)
        count = len(cluster.partitions_for_topic(first.topic))
        latest: dict[str, Anomaly] = {}
        for anomaly in await _events(consumer, cluster, topics.ANOMALIES, now - OPEN_S):
            if anomaly.cell is not None and partition_for(anomaly.cell, count) == first.partition:
                latest[anomaly.anomaly_id] = anomaly
        still_open = tuple(each for each in latest.values() if each.phase is not AnomalyPhase.CLOSED)
        faults = tuple(await _events(consumer, cluster, topics.FAULTS, now - OPEN_S))
        since = min([now, *(each.start for each in still_open)]) - seconds
        here = TopicPartition(first.topic, first.partition)
        records = tuple(await _read(consumer, here, first.offset, max(since, now - OPEN_S)))
    except (KafkaError, OSError) as error:
        log.warning("the past could not be read back", partition=first.partition, error=str(error))
        return Past()
    finally:
        await consumer.stop()
    return Past(records, still_open, faults)


async def _read(consumer: Any, partition: TopicPartition, until: int, since: float) -> list[Any]:
    """Records from `since` (broker time, epoch seconds) up to the offset `until`, exclusive."""
    consumer.assign([partition])
    found = (await consumer.offsets_for_times({partition: int(since * 1000)})).get(partition)
    begin = (await consumer.beginning_offsets([partition]))[partition]
    first = until if found is None else max(begin, found.offset)
    records: list[Any] = []
    if first < until:
        consumer.seek(partition, first)
    while first < until and (not records or records[-1].offset < until - 1):
        batch = (await consumer.getmany(partition, timeout_ms=_FETCH_MS)).get(partition)
        if not batch:
            break
        records += batch
    return [record for record in records if record.offset < until]


async def _events(consumer: Any, cluster: Any, topic: topics.Topic, since: float) -> list[Any]:
    """The readable events of `topic` since then, in order of arrival per partition."""
    everywhere = [TopicPartition(topic.name, number) for number in sorted(cluster.partitions_for_topic(topic.name))]
    found = []
    for partition, end in (await end_offsets(consumer, everywhere)).items():
        for raw in await _read(consumer, partition, end, since):
            # What is not of the contract the control stage sets aside.
            with contextlib.suppress(BadMessageError):
                found.append(from_value(topic.name, raw.value))
    return found
