"""A report's facts are those of the run: what was done, what it certifies, how far it went, what to change."""

from __future__ import annotations

import random

import pytest
from report_help import EVERY, told

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.experiment import Halt, HaltState, Status, Verdict
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.report.advice import _CUT
from gpuchaos_stream.report.facts import facts
from gpuchaos_stream.report.model import Report
from gpuchaos_stream.report.spread import UNKNOWN
from gpuchaos_stream.report.story import Story
from gpuchaos_stream.topology.place import EVERY as EVERY_WAY


def report(verdict: str) -> Report:
    one = told(verdict)
    return facts(one.state, one.story)


@pytest.mark.parametrize("verdict", EVERY)
def test_an_experiment_of_every_verdict_has_a_report(verdict: str) -> None:
    found = report(verdict)
    assert found.verdict == verdict
    assert found.undo_confirmed
    assert [goal.name for goal in found.goals] == ["ttd", "ttm", "ttr"]
    assert all(goal.objective is not None for goal in found.goals)


@pytest.mark.parametrize("verdict", EVERY)
def test_the_json_reads_back_to_the_same_report(verdict: str) -> None:
    found = report(verdict)
    assert Report.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize("verdict", EVERY)
def test_the_same_events_topic_by_topic_as_kafka_gives_them_and_twice_give_the_same_report(verdict: str) -> None:
    one = told(verdict)
    kinds = sorted({type(event).__name__ for event in one.events})
    random.Random(7).shuffle(kinds)
    by_topic = sorted(one.events, key=lambda event: kinds.index(type(event).__name__))
    story = Story.of([*by_topic, *by_topic])
    state = story.state(one.state.id)
    assert state == one.state
    assert facts(state, story).model_dump_json() == report(verdict).model_dump_json()


def test_a_run_that_passed_certifies_its_claims_and_never_more_than_its_fault_reaches() -> None:
    found = report("passed")
    assert {claim.claim: claim.certified for claim in found.claims} == {
        "error-detection": True,
        "error-attribution": True,
    }
    assert "gpu-failure" in found.never
    assert "no memory cell is touched" in found.layer


@pytest.mark.parametrize("verdict", ["failed", "void", "stopped"])
def test_a_run_that_did_not_pass_certifies_nothing(verdict: str) -> None:
    assert not any(claim.certified for claim in report(verdict).claims)


def test_a_halt_that_did_its_work_certifies_that_it_comes_by_itself() -> None:
    one = told("halted")
    assert [claim.certified for claim in report("halted").claims] == [True]
    rehearsed = tuple(halt.model_copy(update={"dry_run": True}) for halt in one.state.halts)
    dry = facts(one.state.model_copy(update={"halts": rehearsed}), one.story)
    assert [claim.certified for claim in dry.claims] == [False]


def test_what_was_injected_comes_with_what_its_agent_measured() -> None:
    (line,) = report("halted").injected
    assert line.entity == "process/n016/4100"
    assert line.evidence["moved"] == "state T"
    assert line.undo_evidence
    assert line.params == {"spread": 8, "spread_every_s": 2.0}


def test_what_broke_beside_the_target_is_tied_to_it_by_the_job_that_they_share() -> None:
    (branch,) = report("halted").branches
    assert (branch.target, branch.through, branch.shared) == ("process/n016/4100", "job", "train-c1-0")
    nodes = {each.entity.split("/")[1] for each in branch.reached}
    assert "n016" not in nodes
    assert len(nodes) == told("halted").state.blast_radius.nodes
    assert branch.total == len(branch.reached) == len(told("halted").state.blast_radius.entities)
    times = [each.after_s for each in branch.reached]
    assert times == sorted(times)
    assert any("train-c1-0" in advice.change for advice in report("halted").advice)


def test_what_broke_belongs_to_the_target_that_is_nearest_to_it() -> None:
    one = told("halted")
    second = one.state.faults[0].model_copy(update={"fault_id": "f2", "entity": "process/n018/4100", "node": "n018"})
    state = one.state.model_copy(update={"faults": (*one.state.faults, second)})
    ties = {each.entity: (b.target, b.through) for b in facts(state, one.story).branches for each in b.reached}
    assert ties["gpu/n018/0"] == ("process/n018/4100", "node")
    assert ties["gpu/n017/0"] == ("process/n016/4100", "job")


def test_every_way_that_harm_can_take_has_its_advice() -> None:
    assert set(_CUT) == {*EVERY_WAY, UNKNOWN}


def test_without_a_topology_the_tie_is_said_to_be_unknown() -> None:
    one = told("halted")
    story = Story.of(event for event in one.events if not isinstance(event, NodeInfo))
    (branch,) = facts(one.state, story).branches
    assert (branch.through, branch.shared) == ("unknown", "")
    assert any("write down" in advice.change for advice in facts(one.state, story).advice)


def test_a_level_over_its_limit_is_not_kept_and_asks_for_a_change() -> None:
    levels = {level.level: level for level in report("halted").levels}
    assert (levels["nodes"].hurt, levels["nodes"].limit, levels["nodes"].kept) == (3, 2, False)
    assert levels["gpus"].kept
    assert levels["racks"].limit is None
    assert any("limits.nodes" in advice.change for advice in report("halted").advice)


def test_a_missed_objective_asks_for_a_change() -> None:
    found = report("failed")
    assert {goal.name: goal.met for goal in found.goals} == {"ttd": True, "ttm": False, "ttr": False}
    said = " ".join(advice.change for advice in found.advice)
    assert "end the harm sooner" in said
    assert "come back sooner" in said
    assert "find it sooner" not in said


def test_an_undo_that_nobody_confirms_is_said_first() -> None:
    one = told("halted")
    lost = tuple(f.model_copy(update={"phase": "undo_failed", "undone": None}) for f in one.state.faults)
    escalated = tuple(
        halt.model_copy(update={"state": HaltState.ESCALATED, "waiting_for": ("n016",)}) for halt in one.state.halts
    )
    found = facts(one.state.model_copy(update={"faults": lost, "halts": escalated}), one.story)
    assert not found.undo_confirmed
    assert "by hand" in found.advice[0].change
    assert "n016" in found.advice[1].why


def test_a_fault_that_is_meant_to_be_there_asks_for_nothing() -> None:
    one = told("halted")
    there = tuple(f.model_copy(update={"phase": "injected", "undone": None}) for f in one.state.faults)
    state = one.state.model_copy(update={"faults": there, "status": Status.ACTIVE, "verdict": None, "finished": None})
    found = facts(state, one.story)
    assert not found.undo_confirmed
    assert not any("by hand" in advice.change for advice in found.advice)


def test_the_timeline_is_in_order_and_tells_halt_faults_and_anomalies() -> None:
    found = report("halted")
    times = [moment.after_s for moment in found.timeline]
    assert times == sorted(times)
    assert {moment.kind for moment in found.timeline} >= {"experiment", "fault", "charged", "halt", "recovery"}
    assert found.timeline[-1].after_s <= found.end_s + 0.001
    assert {bar.kind for bar in found.bars} == {"fault", "charged", "halt"}
    requested = [m.text for m in found.timeline if m.kind == "halt"]
    assert "requested" in requested[0]


def test_words_of_other_clusters_and_renewals_change_nothing() -> None:
    one = told("passed")
    renewed = FaultEvent(
        id="r1",
        time=one.state.time,
        cluster=one.state.cluster,
        phase=FaultPhase.RENEWED,
        fault="memory-corruption",
        node="n034",
        entity="gpu/n034/2",
        experiment_id=one.state.id,
        severity=Severity.INFO,
    )
    other = one.state.model_copy(update={"cluster": "elsewhere", "verdict": Verdict.FAILED, "time": one.state.time + 9})
    story = Story.of([*one.events, renewed, other], one.state.cluster)
    assert facts(story.states()[0], story) == report("passed")


def test_a_halt_of_a_dry_run_is_said_to_have_stopped_nothing() -> None:
    one = told("passed")
    halt = Halt(
        id="h",
        experiment_id=one.state.id,
        cause="limit",
        reason="too many",
        state=HaltState.REQUESTED,
        dry_run=True,
        requested=one.state.started,
    )
    found = facts(one.state.model_copy(update={"halts": (halt,)}), one.story)
    assert any("dry run" in moment.text for moment in found.timeline)


@pytest.mark.parametrize(("verdict", "said"), [("stopped", "stopped: "), ("void", "void: "), ("passed", "passed: ")])
def test_of_a_run_that_was_not_halted_it_is_not_said_whether_a_halt_was_needed(verdict: str, said: str) -> None:
    one = told(verdict)
    fault = {"name": "process-stop", "params": {}, "certifies": ["automatic-halt"]}
    (claim,) = facts(one.state.model_copy(update={"plan": {"fault": fault}}), one.story).claims
    assert (claim.certified, claim.why) == (False, f"{said}only a halt that comes by itself certifies it")


def test_a_halted_run_says_which_rule_to_look_at_unless_a_person_halted_it_or_it_was_to_be_halted() -> None:
    one = told("halted")
    (halt,) = one.state.halts
    plan = one.state.plan | {"fault": one.state.plan["fault"] | {"certifies": []}}

    def rules(cause: str, plan: dict[str, object]) -> list[str]:
        halts = (halt.model_copy(update={"cause": cause}),)
        found = facts(one.state.model_copy(update={"halts": halts, "plan": plan}), one.story)
        return [advice.why for advice in found.advice if "what rule" in advice.change]

    assert rules(halt.cause, plan) == [halt.reason]
    assert rules("operator:1a2b", plan) == []
    assert rules(halt.cause, one.state.plan) == []
    assert not any("what rule" in advice.change for advice in report("passed").advice)
