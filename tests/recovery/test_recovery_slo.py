"""SLOs over recovery objectives: budgets in runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recovery_help import plan

from gpuchaos_stream.events.experiment import ExperimentState, Status, Verdict
from gpuchaos_stream.events.incident import RecoveryRecord
from gpuchaos_stream.recovery.slo import WINDOW_RUNS, SloBook


def finished(
    number: int, *, ttr: bool | None = True, verdict: Verdict = Verdict.PASSED, **fields: Any
) -> ExperimentState:
    body = {
        "id": f"e{number}",
        "time": number,
        "cluster": "c",
        "name": "hang",
        "owner": "sre",
        "status": Status.FINISHED,
        "verdict": verdict,
        "plan": plan().model_dump(mode="json"),
        "started": 0,
        "finished": float(number),
        "recovery": RecoveryRecord(met={"ttd": True, "ttm": True, "ttr": ttr}),
    }
    return ExperimentState.model_validate(body | fields)


def test_one_miss_in_twenty_spends_the_budget_of_95_percent_exactly() -> None:
    book = SloBook()
    for number in range(20):
        book.feed(finished(number, ttr=number != 3))
    budget = book.budget("process-stop", "ttr")
    assert budget is not None
    assert (budget.good, budget.total, budget.slo) == (19, 20, 0.95)
    assert budget.burn == pytest.approx(1.0)
    assert budget.remaining == pytest.approx(0.0)
    assert budget.recent_burn == 0.0, "the miss is older than the last ten runs"


def test_a_missed_and_a_halted_run_are_counted_and_a_void_one_is_not() -> None:
    book = SloBook()
    assert book.feed(finished(1, ttr=False, verdict=Verdict.FAILED))
    assert book.feed(finished(2, ttr=False, verdict=Verdict.HALTED))
    assert not book.feed(finished(3, verdict=Verdict.VOID))
    assert not book.feed(finished(4, status=Status.RECOVERING, verdict=None))
    budget = book.budget("process-stop", "ttr")
    assert budget is not None
    assert (budget.good, budget.total) == (0, 2)
    assert budget.remaining == pytest.approx(-19)


def test_an_objective_that_stayed_open_is_not_counted() -> None:
    book = SloBook()
    book.feed(finished(1, ttr=None))
    assert book.budget("process-stop", "ttr") is None
    assert book.budget("process-stop", "ttd") is not None


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60))
def test_any_order_and_any_repeat_count_each_run_once(pairs: list[tuple[int, bool]]) -> None:
    runs = dict(pairs)
    straight, mixed = SloBook(), SloBook()
    for number in sorted(runs):
        straight.feed(finished(number, ttr=runs[number]))
    for number, _ in pairs:
        mixed.feed(finished(number, ttr=runs[number]))
    assert mixed.budgets() == straight.budgets()


def test_a_book_survives_a_restart_and_repeats_after_it() -> None:
    book = SloBook()
    book.feed(finished(1))
    table = {key: value for key, value in book.dirty().items() if value is not None}
    assert book.dirty() == {}
    other = SloBook()
    other.load(table)
    assert not other.feed(finished(1))
    assert other.budgets() == book.budgets()


def test_only_the_newest_runs_are_remembered() -> None:
    book = SloBook()
    for number in range(WINDOW_RUNS + 5):
        book.feed(finished(number))
    budget = book.budget("process-stop", "ttr")
    assert budget is not None
    assert budget.total == WINDOW_RUNS
    assert not book.feed(finished(0))
