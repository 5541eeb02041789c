"""What a finished experiment showed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuchaos_stream.events.experiment import ExperimentState, Verdict
from gpuchaos_stream.experiments.run import Run

#: Objective → what it measures, for the sentence.
_OBJECTIVES: Final = {"ttd": "detected", "ttm": "mitigated", "ttr": "recovered"}


def verdict(run: Run, *, still_steady: bool) -> tuple[Verdict, str]:
    """The verdict and its reason. `still_steady`: every check is in tolerance at this moment.

    Halted and stopped come first: they say who ended it. Void says that nothing was tested. Passed needs every
    objective met, every limit kept (a guard in dry run halts nothing, and forgives nothing) and health now.
    """
    if run.halt:
        return Verdict.HALTED, run.halt
    if run.stop:
        return Verdict.STOPPED, run.stop
    if run.void:
        return Verdict.VOID, run.void
    failures = [*_missed(run.state), *_exceeded(run.state)]
    if run.owed():
        failures.append("a fault was not confirmed undone")
    if not still_steady:
        failures.append("no steady state at the end")
    if failures:
        return Verdict.FAILED, "; ".join(failures)
    return Verdict.PASSED, ""


def _missed(state: ExperimentState) -> Iterator[str]:
    for name, said in _OBJECTIVES.items():
        if state.recovery.met.get(name) is True:
            continue
        value, objective = getattr(state.recovery, name), state.recovery.objectives.get(name)
        wanted = f" within {objective:g} s" if objective is not None else ""
        yield f"not {said}{wanted} ({name} {'none' if value is None else f'{value:.1f} s'})"


def _exceeded(state: ExperimentState) -> Iterator[str]:
    for level, limit in state.limits.items():
        hurt = float(getattr(state.blast_radius, level))
        if hurt > limit:
            yield f"limit {level} exceeded ({hurt:g} > {limit:g})"
