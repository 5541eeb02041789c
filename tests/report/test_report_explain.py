"""An explanation names the fact that decided, and the way to it is one that the machine really took."""

from __future__ import annotations

from itertools import groupby

import pytest
from report_help import EVERY, told

from gpuchaos_stream.events.experiment import HaltState, Status, Verdict
from gpuchaos_stream.experiments.machine import TRANSITIONS
from gpuchaos_stream.experiments.triggers import Trigger
from gpuchaos_stream.report import chain, explain_text
from gpuchaos_stream.report.explain import RULES, Explained, explain


def explained(verdict: str) -> Explained:
    one = told(verdict)
    return explain(one.state, one.story)


#: Verdict → the facts that decide it, as the experiments of `report_help` are made.
DECIDED = {
    "passed": {
        *("objective ttd", "objective ttm", "objective ttr", "undo", "steady state"),
        *("limit gpus", "limit nodes", "limit jobs", "limit gpu_seconds"),
    },
    "failed": {"objective ttm", "objective ttr"},
    "halted": {"halt hard-limit-nodes"},
    "void": {"nothing tested"},
    "stopped": {"stop"},
}


@pytest.mark.parametrize("verdict", EVERY)
def test_the_deciding_fact_of_each_verdict_is_named(verdict: str) -> None:
    found = explained(verdict)
    assert {reason.fact for reason in found.decided} == DECIDED[verdict]
    assert found.rule == RULES[Verdict(verdict)]


def test_every_verdict_has_its_rule_and_every_trigger_its_sentence() -> None:
    assert set(RULES) == {*Verdict, None}
    assert set(chain._SAYS) >= set(Trigger)


@pytest.mark.parametrize("verdict", EVERY)
def test_the_way_is_the_one_that_the_machine_took(verdict: str) -> None:
    one, found = told(verdict), explained(verdict)
    seen = [status for status, _ in groupby(state.status for state in one.story.versions(one.state.id))]
    walked = [found.steps[0].source, *(step.target for step in found.steps)]
    # What was passed through within one settle was never published.
    assert [status for status in walked if status in seen] == seen
    assert walked[-1] is Status.FINISHED
    for step in found.steps:
        assert step.trigger == "refused" or TRANSITIONS[step.source, Trigger(step.trigger)] is step.target


def test_a_persons_stop_is_not_said_to_be_the_guards() -> None:
    one = told("stopped")
    (halt,) = told("halted").state.halts
    asked = halt.model_copy(update={"cause": "operator:1a2b", "requested": one.state.started + 5})
    steps = explain(one.state.model_copy(update={"halts": (asked,)}), one.story).steps
    assert Trigger.STOP in [step.trigger for step in steps]
    assert Trigger.HALT not in [step.trigger for step in steps]


@pytest.mark.parametrize("verdict", EVERY)
def test_the_latest_state_alone_gives_the_same_way(verdict: str) -> None:
    one, whole = told(verdict), explained(verdict)
    alone = chain.chain(one.state, [one.state], one.story.faults(one.state.id))
    assert [step.trigger for step in alone] == [step.trigger for step in whole.steps]


@pytest.mark.parametrize("verdict", ["passed", "failed", "halted", "stopped"])
def test_every_state_on_the_way_can_be_explained(verdict: str) -> None:
    one = told(verdict)
    for state in one.story.versions(one.state.id):
        found = explain(state, one.story)
        assert (found.steps[-1].target if found.steps else Status.PENDING) is state.status
        assert found.verdict is state.verdict
        if state.verdict is None:
            assert [reason.fact for reason in found.decided] == ["not finished"]


@pytest.mark.parametrize("verdict", ["passed", "failed", "halted"])
def test_steps_are_shown_by_what_agents_said(verdict: str) -> None:
    shown = {step.trigger: " ".join(step.shown_by) for step in explained(verdict).steps}
    entity = told(verdict).state.faults[0].entity
    assert f"injected {entity}" in shown[Trigger.INJECTED]
    assert f"undone {entity}" in shown[Trigger.GONE]
    times = [step.at for step in explained(verdict).steps if step.at is not None]
    assert times == sorted(times)


def test_a_halt_shows_when_it_was_confirmed_and_which_limit_it_kept() -> None:
    (halt,) = explained("halted").decided
    assert halt.sentence == told("halted").state.halts[0].reason
    assert any(line.startswith("confirmed after") for line in halt.evidence)
    assert "nodes: 3 hurt, limit 2" in halt.evidence


def test_an_undo_that_is_overdue_decides_a_failed_run_and_is_a_step() -> None:
    one = told("failed")
    faults = tuple(f.model_copy(update={"phase": "undo_failed", "undone": None}) for f in one.state.faults)
    reason = f"undo not confirmed: gpu/n034/2; {one.state.reason}; a fault was not confirmed undone"
    found = explain(one.state.model_copy(update={"faults": faults, "reason": reason}), one.story)
    assert "undo" in {each.fact for each in found.decided}
    assert Trigger.UNDO_OVERDUE in {step.trigger for step in found.steps}


def test_a_fault_that_ended_early_is_a_step() -> None:
    one = told("passed")
    found = explain(one.state.model_copy(update={"reason": "ended early: gpu/n034/2: lease over"}), one.story)
    assert Trigger.ENDED_EARLY in {step.trigger for step in found.steps}
    assert Trigger.DURATION_OVER not in {step.trigger for step in found.steps}


def test_a_halt_while_it_recovers_goes_back_to_halting() -> None:
    one = told("passed")
    undone = max(fault.undone for fault in one.state.faults if fault.undone is not None)
    halt = told("halted").state.halts[0].model_copy(update={"requested": undone + 1, "state": HaltState.CONFIRMED})
    state = one.state.model_copy(update={"halts": (halt,), "verdict": Verdict.HALTED})
    targets = [step.target for step in chain.chain(state, [state], [])]
    assert targets[-4:] == [Status.RECOVERING, Status.HALTING, Status.RECOVERING, Status.FINISHED]


@pytest.mark.parametrize(
    ("reason", "trigger"),
    [
        ("the plan is refused: fault.name: no such fault", "refused"),
        ("refused: gpu/n1/0 is a target of other-1, which is not over", "refused"),
        ("refused: gpu/n1/0: node n1 has the label gpuchaos.protected", Trigger.UNSAFE),
        ("not started: the breaker is tripped", Trigger.BLOCKED),
        ("no steady state to begin with (pace)", Trigger.UNSTEADY),
        ("frozen: by a rule", Trigger.UNSTEADY),
        ("gpu/n1/0: cluster 'demo' knows no node 'n1'", Trigger.UNKNOWN_TARGET),
    ],
)
def test_why_it_never_began_is_told_from_its_reason(reason: str, trigger: str) -> None:
    state = told("void").state.model_copy(update={"reason": reason})
    assert [step.trigger for step in chain.chain(state, [state], [])] == [trigger]


@pytest.mark.parametrize("verdict", EVERY)
def test_the_text_says_verdict_reason_and_rule(verdict: str) -> None:
    text = explain_text.text(explained(verdict))
    assert text.startswith(f"{told(verdict).state.id}: {verdict}")
    assert RULES[Verdict(verdict)] in text
    assert all(reason.sentence in text for reason in explained(verdict).decided)


def test_the_text_lets_no_event_move_the_cursor() -> None:
    one = told("stopped")
    text = explain_text.text(explain(one.state.model_copy(update={"reason": "x\x1b[2J\ry\nz"}), one.story))
    assert "\x1b" not in text
    assert "\r" not in text
