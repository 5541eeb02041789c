"""What is in view and what has changed, by events alone; and how it is drawn."""

from __future__ import annotations

from typing import Any

import pytest

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.experiment import (
    BreakerState,
    ExperimentState,
    Halt,
    HaltState,
    InjectedFault,
    Status,
    Verdict,
)
from gpuchaos_stream.events.incident import BlastRadius, Incident, RecoveryRecord
from gpuchaos_stream.events.observation import Tick
from gpuchaos_stream.watch import draw
from gpuchaos_stream.watch.board import KEEP_S, SILENT_S, Board, told
from gpuchaos_stream.watch.rows import Against, BreakerRow, ControlRow, ExperimentRow, IncidentRow

CLUSTER = "c"
T0 = 1_700_000_000.0


def state(experiment_id: str = "one", at: float = 0.0, **fields: Any) -> ExperimentState:
    body: dict[str, Any] = {"name": "hang", "owner": "sre", "status": Status.ACTIVE, "plan": {}, "started": T0}
    return ExperimentState(id=experiment_id, time=T0 + at, cluster=CLUSTER, **{**body, **fields})


def injected(**fields: Any) -> InjectedFault:
    body: dict[str, Any] = {"fault_id": "f", "fault": "process-stop", "node": "n1", "entity": "process/n1/1"}
    return InjectedFault(**{**body, "phase": "injected", "injected": T0, **fields})


def incident(incident_id: str = "i", **fields: Any) -> Incident:
    body: dict[str, Any] = {"cause": "unattributed:a", "attributed": False, "opened": T0, "severity": Severity.CRITICAL}
    summary = {"summary": "gpu_lost on gpu/n5/0", "nodes": ("n5",)}
    return Incident(id=incident_id, time=T0, cluster=CLUSTER, **{**body, **summary, **fields})


def board(*events: Any, only: str | None = None) -> Board:
    made = Board(CLUSTER, T0, only=only)
    for event in events:
        made.feed(event, T0)
    return made


def rows(of: Board, kind: type[Any], at: float = 0.0) -> list[Any]:
    return [row for row in of.rows(T0 + at) if isinstance(row, kind)]


def screen(of: Board, at: float = 0.0) -> str:
    return "\n".join(line.text for line in draw.screen(of.rows(T0 + at), T0 + at))


def test_time_left_runs_down_and_is_no_change() -> None:
    made = board(state(ends=T0 + 30))
    made.changes(T0)
    (row,) = rows(made, ExperimentRow, at=12)
    assert row.time_left_s == 18
    assert made.changes(T0 + 12) == [row for row in made.rows(T0 + 12) if isinstance(row, ControlRow)]
    (over,) = rows(made, ExperimentRow, at=31)
    assert over.time_left_s == 0


def test_a_change_is_told_once() -> None:
    made = board(state())
    assert [row.kind for row in made.changes(T0)] == ["control", "breaker", "experiment"]
    made.feed(state(at=1, status=Status.HALTING), T0 + 1)
    (row,) = made.changes(T0 + 1)
    assert isinstance(row, ExperimentRow)
    assert row.status is Status.HALTING
    assert made.changes(T0 + 1) == []


def test_an_older_state_changes_nothing() -> None:
    made = board(state(at=5, status=Status.RECOVERING), state(at=1))
    assert rows(made, ExperimentRow)[0].status is Status.RECOVERING


def test_a_finished_experiment_stays_for_a_minute() -> None:
    made = board(state())
    made.feed(state(at=1, status=Status.FINISHED, verdict=Verdict.PASSED), T0 + 1)
    assert rows(made, ExperimentRow, at=KEEP_S)[0].verdict is Verdict.PASSED
    assert rows(made, ExperimentRow, at=KEEP_S + 2) == []


def test_what_was_over_before_is_left_out_unless_it_is_asked_for() -> None:
    over = state(status=Status.FINISHED, verdict=Verdict.FAILED)
    everything, one = board(over, incident(closed=T0)), board(over, only="one")
    for made in (everything, one):
        made.forget_finished()
    assert (rows(everything, ExperimentRow), rows(everything, IncidentRow)) == ([], [])
    assert rows(one, ExperimentRow, at=1e6)[0].verdict is Verdict.FAILED


def test_other_experiments_and_clusters_are_passed_by() -> None:
    foreign = state().model_copy(update={"cluster": "other"})
    assert rows(board(foreign), ExperimentRow) == []
    assert [row.experiment for row in rows(board(state("one"), state("two"), only="two"), ExperimentRow)] == ["two"]


def test_an_unexplained_incident_is_shown_until_it_closes_which_is_told_once() -> None:
    made = board(incident(), incident("charged", attributed=True, experiment_id="one"))
    assert [row.incident for row in rows(made, IncidentRow)] == ["i"]
    made.changes(T0)
    made.feed(incident(closed=T0 + 3), T0 + 3)
    assert rows(made, IncidentRow) == []
    (row,) = made.changes(T0 + 3)
    assert isinstance(row, IncidentRow)
    assert row.closed == T0 + 3
    assert made.changes(T0 + 4) == []


def test_an_incident_that_a_fault_explains_after_all_goes() -> None:
    made = board(incident(), incident(attributed=True, experiment_id="one"))
    assert rows(made, IncidentRow) == []


@pytest.mark.parametrize(
    ("ticked", "at", "says"),
    [
        (False, 1.0, "no worker has been heard yet"),
        (False, SILENT_S + 1, "no worker has been heard in 6 s"),
        (True, SILENT_S, "a worker is at work"),
        (True, 30.0, "no worker has been heard for 30 s: what is shown is old"),
    ],
)
def test_silence_is_said_in_words(ticked: bool, at: float, says: str) -> None:
    made = board(*([Tick(id="t", time=T0, cluster=CLUSTER)] if ticked else []))
    (row,) = rows(made, ControlRow, at=at)
    assert says in row.says
    assert row.silent is (at > SILENT_S)
    assert (row.silent_s is None) is not ticked


def test_silence_that_goes_on_is_one_line() -> None:
    made = board()
    lines = [draw.line(row) for at in range(20) for row in made.changes(T0 + at, draw.key)]
    assert len([line for line in lines if line.startswith("control plane")]) == 2


@pytest.mark.parametrize("key", [told, draw.key])
def test_each_turn_of_the_control_plane_is_told_once(key: Any) -> None:
    made, said = board(), []
    for at in range(30):
        if at == 2:  # heard for the first time, and never again
            made.feed(Tick(id="t", time=T0 + at, cluster=CLUSTER), T0 + at)
        said += [row.says for row in made.changes(T0 + at, key) if isinstance(row, ControlRow)]
    assert [" ".join(each.split()[:5]) for each in said] == [
        "no worker has been heard",
        "a worker is at work",
        "no worker has been heard",
    ]
    assert "what is shown is old" in said[-1]


def test_the_breaker_says_why_and_since_when() -> None:
    made = board(BreakerState(id="breaker", time=T0, cluster=CLUSTER, tripped=True, since=T0, cause="3 halts"))
    (row,) = rows(made, BreakerRow)
    assert "TRIPPED since 2023-11-14T22:13:20Z, no new fault may begin: 3 halts" in draw.line(row)


def test_the_screen_has_limits_objectives_halts_and_what_nothing_explains() -> None:
    halt = Halt(
        id="h",
        experiment_id="one",
        cause="hard-limit-gpus",
        reason="9 > 8",
        state=HaltState.ACKNOWLEDGED,
        requested=T0,
        waiting_for=("n1",),
    )
    recovery = RecoveryRecord(
        injected=T0, ttd=1.2, ttm=11.0, objectives={"ttd": 5, "ttm": 10}, met={"ttd": True, "ttm": False}
    )
    radius = BlastRadius(gpus=4, nodes=1, gpu_seconds=250.04)
    made = board(
        state(
            faults=(injected(),),
            blast_radius=radius,
            limits={"gpus": 8.0, "gpu_seconds": 100.0, "jobs": 0.0},
            recovery=recovery,
            halts=(halt,),
            steady={"pace": "bad"},
            unattributed=1,
            ends=T0 + 20,
        ),
        incident(),
    )
    shown = screen(made)
    for part in (
        "one  process-stop of sre  active, 20 s left",
        "faults there    1 of 1",
        "GPUs            [##########----------] 4 / 8",
        "GPU-seconds     [####################] 250 / 100",
        "jobs            [--------------------] 0 / 0",
        "TTD 1.2 s of 5 s (met)",
        "TTM 11.0 s of 10 s (missed)",
        "halt            acknowledged for hard-limit-gpus, waits for n1",
        "pace bad",
        "1 incident that no fault explains:",
        "critical on n5: gpu_lost on gpu/n5/0",
    ):
        assert part in shown


def test_nothing_that_runs_is_said_so() -> None:
    assert "no experiment is running" in screen(board())


@pytest.mark.parametrize(
    ("value", "bound", "full"), [(0, 8, 0), (0.01, 8, 1), (7.99, 8, 19), (8, 8, 20), (9, 8, 20), (1, 0, 20), (0, 0, 0)]
)
def test_a_bar_is_full_when_its_limit_is_used_up_and_not_empty_when_something_is_hurt(
    value: float, bound: float, full: int
) -> None:
    assert draw.bar(Against(value=value, bound=bound), draw.ASCII).count("#") == full


def test_what_a_stranger_wrote_drives_no_terminal() -> None:
    made = board(state(owner="\x1b[2J", reason="a\x9bb", steady={"x\r": "ok"}), incident(summary="\x1b]0;t\x07"))
    text = screen(made) + "".join(draw.line(row) for row in made.rows(T0))
    assert not {"\x1b", "\x9b", "\r", "\x07"} & set(text)
