"""JUnit XML, as CI systems read it: a suite for each experiment, a case for each objective and limit.

A run that tested nothing is an error, so that it is never green; a goal that such a run could not reach is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from gpuchaos_stream.events.experiment import Status, Verdict
from gpuchaos_stream.report.markup import escape
from gpuchaos_stream.report.model import Report
from gpuchaos_stream.report.words import GOALS, number, seconds

Outcome = Literal["passed", "failure", "error", "skipped"]

#: Verdict → outcome of the case that stands for the run as a whole.
_OUTCOMES: Final[dict[Verdict | None, Outcome]] = {
    Verdict.PASSED: "passed",
    Verdict.FAILED: "failure",
    Verdict.HALTED: "failure",
    Verdict.STOPPED: "error",
    Verdict.VOID: "error",
    None: "skipped",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One test case. `kind` is the `type` of a failure; `time` is in seconds."""

    name: str
    outcome: Outcome
    time: float = 0.0
    message: str = ""
    kind: str = ""
    detail: str = ""


def junit(reports: Iterable[Report]) -> str:
    """All reports as one `testsuites` document."""
    suites = [(report, tuple(_cases(report))) for report in reports]
    every = [case for _, cases in suites for case in cases]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    time = sum(_length(report) for report, _ in suites)
    lines.append(f'<testsuites name="gpuchaos" {_counts(every)} time="{time:.3f}">')
    for report, cases in suites:
        lines += _suite(report, cases)
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def _suite(report: Report, cases: Sequence[Case]) -> Iterator[str]:
    began = datetime.fromtimestamp(report.started, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    yield (
        f'<testsuite name="{escape(report.experiment_id)}" {_counts(cases)} time="{_length(report):.3f}" '
        f'timestamp="{began}" hostname="{escape(report.cluster)}">'
    )
    yield "<properties>"
    facts = {"fault": report.fault, "owner": report.owner, "verdict": report.verdict or report.status}
    for name, value in facts.items():
        yield f'<property name="{name}" value="{escape(value)}"/>'
    yield "</properties>"
    for case in cases:
        head = f'<testcase classname="{escape(report.name)}" name="{escape(case.name)}" time="{case.time:.3f}"'
        if case.outcome == "passed":
            yield f"{head}/>"
            continue
        kind = f' type="{escape(case.kind)}"' if case.outcome != "skipped" else ""
        inner = f'<{case.outcome} message="{escape(case.message)}"{kind}>{escape(case.detail)}</{case.outcome}>'
        yield f"{head}>{inner}</testcase>"
    yield "</testsuite>"


def _counts(cases: Sequence[Case]) -> str:
    counted = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    sums = {name: sum(case.outcome == outcome for case in cases) for name, outcome in counted.items()}
    return f'tests="{len(cases)}" ' + " ".join(f'{name}="{value}"' for name, value in sums.items())


def _cases(report: Report) -> Iterator[Case]:
    said = f"{report.verdict or report.status}: {report.reason}".rstrip(": ")
    detail = "\n".join(f"{each.after_s:.1f} s {each.kind}: {each.text}" for each in report.timeline)
    outcome = _OUTCOMES[report.verdict]
    yield Case("verdict", outcome, _length(report), said, str(report.verdict or ""), detail)
    tested = report.recovery.injected is not None and report.verdict not in {None, Verdict.VOID}
    for goal in report.goals:
        name = f"objective {goal.name} within {seconds(goal.objective)}"
        took = "never" if goal.value is None else seconds(goal.value)
        message = f"{GOALS[goal.name]}: {took}, objective {seconds(goal.objective)}"
        if not tested or goal.met is None:
            yield Case(name, "skipped", message="nothing was measured")
        elif goal.met:
            yield Case(name, "passed", goal.value or 0.0)
        else:
            yield Case(name, "failure", goal.value or 0.0, message, "objective missed", message)
    reached = "\n".join(f"{b.target} reached {each.entity} ({b.words})" for b in report.branches for each in b.reached)
    for level in report.levels:
        if level.limit is None:
            continue
        name = f"limit {level.level} at most {number(level.limit)}"
        if not tested:
            yield Case(name, "skipped", message="nothing was tested")
        elif level.kept:
            yield Case(name, "passed")
        else:
            yield Case(name, "failure", 0.0, f"{number(level.hurt)} {level.level} hurt", "limit exceeded", reached)
    if report.undo_confirmed:
        yield Case("undo confirmed", "passed")
    elif report.status is Status.FINISHED:
        owed = "; ".join(report.undo_open)
        yield Case("undo confirmed", "failure", 0.0, owed, "undo not confirmed", owed)
    else:
        yield Case("undo confirmed", "skipped", message=f"still {report.status}")


def _length(report: Report) -> float:
    return max((report.finished or report.as_of) - report.started, 0.0)
