"""The simulated cluster on a real broker: the same topics, the same commands as real agents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sim_help import CONTROL, RING, STRANGER

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.codec import unpack_full
from gpuchaos_stream.events.command import Command, CommandKind
from gpuchaos_stream.events.envelope import command_record, from_value
from gpuchaos_stream.events.signing import Signer, Verifier
from gpuchaos_stream.sim.script import Failure
from gpuchaos_stream.sim.spec import ClusterSpec
from gpuchaos_stream.sim.truth import Truth
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.simulate import Options, Simulator

pytestmark = pytest.mark.broker


def _inject(cluster: str, now: float, signer: Signer, fault_id: str) -> Any:
    command = Command(
        id=f"inject-{fault_id}",
        time=now,
        cluster=cluster,
        kind=CommandKind.INJECT,
        expires=now + 60,
        nonce=f"nonce-{fault_id}",
        node="n001",
        experiment_id="drill-1",
        fault_id=fault_id,
        fault="process-stop",
        entity="process/n001/4102",
        lease_s=2.0,
    )
    return command_record(command, signer, source="/test")


async def _until(found: Any, timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not found():  # noqa: ASYNC110  (looks at a broker that tells nobody)
            await asyncio.sleep(0.05)


async def test_it_speaks_on_the_topics_obeys_signed_commands_and_keeps_the_truth_to_itself(
    broker: RunningBroker, unique: str, tmp_path: Path
) -> None:
    options = Options(
        spec=ClusterSpec(cluster=unique, nodes=6, cells=2, spares=0),
        interval_s=0.25,
        failures=(Failure(cause="faulty-gpu", entity="gpu/n004/0", after=0.5, of="drill"),),
        truth=tmp_path / "truth.jsonl",
    )
    seen: dict[str, list[Any]] = {topic.name: [] for topic in (topics.TELEMETRY, topics.NODES, topics.FAULTS)}
    async with Bus(broker.settings) as bus, await bus.subscribe(tuple(seen), "latest") as reader:

        async def read() -> None:
            async for record in reader:
                seen[record.topic].append(record)

        reading, stop = asyncio.create_task(read()), asyncio.Event()
        simulator = Simulator(bus, Verifier(RING), options)
        running = asyncio.create_task(simulator.run(stop))
        await _until(lambda: len(_mine(seen, topics.NODES.name, unique)) >= 6 and _frames(seen, unique))
        now = simulator.now()
        await bus.send(_inject(unique, now, STRANGER, "forged"))
        await bus.send(_inject(unique, now, CONTROL, "f1"))
        await _until(lambda: {"injected", "undone", "observed", "refused"} <= _phases(seen, unique))
        stop.set()
        await running
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    events = _mine(seen, topics.FAULTS.name, unique)
    assert [e.fault_id for e in events if e.phase == "injected"] == ["f1"]
    assert [e.evidence["refusal"] for e in events if e.phase == "refused"] == ["unknown_key"]
    assert [e.reason for e in events if e.phase == "undone"] == ["lease expired"]
    assert [(e.fault, e.node) for e in events if e.phase == "observed"] == [("gpu_lost", "n004")]
    frames = _frames(seen, unique)
    assert {frame.node for frame in frames} == {f"n00{row}" for row in range(6)}
    told = [Truth.model_validate_json(line) for line in (tmp_path / "truth.jsonl").read_text().splitlines()]
    assert {(truth.source, truth.fault) for truth in told} == {("injected", "process-stop"), ("organic", "faulty-gpu")}


def _mine(seen: dict[str, list[Any]], topic: str, cluster: str) -> list[Any]:
    # A record of another test may be of any kind: the session's broker is shared.
    return [from_value(topic, record.value) for record in seen[topic] if record.key.split(b"/")[0] == cluster.encode()]


def _phases(seen: dict[str, list[Any]], cluster: str) -> set[str]:
    return {event.phase.value for event in _mine(seen, topics.FAULTS.name, cluster)}


def _frames(seen: dict[str, list[Any]], cluster: str) -> list[Any]:
    frames = [unpack_full(record.value) for record in seen[topics.TELEMETRY.name]]
    return [frame for frame in frames if frame.cluster == cluster]
