"""A real Faust worker under kills, rebalances and a paused broker: state exact, effects whole, commits complete."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.envelope import Record
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.embedded import end_offsets
from gpuchaos_stream.stream.reader import Subscription
from gpuchaos_stream.stream.settings import aiokafka_options
from gpuchaos_stream.stream.topics_admin import changelog_name, ensure_topics
from gpuchaos_stream.stream.watchdog import EXIT_STATUS

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

TOY = Path(__file__).with_name("stream_toy_worker.py")
SOURCES = [TopicPartition(topics.FAULTS.name, number) for number in range(4)]
KEYS = 23


@contextmanager
def worker(broker: RunningBroker, app_id: str, folder: Path, name: str = "worker", **extra: str) -> Iterator[Child]:
    # A short session: what was killed must not be waited for. The broker of the tests allows it.
    env = {**broker.env, "KAFKA_SESSION_TIMEOUT_S": "2", "KAFKA_HEARTBEAT_INTERVAL_S": "0.5", **extra}
    argv = [sys.executable, str(TOY), app_id, str(folder / name)]
    child = Child(name, argv, log_file=folder / f"{name}.log", env=env)
    child.start()
    try:
        yield child
    finally:
        child.kill()


class Check:
    """What the worker left behind: halts on one topic, state on its changelog, commits of its group."""

    def __init__(self, sources: Subscription, halts: Subscription, changelog: Subscription, group: Any) -> None:
        self._sources = sources
        self._halts = halts
        self._changelog = changelog
        self._group = group
        # What the log holds is the truth: a producer that never heard the answer of a paused broker sends twice.
        self.sent: Counter[str] = Counter()
        self.numbers: set[int] = set()
        self.halts: Counter[str] = Counter()
        self.state: dict[str, list[int]] = {}

    async def look(self) -> None:
        for record in await self._sources.batch(0.05):
            body = json.loads(record.value)
            self.sent[body["key"]] += 1
            self.numbers.add(body["n"])
        for record in await self._halts.batch(0.2):
            self.halts[json.loads(record.value)[0]] += 1
        for record in await self._changelog.batch(0.05):
            self.state[json.loads(record.key)] = json.loads(record.value)

    async def committed(self, partition: TopicPartition) -> int:
        return await self._group.committed(partition) or 0

    async def lag(self) -> dict[int, int]:
        ends = await end_offsets(self._group, SOURCES)
        return {tp.partition: ends[tp] - await self.committed(tp) for tp in SOURCES}

    async def until_complete(self, events: int, within_s: float) -> None:
        """Returns when every event is counted, every halt is out and every offset is committed; else it fails."""
        numbers = set(range(events))
        halts = {stable_id(key_of(number), number) for number in range(0, events, 10)}
        deadline = time.monotonic() + within_s
        while True:
            await self.look()
            counts = {key: value[0] for key, value in self.state.items()}
            lag = await self.lag()
            if self.numbers == numbers and counts == self.sent and set(self.halts) == halts and not any(lag.values()):
                return
            if time.monotonic() > deadline:
                missing = {key: self.sent[key] - counts.get(key, 0) for key in self.sent}
                lost = f"{len(numbers - self.numbers)} events and {len(halts - set(self.halts))} halts lost"
                pytest.fail(f"state off by {missing}, {lost}, lag {lag}")


def key_of(number: int) -> str:
    return f"c{number % KEYS}"


@asynccontextmanager
async def checking(broker: RunningBroker, bus: Bus, app_id: str) -> AsyncIterator[Check]:
    await ensure_topics(broker.settings, changelogs=[changelog_name(app_id, "state")])
    group = AIOKafkaConsumer(**aiokafka_options(broker.settings), group_id=app_id, enable_auto_commit=False)
    await group.start()
    try:
        async with (
            await bus.subscribe([topics.FAULTS.name], "earliest") as sources,
            await bus.subscribe([topics.COMMANDS.name], "earliest") as halts,
            await bus.subscribe([changelog_name(app_id, "state")], "earliest") as changelog,
        ):
            yield Check(sources, halts, changelog, group)
    finally:
        await group.stop()


async def produce(bus: Bus, first: int, count: int, per_s: int | None = None) -> None:
    begin = time.monotonic()
    futures = []
    for number in range(first, first + count):
        body = json.dumps({"key": key_of(number), "n": number}).encode()
        futures.append(bus.send_nowait(Record(topics.FAULTS, key_of(number), key_of(number), body)))
        if per_s is not None and len(futures) % 50 == 0:
            await asyncio.sleep(max(0.0, begin + len(futures) / per_s - time.monotonic()))
    await asyncio.gather(*futures)


async def produce_until(bus: Bus, done: asyncio.Event, per_s: int) -> int:
    """Produces until `done`, and returns how many events there are."""
    total = 0
    while not done.is_set():
        await produce(bus, total, 500, per_s)
        total += 500
    return total


async def test_a_backlog_is_counted_exactly_in_far_fewer_events_than_records(
    own_broker: RunningBroker, tmp_path: Path
) -> None:
    async with Bus(own_broker.settings) as bus, checking(own_broker, bus, "toy") as check:
        await produce(bus, 0, 30_000)
        with worker(own_broker, "toy", tmp_path) as child:
            await check.until_complete(30_000, within_s=40)
            sizes = [int(line.split()[1]) for line in child.said().splitlines() if line.startswith("applied ")]
    assert sum(sizes) == 30_000
    assert len(sizes) < 3_000
    assert max(check.halts.values()) == 1


async def test_kills_before_and_after_a_commit_lose_nothing_and_commits_reach_the_end(
    own_broker: RunningBroker, tmp_path: Path
) -> None:
    async with Bus(own_broker.settings) as bus, checking(own_broker, bus, "toy") as check:
        producing = asyncio.create_task(produce(bus, 0, 16_000, per_s=1_500))
        with worker(own_broker, "toy", tmp_path) as child:
            async with asyncio.timeout(30):
                while not check.state:
                    await check.look()
            child.kill()
            child.start()
            async with asyncio.timeout(40):
                while not all([await check.committed(tp) for tp in SOURCES]):
                    await check.look()
            child.kill()
            child.start()
            await producing
            await check.until_complete(16_000, within_s=40)


async def test_a_kill_while_the_broker_is_paused_loses_nothing(own_broker: RunningBroker, tmp_path: Path) -> None:
    async with Bus(own_broker.settings) as bus, checking(own_broker, bus, "toy") as check:
        producing = asyncio.create_task(produce(bus, 0, 9_000, per_s=1_000))
        with worker(own_broker, "toy", tmp_path) as child:
            async with asyncio.timeout(30):
                while not all([await check.committed(tp) for tp in SOURCES]):
                    await check.look()
            own_broker.pause()
            try:
                await asyncio.sleep(1.5)  # longer than a commit interval: a commit is under way, if it is ever
                child.kill()
            finally:
                own_broker.resume()
            child.start()
            await producing
            await check.until_complete(9_000, within_s=40)


async def test_a_paused_broker_delays_and_loses_nothing(own_broker: RunningBroker, tmp_path: Path) -> None:
    async with Bus(own_broker.settings) as bus, checking(own_broker, bus, "toy") as check:
        producing = asyncio.create_task(produce(bus, 0, 9_000, per_s=1_000))
        with worker(own_broker, "toy", tmp_path):
            async with asyncio.timeout(30):
                while not check.state:
                    await check.look()
            own_broker.pause()
            try:
                await asyncio.sleep(5)  # the fault itself
            finally:
                own_broker.resume()
            await producing
            await check.until_complete(9_000, within_s=40)


@pytest.mark.soak
async def test_a_second_worker_that_joins_and_is_killed_changes_nothing(
    own_broker: RunningBroker, tmp_path: Path
) -> None:
    async with Bus(own_broker.settings) as bus, checking(own_broker, bus, "toy") as check:
        done = asyncio.Event()
        producing = asyncio.create_task(produce_until(bus, done, per_s=1_000))
        with worker(own_broker, "toy", tmp_path, "first"):
            async with asyncio.timeout(40):
                while not check.state:
                    await check.look()
            with worker(own_broker, "toy", tmp_path, "second") as second:
                async with asyncio.timeout(40):
                    while "applied " not in second.said():
                        await check.look()
            done.set()
            await check.until_complete(await producing, within_s=40)


async def test_a_changelog_that_ends_without_a_record_does_not_hold_up_recovery(
    own_kafka: RunningBroker, tmp_path: Path
) -> None:
    # The mark that ends a transaction takes the last offset, as compaction may leave it: no record comes for it.
    async with Bus(own_kafka.settings) as bus, checking(own_kafka, bus, "toy") as check:
        writer = AIOKafkaProducer(**aiokafka_options(own_kafka.settings), transactional_id="marks")
        await writer.start()
        for partition in range(4):
            async with writer.transaction():
                await writer.send(changelog_name("toy", "state"), b"[0, -1]", key=b'"unused"', partition=partition)
        await writer.stop()
        await produce(bus, 0, 100)
        with worker(own_kafka, "toy", tmp_path):
            async with asyncio.timeout(40):
                while any((await check.lag()).values()):
                    await check.look()


async def test_a_worker_whose_commits_stand_still_ends_itself_with_its_own_status(
    own_broker: RunningBroker, tmp_path: Path
) -> None:
    async with Bus(own_broker.settings) as bus, checking(own_broker, bus, "toy") as check:
        await produce(bus, 0, 100)
        with worker(own_broker, "toy", tmp_path, TOY_STUCK="1", TOY_LIMIT_S="2") as child:
            async with asyncio.timeout(40):
                while child.running:
                    await check.look()
            assert child.status == EXIT_STATUS
            assert "commits stand still" in child.said()
        assert sum((await check.lag()).values()) == 100
