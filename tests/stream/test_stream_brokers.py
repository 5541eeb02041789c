"""Brokers as child processes: one that is killed, one whose parent dies, one that cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.stream import brokers, kafka
from gpuchaos_stream.stream.brokers import Kind, RunningBroker, start_broker
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.embedded import end_offsets
from gpuchaos_stream.stream.settings import aiokafka_options

pytestmark = pytest.mark.broker


def test_a_stopped_broker_leaves_no_process_and_no_folder(broker_kind: Kind) -> None:
    with start_broker(broker_kind) as running:
        assert running.running
        assert running.data_dir.is_dir()
    assert not running.running
    assert not running.data_dir.exists()


def test_data_in_a_folder_of_ones_own_is_kept(broker_kind: Kind, tmp_path: Path) -> None:
    with start_broker(broker_kind, tmp_path / "data") as running:
        pass
    assert running.log_file.is_file()


async def test_a_killed_kafka_comes_back_on_its_port_with_its_data(own_kafka: RunningBroker) -> None:
    producer = AIOKafkaProducer(**aiokafka_options(own_kafka.settings))
    await producer.start()
    await producer.send_and_wait(topics.FAULTS.name, b"kept", partition=0)
    await producer.stop()
    port = own_kafka.port
    own_kafka.kill()
    assert not own_kafka.running
    own_kafka.restart()
    assert own_kafka.port == port
    async with Bus(own_kafka.settings) as bus:
        assert [record.value for record in await bus.snapshot([topics.FAULTS.name])] == [b"kept"]


def test_the_embedded_broker_refuses_to_come_back_empty() -> None:
    with start_broker("embedded") as running, pytest.raises(NotImplementedError, match="in memory"):
        running.restart()


def test_a_broker_is_killed_with_its_parent(broker_kind: Kind, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from gpuchaos_stream.stream.brokers import start_broker\n"
        f"running = start_broker({broker_kind!r}, Path({str(tmp_path)!r}))\n"
        "print(running._process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline:
        os.sched_yield()
    assert not _alive(pid)


def test_a_broker_that_ends_at_once_is_an_error_that_quotes_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers.embedded, "command", lambda *_at: ["sh", "-c", "echo no room at the inn; exit 3"])
    with pytest.raises(UserError, match=r"ended with status 3; it said:\nno room at the inn"):
        start_broker("embedded")


def test_without_maven_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not kafka.kafka_available()
    with pytest.raises(UserError, match=r"`java` is not on the PATH; install a Java runtime"):
        start_broker("kafka")


def test_the_jars_are_cached_by_the_hash_of_the_pinned_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broker_kind: Kind
) -> None:
    if broker_kind != "kafka":
        pytest.skip("needs real Apache Kafka (Java and Maven)")
    first = kafka.fetch()
    monkeypatch.setattr(kafka, "_maven", lambda *_: pytest.fail("fetched twice"))
    assert kafka.fetch() == first
    assert list(first.glob("kafka_2.13-4.*.jar"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []
    monkeypatch.setattr(kafka, "_maven", lambda _pom, target: (target.mkdir(), made.append(target)))
    assert kafka.fetch().is_relative_to(tmp_path)
    assert len(made) == 1


async def test_the_end_of_a_partition_is_right_behind_batches_of_many(own_broker: RunningBroker) -> None:
    options = aiokafka_options(own_broker.settings)
    producer = AIOKafkaProducer(**options, linger_ms=50)
    consumer = AIOKafkaConsumer(**options)
    await producer.start()
    await consumer.start()
    try:
        for partition, count in ((0, 7), (0, 5), (2, 1)):
            futures = [await producer.send(topics.FAULTS.name, b"x", partition=partition) for _ in range(count)]
            for future in futures:
                await future
        partitions = [TopicPartition(topics.FAULTS.name, number) for number in range(4)]
        assert [(await end_offsets(consumer, partitions))[tp] for tp in partitions] == [12, 0, 1, 0]
    finally:
        await consumer.stop()
        await producer.stop()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
