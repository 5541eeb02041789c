"""The agent as a process on a real broker: what it says, what it obeys, what it survives."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_kit import command, inject

from gpuchaos_agent.inject.process_stop import read_process
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.codec import unpack_full
from gpuchaos_stream.events.command import Command, CommandKind, Role
from gpuchaos_stream.events.envelope import command_record, from_value, traceparent_of
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.signing import KeyRing, Signer
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.settings import environment

pytestmark = pytest.mark.broker

P = FaultPhase
NODE = "real"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def victim() -> Iterator[int]:
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process.pid
        process.kill()


class Site:
    """One agent process, the keys it believes, and a reader of what it says."""

    def __init__(self, folder: Path, broker: RunningBroker, cluster: str, bus: Bus, pid: int) -> None:
        self.folder = folder
        self.cluster = cluster
        self.bus = bus
        self.pid = pid
        self.entity = f"process/{NODE}/{pid}"
        self.control = Signer.generate(Role.CONTROL)
        KeyRing(keys=(self.control.trusted(),)).save(folder / "keyring.json")
        self.env = environment(broker.settings)
        self.events: list[FaultEvent] = []
        self.traces: dict[str, str | None] = {}
        self.children: list[Child] = []
        self._readers: dict[str, Any] = {}

    def start(self, *options: str, deadman: bool = True, ready: bool = True) -> Child:
        argv = [
            *(sys.executable, "-m", "gpuchaos_agent.agent", "--cluster", self.cluster, "--node", NODE),
            *("--cell", f"cell-{self.cluster}", "--state-dir", str(self.folder / "state")),
            *("--keyring", str(self.folder / "keyring.json"), "--http-port", "0", "--interval", "0.2"),
            *("--job", f"job=llama,pid={self.pid}", *(() if deadman else ("--no-deadman",)), *options),
        ]
        child = Child("agent", argv, log_file=self.folder / "agent.log", env=self.env).start()
        self.children.append(child)
        return child.wait_for('"ready"', 30) if ready else child

    async def send(self, what: Command, signer: Signer | None = None) -> None:
        record = command_record(what, signer or self.control, source="/test", traceparent=TRACE)
        await self.bus.send(record)

    def command(self, kind: CommandKind, **fields: Any) -> Command:
        return command(kind, time.time(), cluster=self.cluster, node=NODE, id=uuid.uuid4().hex, **fields)

    def inject(self, lease_s: float = 30.0, **fields: Any) -> Command:
        given = {"fault": "process-stop", "entity": self.entity, "lease_s": lease_s, "experiment_id": "e1", **fields}
        return inject(time.time(), cluster=self.cluster, node=NODE, id=uuid.uuid4().hex, **given)

    async def hear(self, phase: FaultPhase, within_s: float = 15.0, **fields: Any) -> FaultEvent:
        """The first event of that phase with these fields, told until now or from now on."""

        def fits(event: FaultEvent) -> bool:
            return event.phase is phase and all(getattr(event, name) == value for name, value in fields.items())

        async with asyncio.timeout(within_s):
            while not any(fits(event) for event in self.events):
                for record in await self.read(topics.FAULTS.name, start="earliest"):
                    if record.key != self.cluster.encode():
                        continue  # another test's, of whatever kind
                    event = from_value(record.topic, record.value)
                    self.events.append(event)
                    self.traces[event.id] = traceparent_of(record.headers)
        return next(event for event in self.events if fits(event))

    async def read(self, topic: str, start: Any = "latest") -> list[Any]:
        if topic not in self._readers:
            self._readers[topic] = await self.bus.subscribe([topic], start)
        return list(await self._readers[topic].batch(0.2))

    async def close(self) -> None:
        for child in self.children:
            child.stop()
        for reader in self._readers.values():
            await reader.stop()


@pytest.fixture
async def site(broker: RunningBroker, tmp_path: Path, unique: str, victim: int) -> AsyncIterator[Site]:
    async with Bus(broker.settings) as bus:
        made = Site(tmp_path, broker, unique, bus, victim)
        yield made
        await made.close()


def stopped(pid: int) -> bool:
    process = read_process(Path("/proc"), pid)
    return process is not None and process.state == "T"


async def until(what: Callable[[], bool], within_s: float = 10.0) -> float:
    began = time.monotonic()
    async with asyncio.timeout(within_s):
        while not what():  # noqa: ASYNC110  (what is waited for is another process)
            await asyncio.sleep(0.01)
    return time.monotonic() - began


async def test_a_fault_is_injected_renewed_halted_and_each_step_is_told_with_the_trace(site: Site) -> None:
    site.start()
    await site.send(site.inject(fault_id="f1"))
    injected = await site.hear(P.INJECTED)
    assert stopped(site.pid)
    assert injected.evidence["state"] == "T"
    await site.send(site.command(CommandKind.RENEW, fault_id="f1", lease_s=30.0))
    await site.hear(P.RENEWED)
    halt = site.command(CommandKind.HALT, experiment_id="e1", cause="a limit")
    await site.send(halt)
    undone = await site.hear(P.UNDONE)
    assert not stopped(site.pid)
    acknowledged = await site.hear(P.ACKNOWLEDGED)
    assert acknowledged.command_id == undone.command_id == halt.id
    assert acknowledged.time <= undone.time
    assert set(site.traces.values()) == {TRACE}


async def test_frames_and_place_are_sent_and_the_offset_to_the_broker_is_learnt(
    site: Site, broker: RunningBroker
) -> None:
    site.start()
    frames: list[Any] = []
    async with asyncio.timeout(20):
        while len(frames) < 8:
            got = await site.read(topics.TELEMETRY.name)
            frames += [unpack_full(r.value) for r in got if r.key == f"cell-{site.cluster}".encode()]
    assert [frame.seq for frame in frames] == list(range(frames[0].seq, frames[0].seq + len(frames)))
    assert {group.kind for group in frames[-1].layout.groups} >= {"node", "numa", "process"}
    if broker.kind == "kafka":
        assert frames[-1].clock_offset_s is not None
        assert abs(frames[-1].clock_offset_s) < 0.5
    records = await site.bus.snapshot([topics.NODES.name])
    places = [from_value(r.topic, r.value) for r in records if r.key.startswith(f"{site.cluster}/".encode())]
    (place,) = {p.node: p for p in places}.values()
    assert place.jobs == ("llama",)
    assert "process-stop" in place.faults_possible


async def test_what_is_forged_expired_or_replayed_changes_nothing_and_is_reported(site: Site) -> None:
    site.start()
    forger = Signer.generate(Role.CONTROL)
    await site.send(site.inject(fault_id="f1"), forger)
    assert "unknown_key" in (await site.hear(P.REFUSED)).reason
    await site.send(site.inject(fault_id="f2").model_copy(update={"expires": time.time() - 1}))
    assert "expired" in (await site.hear(P.REFUSED, fault_id="f2")).reason
    genuine = site.inject(fault_id="f3")
    await site.send(genuine)
    await site.hear(P.INJECTED)
    await site.send(site.command(CommandKind.UNDO, fault_id="f3"))
    await site.hear(P.UNDONE)
    site.events.clear()
    await site.send(genuine)
    assert "replayed" in (await site.hear(P.REFUSED)).reason
    assert not stopped(site.pid)


async def test_a_key_that_is_added_to_the_ring_is_believed_without_a_restart(site: Site) -> None:
    site.start()
    new = Signer.generate(Role.CONTROL)
    await site.send(site.inject(fault_id="f1"), new)
    await site.hear(P.REFUSED)
    KeyRing(keys=(site.control.trusted(), new.trusted())).save(site.folder / "keyring.json")
    await asyncio.sleep(1)
    await site.send(site.inject(fault_id="f2"), new)
    await site.hear(P.INJECTED)


async def test_without_a_broker_the_agent_lives_undoes_what_was_left_and_says_that_it_is_not_ready(
    site: Site,
) -> None:
    agent = site.start(deadman=False)
    await site.send(site.inject(lease_s=300.0, fault_id="f1"))
    await site.hear(P.INJECTED)
    agent.kill()
    site.env["KAFKA_BOOTSTRAP_SERVERS"] = "127.0.0.1:1"
    agent = site.start(ready=False).wait_for("status is served", 20)
    assert not stopped(site.pid)
    port = next(json.loads(line)["port"] for line in agent.said().splitlines() if '"status is served"' in line)
    assert await asyncio.to_thread(status, port, "/healthz") == (200, "ok\n")
    code, reason = await asyncio.to_thread(status, port, "/readyz")
    assert (code, "broker" in reason) == (503, True)
    code, text = await asyncio.to_thread(status, port, "/metrics")
    assert "gpuchaos_agent_faults_active 0.0" in text
    assert 'gpuchaos_agent_fault_events_total{fault="process-stop",phase="undone"} 1.0' in text
    assert agent.stop() == 0
    site.env = environment(site.bus._settings)
    site.start()
    assert (await site.hear(P.UNDONE)).reason == "agent restarted"


def status(port: int, path: str) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.05, None])
async def test_killed_at_any_moment_the_agent_undoes_at_its_next_start_and_tells(
    site: Site, after_s: float | None
) -> None:
    agent = site.start(deadman=False)
    await site.send(site.inject(lease_s=300.0, fault_id="f1"))
    if after_s is None:
        await site.hear(P.INJECTED)
    else:
        await asyncio.sleep(after_s)
    agent.kill()
    was_stopped = stopped(site.pid)
    assert was_stopped or after_s is not None
    site.start(deadman=False)
    assert not stopped(site.pid)
    if was_stopped:
        assert (await site.hear(P.UNDONE)).reason == "agent restarted"


async def test_killed_for_good_the_dead_mans_switch_undoes_and_the_next_start_tells(site: Site) -> None:
    agent = site.start()
    await site.send(site.inject(lease_s=300.0, fault_id="f1"))
    await site.hear(P.INJECTED)
    agent.kill()
    assert await until(lambda: not stopped(site.pid)) < 2
    site.start()
    assert (await site.hear(P.UNDONE)).reason == "agent ended"


async def test_an_agent_that_hangs_does_not_keep_a_fault_past_its_lease(site: Site) -> None:
    agent = site.start()
    await site.send(site.inject(lease_s=1.0, fault_id="f1"))
    await site.hear(P.INJECTED)
    agent.pause()
    await until(lambda: not stopped(site.pid), within_s=4)
    agent.resume()
    assert "lease" in (await site.hear(P.UNDONE)).reason


async def test_stopping_the_agent_undoes_its_faults_and_ends_with_zero(site: Site) -> None:
    agent = site.start()
    await site.send(site.inject(lease_s=300.0, fault_id="f1"))
    await site.hear(P.INJECTED)
    assert agent.stop() == 0
    assert not stopped(site.pid)
    assert (await site.hear(P.UNDONE)).reason == "agent stopped"


@pytest.mark.root
async def test_a_line_in_the_real_kernel_log_is_on_the_topic_in_under_a_second_and_marked_as_a_process(
    site: Site,
) -> None:
    site.start("--interval", "1")
    mark = f"0000:{uuid.uuid4().hex[:2]}:00"
    await site.read(topics.FAULTS.name, start="earliest")
    written = time.time()
    line = f"<4>NVRM: Xid (PCI:{mark}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    await asyncio.to_thread(Path("/dev/kmsg").write_text, line)
    observed = await site.hear(P.OBSERVED, within_s=5)
    assert time.time() - written < 1
    assert observed.origin == "process"
    assert observed.experiment_id is None


@pytest.mark.root
async def test_an_injected_memory_error_is_observed_through_the_real_kernel_log_with_its_mark(site: Site) -> None:
    site.start()
    params = {"pci": f"0000:{uuid.uuid4().hex[:2]}:00", "xid": 94}
    fault_id = f"f{site.cluster}"
    await site.send(site.inject(fault="memory-corruption", entity=f"gpu/{NODE}/0", fault_id=fault_id, params=params))
    await site.hear(P.INJECTED)
    observed = await site.hear(P.OBSERVED, injected_mark=True)
    assert (observed.fault, observed.origin, observed.evidence["fault_id"]) == (
        "gpu_ecc_contained",
        "process",
        fault_id,
    )
    await site.send(site.command(CommandKind.UNDO, fault_id=fault_id))
    await site.hear(P.UNDONE)
    await asyncio.sleep(0.5)
    assert [event.injected_mark for event in site.events if event.phase is P.OBSERVED].count(True) == 1


async def test_with_the_broker_away_leases_end_telemetry_is_dropped_and_counted_and_no_fault_event_is_lost(
    own_broker: RunningBroker, tmp_path: Path, unique: str, victim: int
) -> None:
    async with Bus(own_broker.settings) as bus:
        site = Site(tmp_path, own_broker, unique, bus, victim)
        site.env |= {"GPUCHAOS_AGENT_FRAMES_KEPT": "5"}
        try:
            site.start("--interval", "0.1")
            await site.send(site.inject(lease_s=1.5, fault_id="f1"))
            await site.hear(P.INJECTED)
            own_broker.pause()
            await until(lambda: not stopped(victim), within_s=4)
            await asyncio.sleep(5)
            own_broker.resume()
            assert (await site.hear(P.UNDONE, within_s=40)).reason == "lease expired"
            frames: list[Any] = []
            async with asyncio.timeout(30):
                # A frame tells what was dropped before it was made: of the last few, nothing more was.
                while len({frame.dropped for frame in frames[-5:]} | {0}) != 2 or frames[-5].dropped == 0:
                    frames += [unpack_full(r.value) for r in await site.read(topics.TELEMETRY.name, "earliest")]
            seqs = {frame.seq for frame in frames}
            assert max(seqs) + 1 - len(seqs) == frames[-1].dropped
        finally:
            own_broker.resume()
            await site.close()
