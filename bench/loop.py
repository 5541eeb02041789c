"""The loop on a real broker, as ratios of one run.

python bench/loop.py [--broker kafka|embedded] [--frames N] [--breaches N]

Frames per second of one worker (consume + decode + detect), beside two others over the same records:
- the ceiling: aiokafka's `getmany` and the decoding of each frame, nothing else;
- a plain Faust agent that only counts records.
Then the latency from a breach (the broker's append time of the anomaly that exceeds a limit) to the beginning
of the undo on a real agent with real stopped processes (the agent's acknowledgement, on the broker's clock).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition
from detect import Cluster

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyKind, AnomalyPhase
from gpuchaos_stream.events.base import Severity, stable_id
from gpuchaos_stream.events.codec import unpack
from gpuchaos_stream.events.command import Role
from gpuchaos_stream.events.envelope import Record, command_record, from_value, to_record
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.experiments.client import start_command
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.embedded import end_offsets
from gpuchaos_stream.stream.house import READY, House
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options

NODES = 640
PER_CELL = 32
CLUSTER = "bench"
ENCODER = msgspec.msgpack.Encoder()
HARD_LIMITS = Path(__file__).parents[1] / "rules" / "hard-limits.yaml"

#: A stock Faust agent that counts: what the bulk delivery is worth is seen beside it.
PLAIN = """
import sys, time
import faust
app = faust.App("bench-plain", broker="kafka://" + sys.argv[1], topic_allow_declare=False, topic_disable_leader=True,
                broker_session_timeout=float(sys.argv[3]), broker_heartbeat_interval=float(sys.argv[3]) / 4,
                datadir=sys.argv[2], web_enabled=False, consumer_auto_offset_reset="earliest", store="memory://")
topic = app.topic("gpuchaos.telemetry.v1", value_serializer="raw")
wanted = int(sys.argv[4])

@app.agent(topic)
async def count(stream):
    n, begin = 0, None
    async for value in stream:
        begin = begin or time.monotonic()
        n += 1
        if n == wanted:
            print("rate", (n - 1) / (time.monotonic() - begin), flush=True)

faust.Worker(app, loglevel="error", redirect_stdouts=False).execute_from_commandline()
"""


async def fill(settings: KafkaSettings, count: int) -> int:
    """Writes at least `count` frames of a healthy cluster, tick by tick; returns how many."""
    cluster = Cluster(NODES, PER_CELL, seed=1)
    sent = 0
    async with Bus(settings, linger_s=0.02) as bus:
        for tick in range(-(-count // NODES)):
            for frame in cluster.frames(tick, cluster.values(tick)):
                bus.send_nowait(Record(topics.TELEMETRY, frame.cell, frame.cell, ENCODER.encode(frame)))
                sent += 1
            await bus.flush()
    return sent


async def ceiling(settings: KafkaSettings) -> float:
    """Frames/s of `getmany` and decoding."""
    consumer: Any = AIOKafkaConsumer(**aiokafka_options(settings), group_id=None, max_partition_fetch_bytes=4 << 20)
    await consumer.start()
    try:
        cluster = await consumer._client.fetch_all_metadata()  # noqa: SLF001  (no public call lists partitions)
        parts = [TopicPartition(topics.TELEMETRY.name, p) for p in cluster.partitions_for_topic(topics.TELEMETRY.name)]
        consumer.assign(parts)
        total = sum((await end_offsets(consumer, parts)).values())
        await consumer.seek_to_beginning(*parts)
        count, begin = 0, time.monotonic()
        while count < total:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    np.frombuffer(unpack(record.value).values, dtype="<f8")
                count += len(records)
        return count / (time.monotonic() - begin)
    finally:
        await consumer.stop()


def plain_agent(house: House, count: int) -> float:
    """Records/s of the stock agent, on the first `count` records."""
    session = house.settings.session_timeout_s
    script = house.folder / "plain.py"
    script.write_text(PLAIN)
    child = house.start(
        "plain",
        sys.executable,
        str(script),
        house.settings.bootstrap_servers,
        str(house.folder / "plain"),
        str(session),
        str(count),
    )
    child.wait_for("rate", 300)
    rate = next(line for line in child.said().splitlines() if line.startswith("rate"))
    child.stop()
    return float(rate.split()[1])


def one_worker(house: House, count: int) -> float:
    """Frames/s of a worker from its first to its last frame, by its own counter."""
    worker = house.worker(
        "bench-worker", "--app-id", "bench-worker", "--stage", "detect", "--log-level", "WARNING"
    ).wait_for(READY)
    page = next(line for line in worker.said().splitlines() if line.startswith(READY)).split()[-1]
    first: tuple[float, float] | None = None
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        done, now = counter(page, "gpuchaos_frames_total"), time.monotonic()
        if done and first is None:
            first = (done, now)
        if done >= count and first is not None:
            worker.stop()
            return (done - first[0]) / (now - first[1])
        time.sleep(0.1)  # each question costs the worker some milliseconds
    raise SystemExit(worker.tail())


def counter(page: str, name: str) -> float:
    """A metric's value."""
    with urllib.request.urlopen(page, timeout=5) as answer:  # noqa: S310  (loopback)
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    return 0.0


# -- breach to undo ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Real processes to be stopped."""
    running = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def plan_for(pid: int, node: str) -> Plan:
    """An experiment that no node beyond its target may be hurt by; its steady state is always kept."""
    check = {"of": f"node/{node}", "metric": "process.running.min", "op": ">=", "value": -1.0}
    return Plan.model_validate(
        {
            "api_version": "gpuchaos/v1",
            "kind": "Experiment",
            "name": "bench",
            "description": "breach to undo",
            "owner": "bench",
            "fault": {"name": "process-stop", "certifies": ("automatic-halt",)},
            "targets": {"entities": (f"process/{node}/{pid}",)},
            "duration": 60.0,
            "lease": 30.0,
            "undo": {"method": "automatic"},
            "limits": {"gpus": 0, "nodes": 0, "jobs": 0, "gpu_seconds": 0.0},
            "steady_state": {"hold": 2.0, "checks": ({"name": "up", "telemetry": check},)},
            "objectives": {"ttd": 30.0, "ttm": 90.0, "ttr": 120.0},
            "settle": 1.0,
        }
    )


async def breaches(house: House, pids: list[int], node: str) -> list[float]:
    """Seconds from each breach to the beginning of its undo."""
    signer = Signer.load(house.key(Role.OPERATOR))
    latencies = []
    async with Bus(house.settings) as bus, await bus.subscribe([topics.FAULTS.name], "latest") as faults:
        for pid in pids:
            command = start_command(plan_for(pid, node), cluster=CLUSTER)
            await bus.send(command_record(command, signer, source="/bench"))
            injected = await phase(faults, command.experiment_id, FaultPhase.INJECTED)
            appended = await breach(bus, injected)
            begun = await phase(faults, command.experiment_id, FaultPhase.ACKNOWLEDGED)
            latencies.append(begun.event_time - appended)
            await phase(faults, command.experiment_id, FaultPhase.UNDONE)
    return latencies


async def breach(bus: Bus, injected: FaultEvent) -> float:
    """Tells of harm on another process of the same job's other node; returns when the broker had it."""
    now = time.time()
    anomaly_id = stable_id("bench", injected.fault_id)
    anomaly = Anomaly(
        id=anomaly_id,
        time=now,
        cluster=CLUSTER,
        anomaly_id=anomaly_id,
        phase=AnomalyPhase.OPENED,
        kind=AnomalyKind.PAST,
        metric="steps_rate",
        entity="process/beyond/1",
        node="beyond",
        job="bench",
        start=now,
        severity=Severity.ERROR,
        score=20.0,
        effect=1.0,
    )
    ack = await bus.send(to_record(anomaly, topics.ANOMALIES, source="/bench"))
    return ack.broker_time or now


async def phase(faults: Any, experiment_id: str | None, wanted: FaultPhase) -> FaultEvent:
    """The next event of that phase of the experiment."""
    async with asyncio.timeout(60):
        while True:
            for raw in await faults.batch(0.2):
                event: FaultEvent = from_value(raw.topic, raw.value)
                if event.experiment_id == experiment_id and event.phase is wanted:
                    return event


def main() -> int:
    """Runs both parts and prints them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", choices=("kafka", "embedded"), default="kafka")
    parser.add_argument("--frames", type=int, default=128_000)
    parser.add_argument("--breaches", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, House(Path(folder), broker=options.broker) as house:
        print(f"broker: {options.broker}", flush=True)
        begin = time.monotonic()
        count = asyncio.run(fill(house.settings, options.frames))
        print(f"filled in {time.monotonic() - begin:.0f} s", flush=True)
        top = asyncio.run(ceiling(house.settings))
        worker = one_worker(house, count)
        plain = plain_agent(house, min(count, 40_000))
        print(f"frames: {count}, one node each, {Cluster(1, 1, seed=1).width} numbers")
        print(f"{'ceiling (getmany + decode)':<34}{top:>10,.0f} frames/s   1.00")
        print(f"{'worker (consume + decode + detect)':<34}{worker:>10,.0f} frames/s   {worker / top:.2f}")
        print(f"{'plain Faust agent, counting':<34}{plain:>10,.0f} records/s  {plain / top:.2f}")
        print(f"worker / plain agent: {worker / plain:.1f}")
    with tempfile.TemporaryDirectory() as folder, House(Path(folder), broker=options.broker) as house:
        with processes(options.breaches) as running:
            house.worker("worker", "--rules", str(HARD_LIMITS), "--log-level", "WARNING").wait_for(READY)
            jobs = [option for p in running for option in ("--job", f"job=bench,pid={p.pid}")]
            house.agent("bench-node", "--cluster", CLUSTER, "--cell", "c0", *jobs).wait_for(READY)
            latencies = asyncio.run(breaches(house, [p.pid for p in running], "bench-node"))
        p50, p99 = np.percentile(latencies, (50, 99))
        print(f"breach to undo begun, {len(latencies)} breaches: p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
