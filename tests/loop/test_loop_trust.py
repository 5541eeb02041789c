"""Found by trying to break it: no fault begins unattended, no halt is missed by a slow worker or made by a restart."""

from __future__ import annotations

import pytest
from test_loop_control import CLUSTER, OPERATOR, PLAN, T0, Machine, answer, node, raw, summary

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import Command, CommandKind
from gpuchaos_stream.events.deadletter import DeadLetter
from gpuchaos_stream.events.envelope import command_record, to_record
from gpuchaos_stream.events.experiment import Status, Verdict
from gpuchaos_stream.events.fault import FaultPhase
from gpuchaos_stream.events.observation import Tick
from gpuchaos_stream.experiments.client import operator_command, start_command
from gpuchaos_stream.loop.control import MOST_BYTES, MOST_CLUSTERS
from gpuchaos_stream.loop.recording import Recorded


def tick(machine: Machine, at: float) -> Recorded:
    return machine.record(to_record(Tick(id=f"t{at}", time=at, cluster=CLUSTER), topics.OBSERVATIONS, source="/t"), at)


def told(machine: Machine, at: float) -> list[Recorded]:
    return [machine.record(to_record(summary(at), topics.OBSERVATIONS, source="/t"), at), tick(machine, at)]


def started(machine: Machine) -> str:
    start = start_command(PLAN, cluster=CLUSTER, now=T0)
    machine.give([machine.record(to_record(node(n), topics.NODES, source="/t"), T0) for n in ("n1", "n2")])
    machine.give([machine.record(command_record(start, OPERATOR, source="/t"), T0)])
    assert start.experiment_id is not None
    return start.experiment_id


def active(machine: Machine) -> str:
    """An experiment whose fault is in place at T0 + 6."""
    experiment = started(machine)
    for step in range(8):
        machine.give(told(machine, T0 + 0.5 + step * 0.5))
    inject: Command = machine.commands(CommandKind.INJECT)[0]
    event = answer(inject, FaultPhase.INJECTED, T0 + 5)
    machine.give([machine.record(to_record(event, topics.FAULTS, source="/t"), T0 + 5), *told(machine, T0 + 6)])
    assert machine.states()[experiment].status is Status.ACTIVE
    return experiment


def test_start_that_waited_in_kafka_while_nobody_read_begins_nothing() -> None:
    machine = Machine()
    start = start_command(PLAN, cluster=CLUSTER, now=T0)
    waited = machine.record(command_record(start, OPERATOR, source="/t"), T0 + 1)
    machine.give([machine.record(to_record(node("n1"), topics.NODES, source="/t"), T0 + 36_000)])
    machine.give([*told(machine, T0 + 36_000), waited])
    for step in range(20):
        machine.give(told(machine, T0 + 36_001 + step * 0.5))
    assert machine.commands(CommandKind.INJECT) == []
    letters: list[DeadLetter] = machine.events(topics.DEADLETTER)
    assert [letter.reason.partition(":")[0] for letter in letters] == ["refused (expired)"]


@pytest.mark.parametrize("ticks_per_batch", [1, 13, 40])
def test_silent_target_is_halted_however_slowly_the_worker_reads(ticks_per_batch: int) -> None:
    machine = Machine()
    experiment = active(machine)
    ticks = [tick(machine, T0 + 6.25 + step * 0.25) for step in range(120)]
    for at in range(0, len(ticks), ticks_per_batch):
        machine.give(ticks[at : at + ticks_per_batch])
    assert machine.commands(CommandKind.HALT)
    assert machine.states()[experiment].halts


def test_restart_of_the_worker_is_not_taken_for_silence_of_the_nodes() -> None:
    machine = Machine()
    experiment = active(machine)
    machine.restart()
    # Eleven seconds later it reads ticks for four seconds, then hears of the cells again.
    for step in range(16):
        machine.give([tick(machine, T0 + 17 + step * 0.25)])
    machine.give(told(machine, T0 + 21))
    for step in range(8):
        machine.give(told(machine, T0 + 21.5 + step * 0.5))
    assert machine.states()[experiment].halts == ()


def test_silence_after_a_restart_is_believed_in_the_end() -> None:
    machine = Machine()
    active(machine)
    machine.restart()
    for step in range(80):
        machine.give([tick(machine, T0 + 17 + step * 0.25)])
    assert machine.commands(CommandKind.HALT)


def test_target_on_a_node_that_nobody_knows_is_void_with_the_nearest_name_and_trips_nothing() -> None:
    machine = Machine()
    machine.give([machine.record(to_record(node(n), topics.NODES, source="/t"), T0) for n in ("n1", "n2")])
    typo = PLAN.model_copy(update={"targets": PLAN.targets.model_copy(update={"entities": ("process/n1x/7",)})})
    for number in range(4):
        start = start_command(typo, cluster=CLUSTER, experiment_id=f"typo-{number}", now=T0)
        machine.give([machine.record(command_record(start, OPERATOR, source="/t"), T0)])
        for step in range(16):
            machine.give(told(machine, T0 + 0.5 + step * 0.5))
        if number == 0:
            state = machine.states()["typo-0"]
            assert state.verdict is Verdict.VOID
            assert "did you mean 'n1'?" in state.reason
    breaker = machine.breaker()
    assert breaker is None or not breaker.tripped


def test_stop_all_counts_from_its_arrival_whatever_the_senders_clock_says() -> None:
    machine = Machine()
    started(machine)
    machine.give(told(machine, T0 + 100))
    reset = operator_command(CommandKind.RESET, cluster=CLUSTER, now=T0 + 100, reason="all is well")
    machine.give([machine.record(command_record(reset, OPERATOR, source="/t"), T0 + 100)])
    slow = operator_command(CommandKind.STOP_ALL, cluster=CLUSTER, now=T0 + 90, reason="it is not")
    machine.give([machine.record(command_record(slow, OPERATOR, source="/t"), T0 + 110)])
    breaker = machine.breaker()
    assert breaker is not None
    assert breaker.tripped


def test_record_too_large_to_be_told_again_is_set_aside() -> None:
    machine = Machine()
    huge = node("n1").model_copy(update={"labels": {"x": '"' * MOST_BYTES}})
    machine.give([machine.record(to_record(huge, topics.NODES, source="/t"), T0)])
    (letter,) = machine.events(topics.DEADLETTER)
    assert f"at most {MOST_BYTES}" in letter.reason


def test_unsigned_names_of_clusters_cannot_crowd_out_the_real_ones() -> None:
    machine = Machine()
    experiment = started(machine)
    flood = [
        raw(
            topics.OBSERVATIONS.name,
            Tick(id=f"x{n}", time=T0, cluster=f"x{n}").model_dump_json().encode(),
            T0,
            1000 + n,
        )
        for n in range(500)
    ]
    machine.give(flood)
    assert len(machine.control.clusters) == MOST_CLUSTERS
    machine.give(told(machine, T0 + 1))
    assert experiment in machine.states()
