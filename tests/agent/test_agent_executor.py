from __future__ import annotations

from pathlib import Path

import pytest
from agent_kit import NODE, OPERATOR, WALL, Bench, command, inject, signed

from gpuchaos_agent.executor import Limits
from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.fault import FaultPhase

P = FaultPhase


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def phases(events: list) -> list[FaultPhase]:
    return [event.phase for event in events]


def test_an_inject_breaks_the_node_and_says_so_with_evidence_and_lease(bench: Bench) -> None:
    (event,) = bench.inject("f1", lease_s=10.0)
    assert bench.node.broken == {"f1": f"process/{NODE}/f1"}
    assert (event.phase, event.fault_id, event.experiment_id) == (P.INJECTED, "f1", "e1")
    assert event.lease_expires == WALL + 10
    assert event.evidence == {"target": f"process/{NODE}/f1"}


def test_an_injection_says_what_it_was_asked_to_do_and_no_later_word_does(bench: Bench) -> None:
    bench.inject("f1", lease_s=10.0, params={"depth": 3})
    bench.later(11)
    bench.tick()
    assert [(event.phase, event.params) for event in bench.events] == [(P.INJECTED, {"depth": 3}), (P.UNDONE, None)]


def test_answers_carry_the_traceparent_of_the_command_that_began_the_fault(bench: Bench) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    bench.give(signed(inject(WALL)), trace)
    bench.later(11)
    bench.tick()
    assert phases(bench.events) == [P.INJECTED, P.UNDONE]
    assert bench.traces == [trace, trace]


def test_a_fault_is_undone_by_the_first_tick_after_its_lease(bench: Bench) -> None:
    bench.inject(lease_s=10.0)
    bench.later(9.9)
    bench.tick()
    assert bench.node.broken
    bench.later(0.1)
    bench.tick()
    assert not bench.node.broken
    (undone,) = bench.said(P.UNDONE)
    assert undone.reason == "lease expired"
    assert undone.command_id is None


def test_setting_the_wall_clock_back_extends_no_lease(bench: Bench) -> None:
    bench.inject(lease_s=10.0)
    bench.later(10, wall=-3600)
    bench.tick()
    assert not bench.node.broken


def test_a_renewed_fault_stays_and_its_event_says_until_when(bench: Bench) -> None:
    bench.inject(lease_s=10.0)
    bench.later(8)
    (renewed,) = bench.give(signed(command(CommandKind.RENEW, bench.now.wall, fault_id="f1", lease_s=10.0)))
    assert (renewed.phase, renewed.lease_expires) == (P.RENEWED, WALL + 18)
    bench.later(9)
    bench.tick()
    assert bench.node.broken
    bench.later(1)
    bench.tick()
    assert not bench.node.broken


def test_a_renewal_after_the_end_of_the_lease_renews_nothing(bench: Bench) -> None:
    bench.inject(lease_s=10.0)
    bench.later(10)
    (refused,) = bench.give(signed(command(CommandKind.RENEW, bench.now.wall, fault_id="f1", lease_s=10.0)))
    assert refused.phase is P.REFUSED
    bench.tick()
    assert not bench.node.broken


def test_the_same_renewal_twice_extends_the_lease_once(bench: Bench) -> None:
    bench.inject(lease_s=10.0)
    bench.later(8)
    renewal = signed(command(CommandKind.RENEW, bench.now.wall, fault_id="f1", lease_s=10.0))
    bench.give(renewal)
    bench.later(9)
    (refused,) = bench.give(renewal)
    assert refused.evidence["refusal"] == "replayed"
    bench.later(1)
    bench.tick()
    assert not bench.node.broken


def test_a_renewal_never_grants_more_than_the_node_allows(tmp_path: Path) -> None:
    bench = Bench(tmp_path, limits=Limits(longest_lease_s=20))
    bench.inject(lease_s=10.0)
    bench.give(signed(command(CommandKind.RENEW, bench.now.wall, fault_id="f1", lease_s=1e6)))
    bench.later(20)
    bench.tick()
    assert not bench.node.broken


def test_a_halt_is_acknowledged_first_and_undoes_the_last_injected_first(bench: Bench) -> None:
    for name in ("f1", "f2", "f3"):
        bench.inject(name)
    bench.inject("other", experiment_id="e2")
    said = bench.give(signed(command(CommandKind.HALT, WALL, id="h1", experiment_id="e1", cause="limit")))
    assert phases(said) == [P.ACKNOWLEDGED, P.UNDONE, P.UNDONE, P.UNDONE]
    assert [event.fault_id for event in said[1:]] == ["f3", "f2", "f1"]
    assert {event.command_id for event in said} == {"h1"}
    assert said[0].evidence == {"faults": 3}
    assert set(bench.node.broken) == {"other"}


def test_a_halt_that_names_a_fault_leaves_the_experiments_other_faults(bench: Bench) -> None:
    bench.inject("f1")
    bench.inject("f2")
    bench.give(signed(command(CommandKind.UNDO, WALL, experiment_id="e1", fault_id="f1")))
    assert set(bench.node.broken) == {"f2"}


def test_a_repeated_halt_is_answered_again_with_the_same_ids(bench: Bench) -> None:
    bench.inject()
    halt = signed(command(CommandKind.HALT, WALL, id="h1", experiment_id="e1"))
    first = bench.give(halt)
    second = bench.give(halt)
    assert [event.id for event in first] == [event.id for event in second]
    assert bench.node.undos == ["f1"]


def test_a_second_halt_for_another_cause_hears_that_the_fault_is_undone(bench: Bench) -> None:
    bench.inject()
    bench.give(signed(command(CommandKind.HALT, WALL, id="h1", experiment_id="e1", cause="a")))
    said = bench.give(signed(command(CommandKind.HALT, WALL, id="h2", experiment_id="e1", cause="b")))
    assert [(event.phase, event.command_id) for event in said] == [(P.ACKNOWLEDGED, "h2"), (P.UNDONE, "h2")]


def test_a_halt_of_what_is_not_here_is_acknowledged_and_answered(bench: Bench) -> None:
    said = bench.give(signed(command(CommandKind.HALT, WALL, experiment_id="e9", fault_id="f9")))
    assert phases(said) == [P.ACKNOWLEDGED, P.UNDONE]
    assert said[1].evidence == {"was_there": False}


def test_an_inject_that_comes_after_the_halt_of_its_experiment_is_refused(bench: Bench) -> None:
    bench.give(signed(command(CommandKind.HALT, WALL, experiment_id="e1")))
    (refused,) = bench.inject("f1")
    assert refused.phase is P.REFUSED
    assert not bench.node.broken


def test_an_inject_after_the_halt_is_refused_by_the_next_run_of_the_agent_as_well(bench: Bench) -> None:
    bench.give(signed(command(CommandKind.HALT, WALL, experiment_id="e1")))
    bench.restart()
    assert phases(bench.inject("f1")) == [P.REFUSED]


def test_an_operator_may_halt_and_may_not_inject(bench: Bench) -> None:
    (refused,) = bench.give(signed(inject(WALL), OPERATOR))
    assert refused.evidence["refusal"] == "not_allowed"
    bench.inject()
    bench.give(signed(command(CommandKind.HALT, WALL, experiment_id="e1"), OPERATOR))
    assert not bench.node.broken


def test_what_did_not_move_is_told_and_taken_back(bench: Bench) -> None:
    bench.node.inert = True
    said = bench.inject()
    assert phases(said) == [P.NOT_EFFECTIVE, P.UNDONE]
    assert not bench.executor.active


def test_half_an_effect_is_taken_back(bench: Bench) -> None:
    def fail(name: str) -> None:
        if name == "after inject":
            raise RuntimeError("half way")

    bench.node.step = fail
    said = bench.inject()
    assert phases(said) == [P.NOT_EFFECTIVE, P.UNDONE]
    assert "half way" in said[0].reason
    assert not bench.node.broken


def test_an_undo_that_fails_is_told_once_and_tried_at_every_tick(bench: Bench) -> None:
    bench.inject()
    bench.node.stuck = True
    said = bench.give(signed(command(CommandKind.HALT, WALL, id="h1", experiment_id="e1")))
    assert phases(said) == [P.ACKNOWLEDGED, P.UNDO_FAILED]
    for _ in range(3):
        bench.later(1)
        bench.tick()
    assert len(bench.said(P.UNDO_FAILED)) == 1
    bench.node.stuck = False
    bench.tick()
    (undone,) = bench.said(P.UNDONE)
    assert undone.command_id == "h1"
    assert not bench.executor.failing


def test_a_fault_whose_undo_fails_can_not_be_renewed(bench: Bench) -> None:
    bench.inject()
    bench.node.stuck = True
    bench.give(signed(command(CommandKind.UNDO, WALL, fault_id="f1")))
    (refused,) = bench.give(signed(command(CommandKind.RENEW, WALL, fault_id="f1", lease_s=10.0)))
    assert refused.phase is P.REFUSED


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"fault": "nonsense"}, "unknown fault"),
        ({"fault": None}, "names fault_id"),
        ({"lease_s": None}, "names fault_id"),
        ({"entity": "process/n2/7"}, "not on node"),
        ({"entity": "job/llama"}, "not on node"),
        ({"lease_s": 301.0}, "longer than"),
        ({"params": {"deepth": 1}}, "deepth"),
        ({"params": {"depth": "much"}}, "depth"),
        ({"fault_id": "../../etc/passwd", "entity": f"process/{NODE}/7"}, "must match"),
    ],
)
def test_an_inject_that_cannot_be_carried_out_is_refused_with_the_reason(bench: Bench, fields: dict, word: str) -> None:
    (refused,) = bench.give(signed(inject(WALL, **fields)))
    assert refused.phase is P.REFUSED
    assert word in refused.reason
    assert refused.command_id is not None
    assert not bench.node.broken


def test_what_the_strategy_refuses_is_refused_for_good(bench: Bench) -> None:
    bench.node.refuse = "cannot reach its layer"
    (refused,) = bench.inject()
    assert "cannot reach its layer" in refused.reason
    bench.node.refuse = None
    bench.inject()
    assert not bench.node.broken


def test_a_second_fault_on_the_same_entity_is_refused(bench: Bench) -> None:
    bench.inject("f1", entity=f"process/{NODE}/7")
    (refused,) = bench.inject("f2", entity=f"process/{NODE}/7")
    assert "already" in refused.reason


def test_a_node_takes_no_more_faults_than_it_allows(tmp_path: Path) -> None:
    bench = Bench(tmp_path, limits=Limits(most_faults=2))
    answers = [bench.inject(name)[0].phase for name in ("f1", "f2", "f3")]
    assert answers == [P.INJECTED, P.INJECTED, P.REFUSED]


def test_another_command_for_a_standing_fault_does_not_speak_for_it(bench: Bench) -> None:
    bench.inject("f1")
    (refused,) = bench.inject("f1", id="another")
    assert refused.phase is P.REFUSED
    assert refused.fault_id is None
    assert bench.node.broken


def test_commands_for_others_are_passed_over(bench: Bench) -> None:
    assert bench.give(signed(inject(WALL, node="n2"))) == []
    assert bench.give(signed(inject(WALL, cluster="c2"))) == []
    assert bench.give(b"\xff\x00 no json") == []
    assert bench.give(b"[" * 100_000) == []


def test_a_disk_that_refuses_prevents_an_injection_and_never_an_undo(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.inject("f1")

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpuchaos_agent.journal.Journal.write", full)
    monkeypatch.setattr("gpuchaos_agent.nonces.Seen.add", full)
    assert phases(bench.inject("f2")) == [P.REFUSED]
    assert phases(bench.give(signed(command(CommandKind.HALT, WALL, experiment_id="e1")))) == [P.ACKNOWLEDGED, P.UNDONE]
    assert not bench.node.broken


def test_the_journal_alone_refusing_prevents_an_injection(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpuchaos_agent.journal.Journal.write", full)
    assert phases(bench.inject("f2")) == [P.REFUSED]
    assert not bench.node.broken


def test_what_is_long_over_is_forgotten(bench: Bench) -> None:
    bench.inject()
    bench.give(signed(command(CommandKind.UNDO, WALL, fault_id="f1")))
    bench.later(25 * 3600)
    bench.tick()
    assert list((bench.folder / "journal").glob("*.json")) == []
