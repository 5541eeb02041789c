"""The broker away for 20 s, or held for 8: nothing is lost but telemetry, which is counted, and no fault stays."""

from __future__ import annotations

import time
from collections import defaultdict

import pytest
from integration_watch import RealNode, Watch, dump, ids, is_stopped, needs_kernel_log, plan, real_node

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.experiment import Status, Verdict
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.frame import TelemetryFrame
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.house import READY, House

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

CLUSTER = "outage"
OUTAGE_S = 20.0
HELD_S = 8.0
LEASE_S = 6.0
#: Frames that the agent keeps while the broker is away; it makes five a second, so that most are dropped.
FRAMES_KEPT = 5
INTERVAL_S = 0.2
#: Facts written to the kernel log during the outage: a GPU each, so that none is held back as a repeat. The kernel
#: itself takes ten lines in five seconds from a process (printk_devkmsg).
FACTS = 8


def broker_of(house: House) -> RunningBroker:
    """The house's broker, which must survive a restart."""
    assert house.broker is not None
    if house.broker.kind != "kafka":
        pytest.skip("needs real Apache Kafka (Java and Maven): the embedded broker forgets all at a restart")
    return house.broker


def write_facts(marker: str) -> None:
    """Writes `FACTS` Xid lines of as many GPUs; `marker` is the bus that they are on."""
    with needs_kernel_log().open("w") as log:
        for device in range(FACTS):
            log.write(f"<4>NVRM: Xid (PCI:0000:{marker}:{device:02x}): 79, GPU has fallen off the bus.\n")
            log.flush()


def observed(watch: Watch, marker: str) -> list[FaultEvent]:
    facts = watch.faults(phase=FaultPhase.OBSERVED, cluster=CLUSTER)
    return [fact for fact in facts if f":{marker}:" in fact.model_dump_json()]


def gaps(frames: list[TelemetryFrame]) -> dict[tuple[str, str], int]:
    """For each run of each node's agent: numbers that never came between the first and the last that did."""
    numbers: dict[tuple[str, str], set[int]] = defaultdict(set)
    for frame in frames:
        numbers[frame.node, frame.boot].add(frame.seq)
    return {run: max(seen) - min(seen) + 1 - len(seen) for run, seen in numbers.items()}


def ticks_since(watch: Watch, at_ms: int) -> int:
    """Ticks of the cluster appended since then: the control stage's heartbeat."""
    name = topics.OBSERVATIONS.name
    later = [raw for raw in watch.seen[name] if raw.timestamp >= at_ms and b'"tick"' in raw.value]
    return len(later)


async def told_in_full(watch: Watch, node: RealNode, experiment: str) -> None:
    """Every fault event that this life of a fault must leave behind is there, each under its one id."""
    fault_id = stable_id(experiment, node.target)
    for phase in (FaultPhase.INJECTED, FaultPhase.UNDONE):
        events = await watch.until(lambda p=phase: watch.faults(fault_id=fault_id, phase=p), f"{phase} is told")
        assert stable_id(CLUSTER, fault_id, phase) in ids(events)


@pytest.mark.soak
async def test_broker_away_for_twenty_seconds_costs_telemetry_alone_which_is_counted(house: House) -> None:
    broker = broker_of(house)
    needs_kernel_log()
    worker = house.worker()
    node = real_node(house, cluster=CLUSTER, frames_kept=FRAMES_KEPT, interval=INTERVAL_S)
    worker.wait_for(READY)
    async with Watch(house.settings) as watch:
        await watch.until(lambda: len(watch.frames(CLUSTER)) >= 30, "the job has a baseline")
        hang = plan(target=node.target, job=node.job, duration=40.0, lease=LEASE_S)
        experiment = await watch.start(house, hang, CLUSTER)
        state = await watch.until(lambda: watch.reached(experiment, Status.ACTIVE), "the fault is in place")
        assert state.status is Status.ACTIVE, state.reason
        assert is_stopped(node.pid)

        marker = f"{int(time.time()) % 200 + 16:02x}"
        broker.stop()
        away = time.time()
        write_facts(marker)
        await watch.until(lambda: not is_stopped(node.pid), "its lease undoes the fault, broker or not", LEASE_S + 2.0)
        undone_by = time.time()
        await watch.read_on(away + OUTAGE_S - time.time())
        assert not is_stopped(node.pid)
        assert worker.running
        assert node.agent.running
        broker.restart()
        back_ms = int(time.time() * 1000)

        # Fault events: all of them, those of the outage included.
        await told_in_full(watch, node, experiment)
        (undone,) = {e.id: e for e in watch.faults(experiment_id=experiment, phase=FaultPhase.UNDONE)}.values()
        assert undone.reason == "lease expired"
        assert away < undone.time <= undone_by, "undone while the broker was away, and told with that time"
        await watch.until(lambda: len(ids(observed(watch, marker))) >= FACTS, "the facts of the outage arrive")
        facts = observed(watch, marker)
        assert len(ids(facts)) == FACTS
        assert len({fact.entity for fact in facts}) == FACTS
        assert all(away - 1 < fact.time < away + OUTAGE_S for fact in facts)

        # The worker goes on, and the experiment ends.
        await watch.until(lambda: ticks_since(watch, back_ms) >= 8, "ticks go on")
        state = await watch.until(lambda: watch.reached(experiment, Status.FINISHED), "it finishes", 90.0)
        assert state.verdict in {Verdict.PASSED, Verdict.FAILED, Verdict.HALTED}, state.reason
        assert state.faults[0].undone == pytest.approx(undone.event_time, abs=0.01)

        # Telemetry: the gap is exactly what the agent says that it dropped.
        frames = watch.frames(CLUSTER)
        runs = gaps(frames)
        assert len(runs) == 1, "one agent, never restarted"
        dropped = max(frame.dropped for frame in frames)
        assert dropped > OUTAGE_S / INTERVAL_S / 4
        assert sum(runs.values()) == dropped, dump({"missing": runs, "dropped": dropped})
        await watch.commits_reach_the_end("gpuchaos")
        assert worker.running


async def test_broker_held_for_eight_seconds_loses_nothing_at_all(house: House) -> None:
    assert house.broker is not None
    worker = house.worker().wait_for(READY)
    house.sim("--nodes", "12", "--cells", "1", "--cluster", CLUSTER, "--seed", "7").wait_for(READY)
    job, target = "train-c0-0", "process/n002/4101"
    async with Watch(house.settings) as watch:
        await watch.read_on(6.0)
        hang = plan(target=target, job=job, duration=16.0, lease=16.0)
        experiment = await watch.start(house, hang, CLUSTER)
        state = await watch.until(lambda: watch.reached(experiment, Status.ACTIVE), "the fault is in place")
        assert state.status is Status.ACTIVE, state.reason
        house.broker.pause()
        try:
            await watch.read_on(HELD_S)
        finally:
            house.broker.resume()
        state = await watch.until(lambda: watch.reached(experiment, Status.FINISHED), "it finishes", 90.0)
        assert not state.halts, "a pause of the broker is no breach"
        assert state.verdict is Verdict.PASSED, state.reason
        silent = [a.entity for a in watch.events(topics.ANOMALIES) if a.metric == "telemetry_stale"]
        assert silent == [], "nobody fell silent: the broker stood still"
        fault_id = stable_id(experiment, target)
        for phase in (FaultPhase.INJECTED, FaultPhase.UNDONE):
            assert len(ids(watch.faults(fault_id=fault_id, phase=phase))) == 1
        await watch.read_on(2.0)
        assert sum(gaps(watch.frames(CLUSTER)).values()) == 0
        assert not any(frame.dropped for frame in watch.frames(CLUSTER))
        await watch.commits_reach_the_end("gpuchaos")
        assert worker.running
