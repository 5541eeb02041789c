"""The bus on a real broker: order, partitions, positions, and a broker that goes away."""

from __future__ import annotations

import asyncio
import time

import pytest
import structlog
from aiokafka import TopicPartition
from structlog.testing import capture_logs

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.envelope import Record, partition_for
from gpuchaos_stream.events.topics import Topic
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.bus import Bus, BusClosedError
from gpuchaos_stream.stream.settings import KafkaSettings

pytestmark = pytest.mark.broker


def record(cluster: str, number: int, topic: Topic = topics.FAULTS) -> Record:
    return Record(topic, key=cluster, partition_by=cluster, value=b"%d" % number, headers=[("ce_id", b"%d" % number)])


async def read(bus: Bus, cluster: str, count: int, topic: Topic = topics.FAULTS, within_s: float = 20) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(within_s), await bus.subscribe([topic.name], "earliest") as subscription:
        while len(found) < count:
            found += [int(item.value) for item in await subscription.batch(0.5) if item.key == cluster.encode()]
    return found


async def test_records_of_one_cluster_arrive_in_order_with_key_and_headers(broker: RunningBroker, unique: str) -> None:
    async with Bus(broker.settings) as bus:
        futures = [bus.send_nowait(record(unique, number)) for number in range(500)]
        acks = await asyncio.gather(*futures)
        assert [ack.offset for ack in acks] == sorted(ack.offset for ack in acks)
        assert {ack.partition for ack in acks} == {partition_for(unique, 4)}
        assert await read(bus, unique, 500) == list(range(500))
        assert bus.pending == 0
        found = [one for one in await bus.snapshot([topics.FAULTS.name]) if one.key == unique.encode()]
        assert found[7].headers == (("ce_id", b"7"),)


async def test_the_broker_stamps_what_it_appends_unless_it_is_the_embedded_one(
    broker: RunningBroker, unique: str
) -> None:
    async with Bus(broker.settings) as bus:
        before = time.time()
        ack = await bus.send(record(unique, 1))
        after = time.time()
    if broker.kind == "kafka":
        assert ack.broker_time is not None
        assert before - 0.002 <= ack.broker_time <= after
    else:
        assert ack.broker_time is None


async def test_latest_means_after_the_call_even_behind_a_batch_of_many(broker: RunningBroker, unique: str) -> None:
    async with Bus(broker.settings, linger_s=0.05) as bus:
        await asyncio.gather(*(bus.send_nowait(record(unique, number)) for number in range(9)))
        async with await bus.subscribe([topics.FAULTS.name], "latest") as subscription:
            await bus.send(record(unique, 9))
            async with asyncio.timeout(10):
                async for one in subscription:
                    assert (one.key, one.value) == (unique.encode(), b"9")
                    break


async def test_reading_goes_on_exactly_where_positions_said(broker: RunningBroker, unique: str) -> None:
    async with Bus(broker.settings) as bus:
        await asyncio.gather(*(bus.send_nowait(record(unique, number)) for number in range(20)))
        async with await bus.subscribe([topics.FAULTS.name], "earliest") as first:
            await first.batch(5, limit=7)
            positions = await first.positions()
        async with await bus.subscribe([topics.FAULTS.name], positions) as second:
            rest = await second.read_to_end()
        ends = second.ends
        assert len(rest) == sum(ends[tp] - positions[tp] for tp in ends)
        assert all(one.offset >= positions[TopicPartition(one.topic, one.partition)] for one in rest)


async def test_a_snapshot_of_an_empty_topic_is_empty_at_once(own_broker: RunningBroker) -> None:
    async with Bus(own_broker.settings) as bus, asyncio.timeout(10):
        assert await bus.snapshot([topics.INCIDENTS.name]) == []


async def test_records_given_while_the_broker_is_paused_all_arrive_once_and_in_order(own_broker: RunningBroker) -> None:
    async with Bus(own_broker.settings) as bus:
        await bus.send(record("c", 0))
        async with await bus.subscribe([topics.FAULTS.name], "earliest") as subscription:
            own_broker.pause()
            try:
                futures = [bus.send_nowait(record("c", number)) for number in range(1, 50)]
                done, _ = await asyncio.wait(futures, timeout=5)
                assert not done
                assert bus.pending == 49
            finally:
                own_broker.resume()
            async with asyncio.timeout(20):
                await asyncio.gather(*futures)
                found: list[int] = []
                while len(found) < 50:
                    found += [int(one.value) for one in await subscription.batch()]
            assert found == list(range(50))


async def test_records_given_while_the_broker_is_dead_arrive_after_its_restart(own_kafka: RunningBroker) -> None:
    async with Bus(own_kafka.settings) as bus:
        await bus.send(record("c", 0))
        async with await bus.subscribe([topics.FAULTS.name], "earliest") as subscription:
            own_kafka.kill()
            futures = [bus.send_nowait(record("c", number)) for number in range(1, 20)]
            await asyncio.to_thread(lambda: None)
            own_kafka.restart()
            async with asyncio.timeout(30):
                await asyncio.gather(*futures)
                found: set[int] = set()
                while len(found) < 20:
                    found |= {int(one.value) for one in await subscription.batch()}
    assert found == set(range(20))


async def test_a_bus_without_a_broker_queues_takes_back_and_sends_when_one_comes(own_kafka: RunningBroker) -> None:
    own_kafka.stop()
    bus = Bus(own_kafka.settings)
    await bus.start(connect_timeout_s=None)
    try:
        kept, dropped = bus.send_nowait(record("c", 1)), bus.send_nowait(record("c", 2))
        dropped.cancel()
        assert not bus.connected
        own_kafka.restart()
        async with asyncio.timeout(20):
            await kept
            await bus.send(record("c", 3))
        assert [int(one.value) for one in await bus.snapshot([topics.FAULTS.name])] == [1, 3]
    finally:
        await bus.stop()


async def test_a_missing_broker_is_named_when_starting_is_to_wait() -> None:
    bus = Bus(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1: no Kafka broker answers"):
        await bus.start(connect_timeout_s=0.3)


async def test_a_missing_broker_is_logged_once_however_often_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    # One that was used before keeps to the settings of then, and what it says would not be captured.
    monkeypatch.setattr("gpuchaos_stream.stream.bus._log", structlog.get_logger())
    often, tries = asyncio.Event(), 0

    async def nobody(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal tries
        tries += 1
        writer.close()
        if tries > 9:  # three connections a try
            often.set()

    async with await asyncio.start_server(nobody, "127.0.0.1", 0) as server:
        bus = Bus(KafkaSettings(bootstrap_servers=f"127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        with capture_logs() as said:
            await bus.start(connect_timeout_s=None)
            async with asyncio.timeout(20):
                await often.wait()
            await bus.stop(flush_timeout_s=0.1)
    assert [line["event"] for line in said] == ["no broker yet"]


async def test_an_address_that_nobody_chose_is_called_the_default() -> None:
    chosen = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    default = chosen.model_construct(set(), **chosen.model_dump())
    with pytest.raises(UserError, match="the default; set KAFKA_BOOTSTRAP_SERVERS"):
        await Bus(default).start(connect_timeout_s=0.1)
    with pytest.raises(UserError) as named:
        await Bus(chosen).start(connect_timeout_s=0.1)
    assert "default" not in str(named.value)


async def test_stopping_without_a_broker_fails_what_is_pending_and_does_not_hang() -> None:
    bus = Bus(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    await bus.start(connect_timeout_s=None)
    future = bus.send_nowait(record("c", 1))
    async with asyncio.timeout(5):
        await bus.stop(flush_timeout_s=0.1)
    with pytest.raises(BusClosedError):
        await future


async def test_an_unknown_topic_is_refused_and_holds_up_nothing_behind_it(own_kafka: RunningBroker) -> None:
    nowhere = Topic("gpuchaos.nowhere.v1", "cluster", "cluster", "delete", 60, "nothing")
    async with Bus(own_kafka.settings) as bus:
        lost, sent = bus.send_nowait(record("c", 1, nowhere)), bus.send_nowait(record("c", 2))
        with pytest.raises(UserError, match=r"gpuchaos\.nowhere\.v1: does not exist"):
            await lost
        await sent
        assert bus.failed == 1
        with pytest.raises(UserError, match="does not exist"):
            await bus.subscribe([nowhere.name])


async def test_a_record_that_is_too_large_fails_alone(broker: RunningBroker, unique: str) -> None:
    async with Bus(broker.settings) as bus:
        huge = Record(topics.FAULTS, unique, unique, b"x" * 3_000_000)
        too_large, fine = bus.send_nowait(huge), bus.send_nowait(record(unique, 1))
        with pytest.raises(UserError, match="3000000 bytes"):
            await too_large
        await fine
