"""Recovery objectives as SLOs: over the runs of a fault, how many met each objective, and what budget is left.

An error budget here counts runs, not time: with an SLO of 0.95, one run in twenty may miss its objective.
burn = share missed / (1 - SLO): 1 spends the budget exactly, more than 1 overspends it (SRE workbook, ch. 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import Field

from gpuchaos_stream.events.base import Timestamp, Wire
from gpuchaos_stream.events.experiment import ExperimentState, Status, Verdict

OBJECTIVES: Final = ("ttd", "ttm", "ttr")
#: How many runs of one fault are remembered, newest first to stay.
WINDOW_RUNS: Final = 500
#: The runs that count for the fast burn: what has just happened.
RECENT_RUNS: Final = 10

_PREFIX: Final = "slo/"


class Run(Wire):
    """One counted run: which objectives it met."""

    experiment_id: str
    finished: Timestamp
    met: dict[str, bool]
    slo: float


class Budget(Wire):
    """The state of one objective of one fault.

    `good` of `total` runs met it. `remaining` is the share of the error budget that is left: 1 untouched, 0
    spent, below 0 overspent. `burn` is over all remembered runs, `recent_burn` over the last ten.
    """

    fault: str
    objective: str
    slo: float
    good: int
    total: int
    remaining: float
    burn: float
    recent_burn: float


class _Book(Wire):
    runs: tuple[Run, ...] = Field(default=())


class SloBook:
    """Counts finished runs per fault. Counting a run twice changes nothing. State: `slo/<fault>`."""

    def __init__(self) -> None:
        self._books: dict[str, dict[str, Run]] = {}
        self._dirty: set[str] = set()

    def feed(self, state: ExperimentState) -> bool:
        """Counts the run if it is finished and tested something; True when it was new.

        A void run tested nothing and is not counted; a halted or missed one is, as what it measured.
        """
        if state.status is not Status.FINISHED or state.verdict in {None, Verdict.VOID} or state.finished is None:
            return False
        fault, slo = _fault_and_slo(state.plan)
        met = {name: value for name, value in state.recovery.met.items() if name in OBJECTIVES and value is not None}
        book = self._books.setdefault(fault, {})
        if not met or state.id in book:
            return False
        book[state.id] = Run(experiment_id=state.id, finished=state.finished, met=met, slo=slo)
        for old in _newest_first(book)[WINDOW_RUNS:]:
            del book[old.experiment_id]
        self._dirty.add(fault)
        return state.id in book

    def budget(self, fault: str, objective: str) -> Budget | None:
        """The budget of one objective of one fault; None before its first counted run."""
        runs = [run for run in _newest_first(self._books.get(fault, {})) if objective in run.met]
        if not runs:
            return None
        slo = runs[0].slo
        good = sum(run.met[objective] for run in runs)
        burn = _burn(runs, objective, slo)
        return Budget(
            fault=fault,
            objective=objective,
            slo=slo,
            good=good,
            total=len(runs),
            remaining=1 - burn,
            burn=burn,
            recent_burn=_burn(runs[:RECENT_RUNS], objective, slo),
        )

    def budgets(self) -> list[Budget]:
        """Every budget, by fault and objective."""
        pairs = ((fault, objective) for fault in sorted(self._books) for objective in OBJECTIVES)
        return [budget for pair in pairs if (budget := self.budget(*pair)) is not None]

    def dirty(self) -> dict[str, bytes | None]:
        """See `stage.Stateful`."""
        out: dict[str, bytes | None] = {
            _PREFIX + fault: _Book(runs=tuple(_newest_first(self._books[fault]))).model_dump_json().encode()
            for fault in sorted(self._dirty)
        }
        self._dirty.clear()
        return out

    def load(self, items: Mapping[str, bytes]) -> None:
        """See `stage.Stateful`."""
        self._dirty.clear()
        self._books = {
            key.removeprefix(_PREFIX): {run.experiment_id: run for run in _Book.model_validate_json(value).runs}
            for key, value in items.items()
            if key.startswith(_PREFIX)
        }


def _newest_first(book: Mapping[str, Run]) -> list[Run]:
    return sorted(book.values(), key=lambda run: (-run.finished, run.experiment_id))


def _burn(runs: list[Run], objective: str, slo: float) -> float:
    missed = sum(not run.met[objective] for run in runs) / len(runs)
    return missed / (1 - slo)


def _fault_and_slo(plan: Mapping[str, object]) -> tuple[str, float]:
    fault, goals = plan.get("fault"), plan.get("objectives")
    name = fault.get("name") if isinstance(fault, dict) else None
    slo = goals.get("slo") if isinstance(goals, dict) else None
    return str(name or "unknown"), float(slo) if isinstance(slo, int | float) and 0 < slo < 1 else 0.95
