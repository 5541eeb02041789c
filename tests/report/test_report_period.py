"""A period counts its runs, their verdicts and budgets, and names the worst and what repeats."""

from __future__ import annotations

import pytest
from report_help import told

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.experiment import AnomalyLine, ExperimentState
from gpuchaos_stream.report.period import Period, period, period_sheet


def copies(verdict: str, number: int, *, days: float = 1.0) -> list[ExperimentState]:
    """That experiment again and again, `days` apart."""
    state = told(verdict).state
    shift = [n * days * 86400 for n in range(number)]
    return [
        state.model_copy(
            update={
                "id": f"{verdict}-{n}",
                "started": state.started + by,
                "finished": (state.finished or state.time) + by,
                "time": state.time + by,
            }
        )
        for n, by in enumerate(shift)
    ]


def of(states: list[ExperimentState], days: float = 30.0) -> Period:
    first = min((state.started for state in states), default=0.0)
    return period(states, first, first + days * 86400, "demo")


def test_runs_are_counted_by_verdict_and_those_outside_are_left_out() -> None:
    found = of([*copies("passed", 10), *copies("failed", 2), *copies("void", 1)], days=4.5)
    assert found.verdicts == {"passed": 5, "failed": 2, "void": 1}
    assert [run.started for run in found.runs] == sorted(run.started for run in found.runs)


def test_the_budget_counts_runs_that_missed_and_never_those_that_tested_nothing() -> None:
    found = of([*copies("passed", 3), *copies("failed", 1), *copies("void", 5)])
    budgets = {budget.objective: budget for budget in found.budgets}
    assert (budgets["ttr"].good, budgets["ttr"].total) == (3, 4)
    # One of four missed, at an SLO of 0.95: 0.25 / 0.05 = five budgets are spent.
    assert budgets["ttr"].remaining == 1 - 0.25 / (1 - 0.95)
    assert budgets["ttd"].remaining == 1


def test_times_have_a_median_and_a_worst_and_a_run_that_never_recovered_is_the_worst() -> None:
    states = copies("passed", 3)
    never = states[0].recovery.model_copy(update={"ttr": None})
    states[0] = states[0].model_copy(update={"recovery": never})
    times = {each.objective: each for each in of(states).times}
    assert (times["ttr"].runs, times["ttr"].never, times["ttr"].worst) == (3, 1, None)
    assert times["ttr"].median == told("passed").state.recovery.ttr
    assert times["ttd"].worst == told("passed").state.recovery.ttd


def test_the_worst_are_those_furthest_past_what_was_allowed() -> None:
    found = of([*copies("passed", 1), *copies("failed", 1), *copies("halted", 1)])
    shares = [float("inf") if worst.share is None else worst.share for worst in found.worst]
    assert shares == sorted(shares, reverse=True)
    first = found.worst[0]
    assert (first.experiment_id, first.what, first.allowed) == ("failed-0", "ttr", 6.0)
    assert first.value == told("failed").state.recovery.ttr
    assert ("halted-0", "nodes") in {(worst.experiment_id, worst.what) for worst in found.worst}


def test_the_same_trouble_in_several_runs_repeats_and_a_single_one_does_not() -> None:
    found = of([*copies("failed", 3), *copies("halted", 1)])
    repeats = {repeat.what: repeat.experiments for repeat in found.repeats}
    assert repeats["memory-corruption: ttr missed"] == ("failed-0", "failed-1", "failed-2")
    assert not any("halted" in what for what in repeats)


def test_one_failure_that_two_runs_at_a_time_saw_is_no_repeat_and_one_that_came_back_is() -> None:
    line = AnomalyLine(
        metric="gpu_lost",
        entity="gpu/n051/5",
        after_s=2.0,
        count=1,
        entities=1,
        severity=Severity.CRITICAL,
        score=0.0,
        sentence="a failure of its own",
    )
    runs = [state.model_copy(update={"unexplained": (line,)}) for state in copies("passed", 2, days=0.0)]
    assert not of(runs).repeats
    later = [state.model_copy(update={"unexplained": (line,)}) for state in copies("passed", 2, days=1.0)]
    moved = [
        state.model_copy(
            update={"faults": tuple(f.model_copy(update={"injected": state.started}) for f in state.faults)}
        )
        for state in later
    ]
    (repeat,) = of(moved).repeats
    assert repeat.what == "gpu_lost that no fault explains, on gpu/n051/5"
    assert len(repeat.experiments) == 2


@pytest.mark.parametrize(
    ("verdicts", "tone"),
    [
        ((), "plain"),
        (("passed",), "good"),
        (("passed", "halted"), "warn"),
        (("passed", "stopped"), "warn"),
        (("passed", "halted", "void"), "bad"),
    ],
)
def test_a_period_is_as_good_as_its_worst_run(verdicts: tuple[str, ...], tone: str) -> None:
    assert period_sheet(of([state for each in verdicts for state in copies(each, 1)])).badge.tone == tone


def test_an_empty_period_is_said_to_be_empty() -> None:
    found = period([], 0.0, 1.0)
    assert (found.runs, found.verdicts, found.budgets, found.worst, found.repeats) == ((), {}, (), (), ())


def test_the_json_reads_back_to_the_same_period() -> None:
    found = of([*copies("passed", 2), *copies("failed", 2)])
    assert Period.model_validate_json(found.model_dump_json()) == found
