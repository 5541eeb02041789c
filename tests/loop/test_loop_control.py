"""The control stage on raw records: bad messages stop nothing, and a crash anywhere changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyKind, AnomalyPhase
from gpuchaos_stream.events.base import Event, Severity, stable_id
from gpuchaos_stream.events.command import Command, CommandKind, Role, SignedCommand
from gpuchaos_stream.events.deadletter import DeadLetter
from gpuchaos_stream.events.envelope import Record, command_record, from_value, to_record
from gpuchaos_stream.events.experiment import BreakerState, ExperimentState, Status
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.node import GpuPlace, NodeInfo
from gpuchaos_stream.events.observation import CellSummary, NodeSeen, Tick
from gpuchaos_stream.events.signing import KeyRing, Signer, Verifier
from gpuchaos_stream.experiments.client import operator_command, start_command
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.guard.rules import load as load_rules
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.loop.cluster import ClusterLoop
from gpuchaos_stream.loop.control import Control
from gpuchaos_stream.loop.recording import Recorded

CLUSTER = "c"
T0 = 1_000_000.0
CONTROL = Signer.generate(Role.CONTROL)
OPERATOR = Signer.generate(Role.OPERATOR)
VERIFIER = Verifier(KeyRing(keys=(CONTROL.trusted(), OPERATOR.trusted())))
RULES = load_rules([shipped_rules()])
TARGET = "gpu/n1/0"

PLAN = Plan.model_validate(
    {
        "api_version": "gpuchaos/v1",
        "kind": "Experiment",
        "name": "spread",
        "description": "an experiment whose fault spreads",
        "owner": "tests",
        "fault": {"name": "process-stop", "certifies": ("automatic-halt",)},
        "targets": {"entities": ("process/n1/7",)},
        "duration": 60.0,
        "lease": 20.0,
        "undo": {"method": "automatic", "deadline": 20.0},
        "limits": {"gpus": 0, "nodes": 0, "jobs": 0, "gpu_seconds": 0.0},
        "steady_state": {
            "hold": 2.0,
            "checks": (
                {
                    "name": "up",
                    "telemetry": {"of": "node/n1", "metric": "node.cpu_busy_ratio.mean", "op": "<=", "value": 2.0},
                },
            ),
        },
        "objectives": {"ttd": 30.0, "ttm": 90.0, "ttr": 120.0},
        "settle": 1.0,
    }
)


class Machine:
    """A worker that can be killed: its table survives, its memory does not, records are delivered again."""

    def __init__(self) -> None:
        self.table: dict[bytes, bytes] = {}
        self.sent: list[Record] = []
        self.offset = 0
        self.restart()

    def restart(self) -> None:
        self.control = Control(
            table=self.table,
            make_loop=lambda cluster: ClusterLoop(cluster, RULES),
            verifier=VERIFIER,
            signer=CONTROL,
            source="/test",
        )

    def record(self, record: Record, at: float) -> Recorded:
        self.offset += 1
        return raw(record.topic.name, record.value, at, self.offset)

    def give(self, batch: list[Recorded], crash: str | None = None) -> None:
        """One batch; with `crash` the worker is killed in that place, restarted, and the batch delivered again."""
        out = self.control.take(batch)
        if crash != "before save":
            before = dict(self.table)
            self.control.save()
            if crash == "while saving":
                self.lose_half(before)
            # Some of what was to be sent may have gone out before the kill.
            self.sent += out if crash is None else out[: len(out) // 2] if crash == "while sending" else []
        if crash is not None:
            self.restart()
            self.give(batch)

    def lose_half(self, before: dict[bytes, bytes]) -> None:
        """Of the keys that a save changed, every second one did not reach the changelog."""
        changed = sorted(key for key in before.keys() | self.table.keys() if before.get(key) != self.table.get(key))
        for key in changed[::2]:
            if key in before:
                self.table[key] = before[key]
            else:
                del self.table[key]

    def events(self, topic: topics.Topic) -> list[Any]:
        return [from_value(topic.name, record.value) for record in self.sent if record.topic is topic]

    def commands(self, kind: CommandKind) -> list[Command]:
        signed: list[SignedCommand] = self.events(topics.COMMANDS)
        commands = [Command.model_validate_json(each.payload) for each in signed]
        return [command for command in commands if command.kind is kind]

    def states(self) -> dict[str, ExperimentState]:
        return {e.id: e for e in self.events(topics.EXPERIMENTS) if isinstance(e, ExperimentState)}

    def breaker(self) -> BreakerState | None:
        states = [e for e in self.events(topics.EXPERIMENTS) if isinstance(e, BreakerState)]
        return states[-1] if states else None


def raw(topic: str, value: bytes | None, at: float, offset: int = 1) -> Recorded:
    return Recorded(topic, 0, offset, int(at * 1000), None, value)


def node(name: str) -> NodeInfo:
    return NodeInfo(
        id=f"info-{name}", time=T0, cluster=CLUSTER, node=name, cell="c0", gpus=(GpuPlace(index="0"),), jobs=("llama",)
    )


def summary(at: float) -> CellSummary:
    return CellSummary(
        id=stable_id("summary", at),
        time=at,
        cluster=CLUSTER,
        cell="c0",
        nodes={name: NodeSeen(last=at) for name in ("n1", "n2")},
        order=("n1", "n2"),
        columns={"node.cpu_busy_ratio.mean": (0.5, 0.5)},
    )


def spread(at: float) -> Anomaly:
    return Anomaly(
        id="spread",
        time=at,
        cluster=CLUSTER,
        anomaly_id="spread",
        phase=AnomalyPhase.OPENED,
        kind=AnomalyKind.PAST,
        metric="steps_rate",
        entity="process/n2/9",
        node="n2",
        cell="c0",
        job="llama",
        start=at,
        severity=Severity.ERROR,
        score=20.0,
        effect=1.0,
    )


def answer(command: Command, phase: FaultPhase, at: float) -> FaultEvent:
    assert command.fault_id
    assert command.entity or command.kind is not CommandKind.INJECT
    return FaultEvent(
        id=stable_id(command.id, phase),
        time=at,
        cluster=CLUSTER,
        phase=phase,
        fault="process-stop",
        node="n1",
        entity="process/n1/7",
        fault_id=command.fault_id,
        experiment_id=command.experiment_id,
        command_id=command.id,
        lease_expires=at + 20.0,
    )


def play(machine: Machine, crashes: Iterable[str | None]) -> str:
    """An experiment that spreads past its limits and is halted; a kill wherever `crashes` says. Returns its id."""
    places = iter(crashes)
    start = start_command(PLAN, cluster=CLUSTER, now=T0)
    records: list[tuple[float, Record]] = [(T0, command_record(start, OPERATOR, source="/t"))]
    records += ((T0, to_record(node(name), topics.NODES, source="/t")) for name in ("n1", "n2"))
    injected = spread_at = None
    answered: set[str] = set()
    for step in range(70):
        at = T0 + 0.5 + step * 0.5
        records.append((at, to_record(Tick(id=f"t{step}", time=at, cluster=CLUSTER), topics.OBSERVATIONS, source="/t")))
        records.append((at, to_record(summary(at), topics.OBSERVATIONS, source="/t")))
        for command in machine.commands(CommandKind.INJECT):
            if command.id not in answered:
                answered.add(command.id)
                told = answer(command, FaultPhase.INJECTED, at)
                records.append((at, to_record(told, topics.FAULTS, source="/t")))
                injected = step
        if spread_at is None and injected is not None and step >= max(20, injected + 1):
            spread_at = step
            records.append((at, to_record(spread(at), topics.ANOMALIES, source="/t")))
        for command in machine.commands(CommandKind.HALT):
            if command.id not in answered and spread_at is not None and step > spread_at + 4:
                answered.add(command.id)
                inject = machine.commands(CommandKind.INJECT)[0]
                asked = command.model_copy(update={"fault_id": inject.fault_id, "entity": inject.entity})
                for phase in (FaultPhase.ACKNOWLEDGED, FaultPhase.UNDONE):
                    records.append((at, to_record(answer(asked, phase, at), topics.FAULTS, source="/t")))
        machine.give([machine.record(record, when) for when, record in records], next(places, None))
        records = []
    assert start.experiment_id is not None
    return start.experiment_id


PLACES = st.sampled_from([None, "before save", "while saving", "while sending", "after save"])


@settings(max_examples=25, deadline=None)
@given(st.lists(PLACES, min_size=70, max_size=70))
def test_a_breach_is_one_halt_wherever_the_worker_is_killed(crashes: list[str | None]) -> None:
    machine = Machine()
    experiment = play(machine, crashes)
    halts = {(command.node, command.id) for command in machine.commands(CommandKind.HALT)}
    assert len(halts) == 1
    state = machine.states()[experiment]
    assert len(state.halts) == 1
    assert state.halts[0].undone is not None
    assert state.status in {Status.RECOVERING, Status.FINISHED}
    assert {command.id for command in machine.commands(CommandKind.INJECT)} == {
        command.id for command in machine.commands(CommandKind.INJECT)[:1]
    }


def test_the_same_run_without_a_kill_concludes_the_same() -> None:
    calm, stormy = Machine(), Machine()
    one, other = play(calm, []), play(stormy, ["while sending", "before save", "while saving", "after save"] * 17)
    plain, killed = calm.states()[one], stormy.states()[other]
    assert plain.verdict == killed.verdict
    # Times differ by what a restart costs: a command that was lost with the worker is sent again two seconds later.
    assert plain.recovery.outcome == killed.recovery.outcome
    assert plain.blast_radius.gpus == killed.blast_radius.gpus
    assert [halt.cause for halt in plain.halts] == [halt.cause for halt in killed.halts]


GARBAGE = st.one_of(
    st.binary(max_size=60),
    st.just(b""),
    st.none(),
    st.just(b"[" * 4000),
    st.just(b'{"type": "tick"}'),
    st.text(max_size=40).map(str.encode),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([t.name for t in topics.CONTROL_INPUTS]), GARBAGE), max_size=12), st.data())
def test_each_bad_message_is_one_dead_letter_and_the_good_ones_around_it_count(
    bad: list[tuple[str, bytes | None]], data: st.DataObject
) -> None:
    machine = Machine()
    batch = [raw(topic, value, T0, 100 + number) for number, (topic, value) in enumerate(bad)]
    start = start_command(PLAN, cluster=CLUSTER, now=T0)
    at = data.draw(st.integers(0, len(batch)))
    batch.insert(at, machine.record(command_record(start, OPERATOR, source="/t"), T0))
    machine.give(batch)
    letters: list[DeadLetter] = machine.events(topics.DEADLETTER)
    assert sorted((letter.topic, letter.offset) for letter in letters) == sorted(
        (record.topic, record.offset) for record in batch if record.offset >= 100
    )
    assert all(letter.reason for letter in letters)
    assert set(machine.states()) == {start.experiment_id}


def forged(command: Command) -> SignedCommand:
    return Signer.generate(Role.OPERATOR).sign(command)


@pytest.mark.parametrize("kind", [CommandKind.START, CommandKind.STOP_ALL, CommandKind.RESET, CommandKind.STOP])
@pytest.mark.parametrize("fault", ["forged", "altered", "expired"])
def test_command_that_is_not_believed_changes_nothing_and_is_reported(kind: CommandKind, fault: str) -> None:
    machine = Machine()
    fields: dict[str, Any] = {"plan": PLAN.model_dump(mode="json", exclude_none=True), "experiment_id": "e"}
    command = operator_command(kind, cluster=CLUSTER, now=T0, reason="because", **fields)
    signed = forged(command) if fault == "forged" else OPERATOR.sign(command)
    if fault == "altered":
        signed = signed.model_copy(update={"payload": signed.payload.replace("because", "becausE")})
    at = T0 + (3600.0 if fault == "expired" else 1.0)
    machine.give([raw(topics.COMMANDS.name, signed.model_dump_json().encode(), at)])
    (letter,) = machine.events(topics.DEADLETTER)
    assert "refused" in letter.reason
    assert machine.states() == {}
    assert machine.breaker() is None


def test_stop_of_all_halts_what_runs_trips_the_breaker_and_a_reset_needs_its_own_command() -> None:
    machine = Machine()
    start = start_command(PLAN, cluster=CLUSTER, now=T0)
    events: list[tuple[Event, topics.Topic]] = [(node("n1"), topics.NODES)]
    machine.give([machine.record(command_record(start, OPERATOR, source="/t"), T0)])
    machine.give([machine.record(to_record(event, topic, source="/t"), T0) for event, topic in events])
    for step in range(8):
        at = T0 + 0.5 + step * 0.5
        machine.give([machine.record(to_record(summary(at), topics.OBSERVATIONS, source="/t"), at)])
    (inject,) = machine.commands(CommandKind.INJECT)[:1]
    told = answer(inject, FaultPhase.INJECTED, T0 + 5)
    machine.give([machine.record(to_record(told, topics.FAULTS, source="/t"), T0 + 5)])
    stop = operator_command(CommandKind.STOP_ALL, cluster=CLUSTER, now=T0 + 6, reason="smoke in the hall")
    machine.give([machine.record(command_record(stop, OPERATOR, source="/t"), T0 + 6)])
    assert len({command.id for command in machine.commands(CommandKind.HALT)}) == 1
    state = machine.states()[start.experiment_id or ""]
    assert state.status is Status.HALTING
    breaker = machine.breaker()
    assert breaker is not None
    assert breaker.tripped
    machine.restart()
    reset = operator_command(CommandKind.RESET, cluster=CLUSTER, now=T0 + 8, reason="false alarm")
    machine.give([machine.record(command_record(reset, OPERATOR, source="/t"), T0 + 8)])
    breaker = machine.breaker()
    assert breaker is not None
    assert not breaker.tripped


def test_silence_of_everything_is_noticed_by_ticks_after_a_restart() -> None:
    machine = Machine()
    machine.give([machine.record(to_record(node("n1"), topics.NODES, source="/t"), T0)])
    machine.restart()
    machine.control.restore(lambda cluster: cluster == CLUSTER)
    assert machine.control.clusters == (CLUSTER,)
