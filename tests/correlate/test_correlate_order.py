"""DESIGN §6.4: the same events in any order within the lateness bound, once or twice, give the same conclusions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from correlate_builders import T0, fact, fault, injected, node_info, number, undone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuchaos_stream.correlate.correlator import Correlator
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyPhase
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.topology.topology import Topology

Given = FaultEvent | Anomaly | NodeInfo

NOW = T0 + 300.0
TARGETS = {"e1": ("process/n0/100",), "e2": ("port/n3/mlx5_0", "gpu/n4/0")}
FAULTS: tuple[dict[str, str], ...] = (
    {"fault_id": "f1", "experiment": "e1", "name": "process-stop", "entity": "process/n0/100"},
    {"fault_id": "f2", "experiment": "e2", "name": "rdma-link", "entity": "port/n3/mlx5_0"},
    {"fault_id": "f3", "experiment": "e2", "name": "memory-corruption", "entity": "gpu/n4/0"},
    {"fault_id": "f4", "experiment": "e2", "name": "memory-corruption", "entity": "node/n4"},
)
#: What an injection was asked to do, where its agent says it: it decides what is charged to it.
PARAMS: tuple[dict[str, Any] | None, ...] = (None, {}, {"plane": "file"})

# Quarters of seconds: equal starts and ties are wanted, rounding is not.
moments = st.integers(-40, 400).map(lambda quarters: quarters / 4.0)
nodes = st.integers(0, 7)
severities = st.sampled_from(list(Severity))


@st.composite
def fault_lives(draw: st.DrawFn) -> list[Given]:
    options = draw(st.sampled_from(FAULTS))
    start = draw(moments)
    events: list[Given] = [injected(start, **options, params=draw(st.sampled_from(PARAMS)))]
    events += [fault(FaultPhase.RENEWED, start + at, **options) for at in draw(st.lists(st.sampled_from([2.0, 4.0])))]
    if draw(st.booleans()):
        events.append(undone(start + draw(st.sampled_from([5.0, 20.0])), **options))
    if draw(st.integers(0, 9)) == 0:
        events.append(fault(FaultPhase.NOT_EFFECTIVE, start, **options))
    return events


@st.composite
def numbers(draw: st.DrawFn) -> list[Given]:
    node = draw(nodes)
    entity, metric = draw(
        st.sampled_from(
            [
                (f"process/n{node}/100", "running"),
                (f"process/n{node}/100", "steps_rate"),
                (f"gpu/n{node}/{node % 4}", "power_watts"),
                (f"port/n{node}/mlx5_0", "port_active"),
                (f"node/n{node}", "telemetry_stale"),
                ("job/alpha", "steps_rate"),
                ("job/beta", "steps_rate"),
                ("cell/c0", "utilization_ratio"),
            ]
        )
    )
    start, severity = draw(moments), draw(severities)
    opened = number(entity, metric, start, severity=severity)
    events: list[Given] = [opened]
    if draw(st.booleans()):
        events.append(opened.model_copy(update={"id": f"{opened.id}u", "phase": AnomalyPhase.UPDATED}))
    if draw(st.booleans()):
        end = start + draw(st.sampled_from([1.0, 7.0, 50.0]))
        events.append(number(entity, metric, start, end=end, severity=severity))
    return events


@st.composite
def facts(draw: st.DrawFn) -> list[Given]:
    node, name = (
        draw(nodes),
        draw(
            st.sampled_from(
                ["gpu_lost", "gpu_ecc_dbe", "gpu_recovery_action", "gpu_nvlink_error", "checkpoint_corrupt"]
            )
        ),
    )
    if name == "checkpoint_corrupt":
        return [fact(f"process/n{node}/100", name, draw(moments), severity=Severity.ERROR, origin=Origin.APPLICATION)]
    entity = f"gpu/n{node // 4}/{draw(st.integers(0, 1))}"  # two nodes of one domain: facts are to meet
    kind = draw(st.sampled_from(["kernel", "kernel", "kernel", "spoof", "marked"]))
    origin = Origin.KERNEL if kind == "kernel" else Origin.PROCESS
    marked_by = draw(st.sampled_from(["f1", "f3", "f9"])) if kind == "marked" else None
    severity = draw(st.sampled_from([Severity.WARNING, Severity.ERROR, Severity.CRITICAL]))
    at = draw(st.integers(0, 40)) / 2.0
    return [fact(entity, name, at, severity=severity, origin=origin, marked_by=marked_by)]


@st.composite
def places(draw: st.DrawFn) -> list[Given]:
    job = draw(st.sampled_from(["alpha", "beta", "gamma", ""]))
    return [node_info(draw(nodes), time=T0 + draw(moments), job=job)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Given], list[Given]]:
    """A history in the order of its making, and the same events in another order with some of them twice."""
    parts = st.lists(st.one_of(numbers(), numbers(), facts(), facts(), places(), fault_lives()), max_size=14)
    events = [node_info(each) for each in range(8)]
    history: list[Given] = [*events, *(event for part in draw(parts) for event in part)]
    repeats = draw(st.lists(st.sampled_from(history), max_size=8))
    return history, draw(st.permutations([*history, *repeats]))


class Loop:
    """Topology and correlator fed as the control loop feeds them; can be killed and started from what it saved."""

    def __init__(self) -> None:
        self.saved: dict[str, bytes] = {}
        self.told: dict[str, Incident] = {}
        self._start()

    def _start(self) -> None:
        self.topology = Topology()
        self.correlator = Correlator(self.topology)
        self.topology.load(self.saved)
        self.correlator.load(self.saved)
        for experiment, targets in TARGETS.items():
            self.correlator.declare(experiment, targets)

    def feed(self, events: Sequence[Given]) -> None:
        for event in events:
            if isinstance(event, NodeInfo):
                self.topology.apply(event)
            else:
                self.correlator.feed(event)

    def commit(self) -> None:
        """What the stream room does after a batch: tell what changed, then save."""
        for incident in self.correlator.changed():
            self.told[incident.id] = incident
        for key, value in (self.topology.dirty() | self.correlator.dirty()).items():
            if value is None:
                self.saved.pop(key, None)
            else:
                self.saved[key] = value

    def kill(self) -> None:
        self._start()

    def conclusions(self) -> dict[str, Any]:
        subject = self.correlator
        return {
            "incidents": subject.incidents(),
            "blast": {each: subject.blast_radius(each, NOW) for each in TARGETS},
            "total": subject.total(NOW),
            "attributed": {each: subject.attributed(each) for each in TARGETS},
            "open": {each: subject.open_for(each, NOW) for each in TARGETS},
            "detected": {each: subject.first_detection(each) for each in TARGETS},
            "unattributed": subject.unattributed(0.0),
            "critical": subject.critical_unattributed(NOW),
        }


def concluded(events: Sequence[Given]) -> Loop:
    loop = Loop()
    loop.feed(events)
    return loop


slow = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@slow
@given(histories())
def test_any_order_and_any_repeats_give_the_same_conclusions(history: tuple[list[Given], list[Given]]) -> None:
    assert concluded(history[0]).conclusions() == concluded(history[1]).conclusions()


@slow
@given(histories(), st.lists(st.integers(1, 6), min_size=1))
def test_what_was_told_batch_by_batch_is_in_the_end_what_holds(
    history: tuple[list[Given], list[Given]], sizes: list[int]
) -> None:
    loop, events = Loop(), history[1]
    while events:
        size = sizes[len(events) % len(sizes)]
        loop.feed(events[:size])
        loop.commit()
        events = events[size:]
    holding = {each.id: each for each in loop.told.values() if not each.superseded}
    assert holding == {each.id: each for each in loop.correlator.incidents()}
    assert tuple(loop.correlator.incidents()) == concluded(history[0]).conclusions()["incidents"]


@slow
@given(histories(), st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.booleans()), min_size=1))
def test_kills_between_commits_change_nothing_that_holds(
    history: tuple[list[Given], list[Given]], steps: list[tuple[int, bool, bool]]
) -> None:
    loop, events, done = Loop(), history[1], 0
    while done < len(events):
        size, killed, asked = steps[done % len(steps)]
        loop.feed(events[done : done + size])
        if killed:
            loop.kill()  # nothing of this batch was saved: it is delivered again
            loop.feed(events[done : done + size])
        loop.commit()
        loop.kill()
        told = loop.told.copy()
        # State is saved before it is told: after a restart all of it is told again, and none of it differs.
        assert not asked or all(told[each.id] == each for each in loop.correlator.changed())
        done += size
    assert loop.conclusions() == concluded(history[0]).conclusions()
    holding = {each.id: each for each in loop.told.values() if not each.superseded}
    assert holding == {each.id: each for each in loop.correlator.incidents()}


@slow
@given(histories())
def test_each_anomaly_is_in_exactly_one_incident(history: tuple[list[Given], list[Given]]) -> None:
    loop = concluded(history[1])
    shown = [each.anomaly_id for incident in loop.correlator.incidents() for each in incident.anomalies]
    assert sorted(shown) == sorted({e.anomaly_id for e in history[0] if isinstance(e, Anomaly)})


@slow
@given(histories())
def test_nothing_that_began_before_an_injection_is_charged_to_it_unless_it_names_it(
    history: tuple[list[Given], list[Given]],
) -> None:
    loop = concluded(history[1])
    starts: dict[str, float] = {}
    for event in history[0]:
        if isinstance(event, FaultEvent) and event.phase is FaultPhase.INJECTED:
            starts[event.fault_id or ""] = min(event.time, starts.get(event.fault_id or "", event.time))
    marked = {e.anomaly_id for e in history[0] if isinstance(e, Anomaly) and e.injected_mark}
    for experiment in TARGETS:
        for each in loop.correlator.attributed(experiment):
            earliest = starts[each.evidence.fault_id or ""] - loop.correlator.config.slack_s
            assert each.start >= earliest or each.anomaly_id in marked


@slow
@given(histories())
def test_no_unmarked_hard_gpu_fact_is_ever_charged_to_these_experiments(
    history: tuple[list[Given], list[Given]],
) -> None:
    loop = concluded(history[1])
    hard = {
        e.anomaly_id
        for e in history[0]
        if isinstance(e, Anomaly) and e.metric.startswith("gpu_") and not e.injected_mark
    }
    for experiment in TARGETS:
        assert hard.isdisjoint(each.anomaly_id for each in loop.correlator.attributed(experiment))
