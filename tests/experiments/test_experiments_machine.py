"""The state machine: one table, and what it must never do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from experiments_help import BAD, EXPERIMENT, Agent, World, recovered, start, view
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.experiment import Status, Verdict
from gpuchaos_stream.events.fault import FaultPhase
from gpuchaos_stream.events.incident import BlastRadius, RecoveryOutcome, RecoveryRecord
from gpuchaos_stream.events.observation import CheckState
from gpuchaos_stream.experiments.machine import TRANSITIONS, Machine
from gpuchaos_stream.experiments.triggers import CONDITIONS, Trigger, View

FAULT_1 = stable_id(EXPERIMENT, "process/n1/10")


def active() -> World:
    """An experiment whose two faults are there."""
    world = World()
    world.until(4)
    assert world.state.status is Status.ACTIVE
    assert world.faults == 2
    return world


def test_every_transition_leads_on_or_to_a_halt_and_finished_is_final() -> None:
    order = list(Status)
    assert not [status for status, _ in TRANSITIONS if status is Status.FINISHED]
    for (status, trigger), target in TRANSITIONS.items():
        assert order.index(target) > order.index(status) or trigger is Trigger.HALT, (status, trigger)


def test_every_trigger_has_a_condition_and_a_row() -> None:
    assert set(CONDITIONS) == set(Trigger) == {trigger for _, trigger in TRANSITIONS}
    assert list(CONDITIONS) == list(Trigger), "the order in which triggers are looked at is the one that is documented"


def test_every_status_but_finished_can_be_halted_unless_it_is_halting() -> None:
    halted = {status for status, trigger in TRANSITIONS if trigger is Trigger.HALT}
    assert halted == set(Status) - {Status.HALTING, Status.FINISHED}


def test_a_good_run_goes_through_its_life_and_passes() -> None:
    world = World()
    seen = [world.state.status]
    while world.state.status is not Status.FINISHED and world.now < 120:
        world.step()
        if world.state.status is Status.RECOVERING:
            world.machine.update(EXPERIMENT, recovery=recovered())
        if world.state.status is not seen[-1]:
            seen.append(world.state.status)
    assert seen == [status for status in Status if status is not Status.HALTING]
    assert world.state.verdict is Verdict.PASSED, world.state.reason
    assert world.faults == 0


def test_nothing_is_injected_before_the_steady_state_has_held_for_settle() -> None:
    world = World()
    world.view = view(steady=BAD)
    world.until(10)
    assert world.sent == []
    world.view = view()
    world.until(12.75)
    assert world.sent == []
    world.until(13.5)
    assert world.kinds() == [CommandKind.INJECT, CommandKind.INJECT]


def test_one_bad_moment_starts_the_settling_again() -> None:
    world = World()
    world.until(2.5)
    world.view = view(steady=BAD)
    world.step()
    world.view = view()
    world.until(5.5)
    assert world.sent == []


def test_an_experiment_without_a_steady_state_is_void_and_says_which_check() -> None:
    world = World()
    world.view = view(steady=BAD)
    world.until(34)
    assert world.state.verdict is Verdict.VOID
    assert "no steady state to begin with (pace)" in world.state.reason
    assert world.sent == []


def test_a_job_of_which_nothing_is_known_is_named_in_the_reason() -> None:
    world = World()
    world.view = view(steady={"pace": CheckState.UNKNOWN})
    world.until(34)
    assert world.state.verdict is Verdict.VOID
    assert "no steady state to begin with (pace: no value of job/llama; is the name right" in world.state.reason


def test_an_unheard_check_is_no_steady_state() -> None:
    world = World()
    world.view = View()
    world.until(34)
    assert (world.state.verdict, world.sent) == (Verdict.VOID, [])


def test_every_agent_refusing_is_void() -> None:
    world = World()
    for agent in world.agents.values():
        agent.refuse = "pid 10 is the agent's parent"
    world.until(5)
    assert world.state.verdict is Verdict.VOID
    assert "the agent's parent" in world.state.reason
    assert CommandKind.UNDO not in world.kinds()


def test_injected_and_nothing_moved_is_void() -> None:
    world = World()
    for agent in world.agents.values():
        agent.ineffective = True
    world.until(5)
    assert (world.state.status, world.state.verdict) == (Status.FINISHED, Verdict.VOID)


def test_one_refused_target_is_said_and_the_rest_goes_on() -> None:
    world = World()
    world.agents["n2"].refuse = "no such process"
    world.until(5)
    assert world.state.status is Status.ACTIVE
    assert "not injected: process/n2/20: no such process" in world.state.reason


def test_a_silent_agent_is_given_up_and_its_fault_undone_all_the_same() -> None:
    world = World(duration="50s", objectives={"ttd": "5s", "ttm": "60s", "ttr": "90s"})
    world.agents["n2"].alive = False
    world.until(40)
    assert world.state.status is Status.ACTIVE
    undone = {command.node for command in world.sent if command.kind is CommandKind.UNDO}
    assert undone == {"n2"}


def test_an_inject_that_is_not_answered_is_sent_again_with_the_same_id_until_it_lapses() -> None:
    world = World()
    world.cut = True
    world.until(40)
    injects = [c for c in world.sent if c.kind is CommandKind.INJECT and c.node == "n1"]
    assert {c.id for c in injects} == {stable_id("inject", FAULT_1)}
    assert len({c.expires for c in injects}) == 1
    assert all(c.time < c.expires for c in injects)
    assert len(injects) == 15


def test_leases_are_renewed_every_third_with_an_id_of_the_fault_and_the_number() -> None:
    world = active()
    world.until(14)
    renewals = [c.id for c in world.sent if c.kind is CommandKind.RENEW and c.node == "n1"]
    assert renewals == [stable_id("renew", FAULT_1, n) for n in range(1, len(renewals) + 1)]
    assert len(renewals) == 5, "every 2 s from the injection at about 3 s to 14 s"


def test_faults_are_undone_at_the_end_of_the_duration() -> None:
    world = active()
    world.until(25)
    assert world.faults == 0
    assert world.state.status is Status.RECOVERING
    assert {c.id for c in world.sent if c.kind is CommandKind.UNDO} == {
        stable_id("undo", f.fault_id) for f in world.state.faults
    }


def test_an_undo_is_sent_until_the_agent_says_that_the_fault_is_gone() -> None:
    world = active()
    world.agents["n1"].deaf_to_undo = True
    world.until(33)
    undos = [c for c in world.sent if c.kind is CommandKind.UNDO and c.node == "n1"]
    assert len(undos) >= 2
    assert len({c.id for c in undos}) == 1
    assert undos[-1].expires > undos[0].expires, "an undo never lapses"


def test_a_lease_that_ran_out_by_itself_ends_the_experiment_with_the_reason() -> None:
    world = active()
    world.cut = True
    world.until(12)
    assert world.faults == 0
    world.cut = False
    world.step()
    assert world.state.status is Status.RECOVERING
    assert "ended early: process/n1/10: lease expired" in world.state.reason


def test_when_one_fault_ends_early_the_others_are_undone() -> None:
    world = active()
    world.hear(world.agents["n1"].restart(world.now))
    world.step()
    assert world.faults == 0
    assert "process/n1/10: restart" in world.state.reason


def test_a_halt_leads_to_recovery_and_is_the_verdict() -> None:
    world = active()
    world.view = view(halts={EXPERIMENT: "blast.gpus 9 > 8"})
    world.step()
    assert world.state.status is Status.HALTING
    world.until(12)
    assert world.state.status is Status.RECOVERING
    world.machine.update(EXPERIMENT, recovery=recovered())
    world.step()
    assert world.state.verdict is Verdict.HALTED
    assert world.state.reason == "blast.gpus 9 > 8"
    assert world.state.recovery.outcome is RecoveryOutcome.RECOVERED, "a halted experiment is still timed"


def test_the_act_stage_halts_alone_at_first_and_the_machine_undoes_what_is_left() -> None:
    world = active()
    world.view = view(halts={EXPERIMENT: "limit"})
    began = world.now
    world.until(began + 3.5)
    assert CommandKind.UNDO not in world.kinds()
    world.until(began + 6)
    assert world.faults == 0


def test_a_person_s_stop_undoes_at_once() -> None:
    world = active()
    assert world.machine.stop(EXPERIMENT, reason="wrong rack", by="ana")
    world.step()
    assert world.faults == 0
    world.step()
    assert world.state.status is Status.RECOVERING
    world.machine.update(EXPERIMENT, recovery=recovered())
    world.step()
    assert world.state.verdict is Verdict.STOPPED
    assert world.state.reason == "stopped by ana: wrong rack"


def test_a_stop_before_anything_was_injected_ends_it() -> None:
    world = World()
    world.machine.stop(EXPERIMENT)
    world.step()
    assert (world.state.verdict, world.sent) == (Verdict.STOPPED, [])


def test_a_stop_cannot_keep_a_miss_out_of_the_books() -> None:
    world = active()
    world.until(25)
    assert world.state.status is Status.RECOVERING
    assert not world.machine.stop(EXPERIMENT)


def test_a_halt_is_acted_on_once_however_often_it_is_reported() -> None:
    world = active()
    world.view = view(halts={EXPERIMENT: "limit"})
    halting = 0
    for _ in range(80):
        before = world.state.status
        world.step()
        halting += world.state.status is Status.HALTING and before is not Status.HALTING
    assert halting == 1


@pytest.mark.parametrize("fields", [{"tripped": "breaker: 3 halts in 10 min"}, {"frozen": "frozen until 12:00"}])
def test_breaker_and_freeze_hold_back_injects_and_never_an_undo(fields: dict[str, str]) -> None:
    world = World()
    world.view = view(**fields)
    world.until(5)
    assert world.sent == []
    running = active()
    running.view = view(**fields)
    running.until(25)
    assert running.faults == 0
    assert running.state.status is Status.RECOVERING


def test_a_tripped_breaker_voids_what_waits_so_that_a_reset_starts_nothing_old() -> None:
    world = World()
    world.view = view(tripped="breaker: 3 halts")
    world.step()
    world.view = view()
    world.until(10)
    assert (world.state.verdict, world.sent) == (Verdict.VOID, [])


def test_a_freeze_that_ends_in_time_lets_it_begin() -> None:
    world = World()
    world.view = view(frozen="maintenance")
    world.until(10)
    world.view = view()
    world.until(11)
    assert world.state.status is Status.ACTIVE


def test_an_agent_that_never_answers_the_undo_does_not_hold_up_the_verdict() -> None:
    world = active()
    world.agents["n1"].alive = False
    world.until(400)
    assert world.state.verdict is Verdict.FAILED
    assert "not confirmed" in world.state.reason
    sent = len(world.sent)
    world.until(440)
    assert len(world.sent) > sent, "the undo is still sent"
    world.hear(world.agents["n1"].restart(world.now))
    world.step()
    sent = len(world.sent)
    world.until(520)
    assert len(world.sent) == sent


def test_a_fault_that_appears_after_the_end_is_undone() -> None:
    world = World()
    world.cut = True
    world.until(200)
    assert world.state.verdict is Verdict.VOID
    late = next(c for c in world.sent if c.kind is CommandKind.INJECT and c.node == "n1")
    world.cut = False
    world.hear([Agent("n1").say(late, FaultPhase.INJECTED, 199.0)])
    assert CommandKind.UNDO in [c.kind for c in world.step(60.0) if c.node == "n1"]


def test_a_repeated_word_changes_nothing() -> None:
    world = active()
    world.until(25)
    assert world.state.status is Status.RECOVERING
    before = world.state
    for event in world.heard:
        world.machine.feed(event)
        assert world.state == before
    assert world.machine.owing() == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"recovery": recovered(ttr=50.0, met={"ttd": True, "ttm": True, "ttr": False})}, "not recovered"),
        ({"recovery": recovered(ttd=None, met={"ttd": False, "ttm": True, "ttr": True})}, "not detected"),
        ({"recovery": recovered(), "blast_radius": BlastRadius(nodes=2)}, "limit nodes exceeded (2 > 1)"),
        ({"recovery": RecoveryRecord(outcome=RecoveryOutcome.MISSED)}, "not recovered"),
    ],
)
def test_a_missed_objective_or_an_exceeded_limit_fails(fields: dict[str, Any], sentence: str) -> None:
    world = active()
    world.until(25)
    world.machine.update(EXPERIMENT, **fields)
    world.step()
    assert world.state.verdict is Verdict.FAILED
    assert sentence in world.state.reason


def test_a_run_is_not_over_while_a_detection_may_still_come_in_time() -> None:
    world = active()
    world.until(25)
    world.machine.update(EXPERIMENT, recovery=recovered(ttd=None, met={"ttd": None, "ttm": True, "ttr": True}))
    world.step()
    assert world.state.status is Status.RECOVERING
    world.machine.update(EXPERIMENT, recovery=recovered())
    world.step()
    assert world.state.verdict is Verdict.PASSED


def test_a_recovery_that_was_lost_again_does_not_pass() -> None:
    world = active()
    world.view = view(steady=BAD)
    world.until(25)
    world.machine.update(EXPERIMENT, recovery=recovered())
    world.until(60)
    assert world.state.status is Status.RECOVERING, "there is time left to be healthy in"
    world.until(200)
    assert world.state.verdict is Verdict.FAILED
    assert "no steady state at the end" in world.state.reason


def test_starting_twice_starts_once() -> None:
    machine = Machine()
    assert machine.start(start(), 0.0) is not None
    assert machine.start(start(), 1.0) is None
    assert len(machine.states()) == 1


def test_a_refused_plan_is_published_as_void_with_the_reason() -> None:
    machine = Machine()
    assert machine.start(start(lease="1s"), 0.0) is None
    (state,) = machine.changed()
    assert state.verdict is Verdict.VOID
    assert "too short to be renewed" in state.reason


def test_a_plan_that_is_none_is_published_as_void() -> None:
    machine = Machine()
    command = start().model_copy(update={"plan": {"name": ["?"]}})
    assert machine.start(command, 0.0) is None
    assert machine.settle(1.0, View()) == []
    (state,) = machine.states()
    assert state.verdict is Verdict.VOID


def test_two_experiments_never_share_a_target() -> None:
    machine = Machine()
    machine.start(start(), 0.0)
    assert machine.start(start("other"), 1.0) is None
    state = machine.state("other")
    assert state is not None
    assert "is a target of hang-1" in state.reason


def test_moving_numbers_are_published_once_a_second_and_a_new_status_at_once() -> None:
    machine = Machine()
    machine.start(start(), 0.0)
    assert len(machine.changed(0.0)) == 1
    machine.update(EXPERIMENT, attributed=1)
    assert machine.changed(0.5) == []
    assert len(machine.changed(1.0)) == 1
    machine.stop(EXPERIMENT)
    machine.settle(1.25, view())
    assert len(machine.changed(1.25)) == 1
    assert machine.changed(5.0) == []


def test_a_finished_experiment_is_forgotten_after_an_hour() -> None:
    world = World()
    world.machine.stop(EXPERIMENT)
    world.step()
    world.step(3700)
    assert world.machine.states() == []
    world.save()
    world.crash()
    assert world.machine.states() == []


def test_a_new_worker_goes_on_where_the_old_one_was_killed() -> None:
    world, other = active(), active()
    for _ in range(100):
        world.step()
        world.crash()
        other.step()
    assert [c.id for c in world.sent] == [c.id for c in other.sent]
    assert world.state.model_copy(update={"time": 0}) == other.state.model_copy(update={"time": 0})


ACTIONS: dict[str, Callable[[World], object]] = {
    "nothing": lambda _world: None,
    "crash": World.crash,
    "kill n1": lambda world: setattr(world.agents["n1"], "alive", False),
    "kill n2": lambda world: setattr(world.agents["n2"], "alive", False),
    "cut": lambda world: setattr(world, "cut", True),
    "heal": World.heal,
    "stop": World.stop,
    "repeat": lambda world: [world.machine.feed(event) for event in world.heard],
    "halt": lambda world: setattr(world, "view", replace(world.view, halts={EXPERIMENT: "limit"})),
    "trip": lambda world: setattr(world, "view", replace(world.view, tripped="breaker")),
    "bad": lambda world: setattr(world, "view", replace(world.view, steady={EXPERIMENT: BAD})),
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(1, 12)), max_size=30))
def test_whatever_is_killed_and_whenever_no_undo_is_held_back_and_a_verdict_is_reached(
    script: list[tuple[str, int]],
) -> None:
    """DESIGN §6.1 and §6.3, from the machine's side: the breaker and the halt stay as the script left them."""
    world = World()
    for action, steps in script:
        ACTIONS[action](world)
        for _ in range(steps):
            commands = world.step(0.75)
            assert not (world.view.tripped and CommandKind.INJECT in [c.kind for c in commands])
    world.heal()
    for _ in range(200):
        world.step(1.5)
    assert world.state.status is Status.FINISHED
    assert world.state.verdict is not None
    assert world.faults == 0
    assert world.machine.owing() == []
    assert all(len(agent.injected) <= 1 for agent in world.agents.values()), "each target is hit once at most"
