"""What comes after which step, where each ends when it likes: by a runner that ends steps when the test says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_kit import NODE, WALL, Apart, Bench, command, signed

from gpuchaos_agent import stack
from gpuchaos_agent.inject import registry
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.journal import EntryState, Journal
from gpuchaos_agent.steps import HANGS_S, Step
from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase

P = FaultPhase
BROUGHT_ABOUT = ("check", "injection", "evidence")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def apart(bench: Bench) -> Apart:
    return Apart(bench)


def phases(events: list[FaultEvent]) -> list[FaultPhase]:
    return [event.phase for event in events]


def stand(bench: Bench, apart: Apart, *names: str, **fields: Any) -> None:
    """Faults that are there."""
    for name in names:
        bench.inject(name, **fields)
        apart.finish(*(f"{step} {name}" for step in BROUGHT_ABOUT))
    assert set(names) <= set(bench.node.broken)


def halt(bench: Bench, command_id: str = "h1", **fields: Any) -> list[FaultEvent]:
    return bench.give(
        signed(command(CommandKind.HALT, bench.now.wall, id=command_id, **(fields or {"experiment_id": "e1"})))
    )


def renewal(bench: Bench, fault_id: str = "f1", lease_s: float = 10.0) -> list[FaultEvent]:
    return bench.give(signed(command(CommandKind.RENEW, bench.now.wall, fault_id=fault_id, lease_s=lease_s)))


def test_the_journal_is_on_disk_before_the_injection_begins_and_not_before_the_check_allows_it(
    bench: Bench, apart: Apart
) -> None:
    bench.inject("f1")
    assert apart.names == ["check f1"]
    assert Journal(bench.folder / "journal").read() == ([], [])
    apart.finish("check f1")
    assert apart.names == ["injection f1"]
    ((entry,), _) = Journal(bench.folder / "journal").read()
    assert (entry.state, entry.payload) == (EntryState.PLANNED, {"target": f"process/{NODE}/f1"})
    assert not bench.node.broken
    assert phases(apart.finish("injection f1", "evidence f1")) == [P.INJECTED]


def test_a_halt_that_comes_while_the_injection_runs_is_acknowledged_at_once_and_nothing_more_is_measured(
    bench: Bench, apart: Apart
) -> None:
    bench.inject("f1")
    apart.finish("check f1")
    assert phases(halt(bench)) == [P.ACKNOWLEDGED]
    assert apart.names == ["injection f1"], "never two steps of one fault"
    apart.finish("injection f1")
    assert apart.names == ["undo f1"]
    (undone,) = apart.finish("undo f1")
    assert (undone.phase, undone.command_id) == (P.UNDONE, "h1")
    assert not bench.node.broken
    assert not bench.said(P.INJECTED)


def test_a_halt_while_the_target_is_still_looked_at_is_a_refusal_of_the_injection(bench: Bench, apart: Apart) -> None:
    bench.inject("f1")
    said = halt(bench)
    assert phases(said) == [P.ACKNOWLEDGED, P.REFUSED]
    assert "before it could begin" in said[1].reason
    assert apart.finish("check f1") == []
    assert (apart.names, bench.node.broken) == ([], {})
    assert bench.executor.idle


def test_what_is_asked_for_holds_its_place_while_its_target_is_looked_at(bench: Bench, apart: Apart) -> None:
    bench.inject("f1", entity=f"process/{NODE}/7")
    (refused,) = bench.inject("f2", entity=f"process/{NODE}/7")
    assert (refused.phase, refused.fault_id) == (P.REFUSED, "f2")
    (again,) = bench.inject("f1", id="another", entity=f"process/{NODE}/8")
    assert (again.phase, again.fault_id) == (P.REFUSED, None)


def test_the_lease_pays_for_the_look_at_the_target(bench: Bench, apart: Apart) -> None:
    bench.inject("f1", lease_s=10.0)
    bench.later(10)
    (refused,) = apart.finish("check f1")
    assert (refused.phase, "lease" in refused.reason) == (P.REFUSED, True)
    assert apart.names == []
    bench.inject("f2", lease_s=10.0)
    bench.later(10)
    bench.tick()
    assert phases(bench.events[1:]) == [P.REFUSED]
    assert apart.finish("check f2") == []


def test_an_injection_that_outlasts_its_lease_is_told_as_not_effective_and_undone_when_it_returns(
    bench: Bench, apart: Apart
) -> None:
    bench.inject("f1", lease_s=5.0)
    apart.finish("check f1")
    bench.later(5)
    bench.tick()
    assert phases(bench.events) == [P.NOT_EFFECTIVE]
    assert apart.names == ["injection f1"]
    apart.finish("injection f1")
    assert phases(apart.finish("undo f1")) == [P.UNDONE]
    assert not bench.node.broken


def test_a_renewal_while_the_injection_runs_extends_its_lease(bench: Bench, apart: Apart) -> None:
    bench.inject("f1", lease_s=5.0)
    apart.finish("check f1")
    bench.later(4)
    (renewed,) = renewal(bench)
    assert (renewed.phase, renewed.lease_expires) == (P.RENEWED, WALL + 14)
    bench.later(4)
    bench.tick()
    (injected,) = apart.finish("injection f1", "evidence f1")
    assert (injected.phase, injected.lease_expires) == (P.INJECTED, WALL + 14)
    ((entry,), _) = Journal(bench.folder / "journal").read()
    assert entry.lease_deadline == 1014.0


def test_a_renewal_is_answered_while_another_faults_step_hangs(bench: Bench, apart: Apart) -> None:
    stand(bench, apart, "f1", lease_s=10.0)
    bench.inject("f2")
    bench.later(9)
    assert phases(renewal(bench)) == [P.RENEWED]
    bench.later(9)
    bench.tick()
    assert "undo f1" not in apart.names


def test_what_is_to_end_when_its_injection_returns_cannot_be_renewed(bench: Bench, apart: Apart) -> None:
    bench.inject("f1")
    apart.finish("check f1")
    halt(bench)
    (refused,) = renewal(bench)
    assert (refused.phase, "taken back" in refused.reason) == (P.REFUSED, True)


def test_a_hanging_undo_keeps_no_other_fault_beyond_its_lease(bench: Bench, apart: Apart) -> None:
    stand(bench, apart, "f1", "f2", lease_s=10.0)
    halt(bench, fault_id="f1")
    bench.later(10)
    bench.tick()
    assert apart.names == ["undo f1", "undo f2"]
    assert phases(apart.finish("undo f2")) == [P.UNDONE]


def test_every_command_that_asks_while_an_undo_runs_hears_how_it_ends(bench: Bench, apart: Apart) -> None:
    stand(bench, apart, "f1")
    halt(bench, "h1")
    assert phases(halt(bench, "h2")) == [P.ACKNOWLEDGED]
    assert phases(halt(bench, "h1")) == [P.ACKNOWLEDGED]
    bench.node.stuck = True
    failed = apart.finish("undo f1")
    assert {(e.phase, e.command_id) for e in failed} == {(P.UNDO_FAILED, "h1"), (P.UNDO_FAILED, "h2")}
    bench.node.stuck = False
    bench.tick()
    undone = apart.finish("undo f1")
    assert [(e.phase, e.command_id) for e in undone] == [(P.UNDONE, "h1"), (P.UNDONE, "h2")]


def test_beside_an_injection_that_hangs_the_fault_is_undone_and_again_when_it_returns(
    bench: Bench, apart: Apart
) -> None:
    bench.inject("f1", lease_s=10.0)
    apart.finish("check f1")
    halt(bench)
    bench.later(HANGS_S[Step.INJECT])
    bench.tick()
    assert apart.names == ["injection f1", "undo f1"]
    assert "injection has not returned" in bench.executor.hanging["f1"]
    (failed,) = apart.finish("undo f1")
    assert (failed.phase, failed.command_id) == (P.UNDO_FAILED, "h1")
    assert "injection has not returned for 60 s" in failed.reason
    for _ in range(3):
        bench.later(1)
        bench.tick()
    assert apart.names == ["injection f1"], "there is nothing more to undo before it returns"
    assert len(bench.said(P.UNDO_FAILED)) == 1
    apart.finish("injection f1")
    assert bench.node.broken, "it has acted after all"
    assert phases(apart.finish("undo f1")) == [P.UNDONE]
    assert not bench.node.broken
    assert not bench.executor.hanging
    assert not bench.executor.failing


def test_an_injection_that_returns_during_the_undo_beside_it_is_undone_once_more(bench: Bench, apart: Apart) -> None:
    bench.inject("f1")
    apart.finish("check f1")
    halt(bench)
    bench.later(HANGS_S[Step.INJECT])
    bench.tick()
    undo = next(each for each in apart.begun if each.what == "undo")
    undo.run()
    apart.finish("injection f1")
    apart.give(undo)
    assert bench.node.broken
    assert not bench.said(P.UNDONE)
    assert phases(apart.finish("undo f1")) == [P.UNDONE]
    assert not bench.node.broken


def test_an_injection_that_hangs_is_ended_even_if_its_lease_is_renewed(bench: Bench, apart: Apart) -> None:
    bench.inject("f1", lease_s=100.0)
    apart.finish("check f1")
    bench.later(HANGS_S[Step.INJECT])
    bench.tick()
    (void,) = bench.said(P.NOT_EFFECTIVE)
    assert "injection has not returned" in void.reason
    assert apart.names == ["injection f1", "undo f1"]


def test_a_look_for_evidence_that_hangs_keeps_nothing_from_being_undone(bench: Bench, apart: Apart) -> None:
    bench.inject("f1")
    apart.finish("check f1", "injection f1")
    halt(bench)
    bench.later(HANGS_S[Step.EVIDENCE])
    bench.tick()
    assert phases(apart.finish("undo f1")) == [P.UNDONE]
    assert apart.finish("evidence f1") == []
    assert bench.executor.idle


def test_an_undo_that_hangs_is_told_once_and_shows_until_it_returns(bench: Bench, apart: Apart) -> None:
    stand(bench, apart, "f1")
    halt(bench)
    for _ in range(3):
        bench.later(HANGS_S[Step.UNDO])
        bench.tick()
    assert apart.names == ["undo f1"]
    (failed,) = bench.said(P.UNDO_FAILED)
    assert "undo has not returned" in failed.reason
    assert bench.executor.failing == bench.executor.hanging == {"f1": "its undo has not returned for 90 s"}
    assert phases(halt(bench, "h2")) == [P.ACKNOWLEDGED, P.UNDO_FAILED]
    assert {e.command_id for e in apart.finish("undo f1")} == {"h1", "h2"}
    assert not bench.executor.hanging


def test_a_check_that_hangs_shows_and_keeps_its_place_but_no_more(bench: Bench, apart: Apart) -> None:
    bench.inject("f1", lease_s=5.0)
    bench.later(HANGS_S[Step.CHECK])
    bench.tick()
    assert phases(bench.events) == [P.REFUSED]
    assert "check has not returned" in bench.executor.hanging["f1"]
    stand(bench, apart, "f2")
    assert not bench.executor.failing
    apart.finish("check f1")
    assert not bench.executor.hanging


def test_faults_that_touch_the_same_kind_of_thing_are_undone_one_after_the_other_for_a_while(
    bench: Bench, apart: Apart
) -> None:
    stand(bench, apart, "f1", "f2", "f3", lease_s=60.0)
    bench.executor.undo_all(bench.now, "agent stopped")
    assert apart.names == ["undo f3"]
    apart.finish("undo f3")
    assert apart.names == ["undo f2"]
    bench.later(stack.PATIENCE_S)
    bench.executor.advance(bench.now)
    assert apart.names == ["undo f2", "undo f1"], "what hangs is not waited for"


def test_an_undo_that_fails_lets_the_next_one_go_at_once(bench: Bench, apart: Apart) -> None:
    stand(bench, apart, "f1", "f2")
    halt(bench)
    bench.node.stuck = True
    assert phases(apart.finish("undo f2")) == [P.UNDO_FAILED]
    assert apart.names == ["undo f1"]


def test_the_end_of_a_lease_waits_for_no_other_fault(bench: Bench, apart: Apart) -> None:
    stand(bench, apart, "f1", "f2", lease_s=10.0)
    halt(bench)
    assert apart.names == ["undo f2"]
    bench.later(10)
    bench.tick()
    assert apart.names == ["undo f2", "undo f1"]


def test_every_fault_that_the_agent_ships_is_in_the_table_of_what_it_touches_or_touches_only_its_own() -> None:
    strategies = registry.build(Env(node=NODE, boot_id="b"))
    alone = {name for name in strategies if stack.touches(name) == {name}}
    assert alone == {"power-cycle"}, "another node's power: nothing of this node's"


def test_after_a_restart_what_is_left_behind_is_undone_side_by_side(bench: Bench, apart: Apart) -> None:
    stand(bench, apart, "f1", "f2")
    bench.executor = bench.make()
    again = Apart(bench)
    bench.executor.start(bench.now)
    assert again.names == ["undo f2"]
    bench.later(stack.PATIENCE_S)
    bench.tick()
    assert again.names == ["undo f2", "undo f1"]
    assert phases(again.finish("undo f1")) == [P.UNDONE]
