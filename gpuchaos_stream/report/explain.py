"""Why a verdict is what it is: the facts that decided it, the ones that did not, and the way to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from pydantic import Field

from gpuchaos_stream.events.base import Timestamp, Wire
from gpuchaos_stream.events.experiment import AnomalyLine, ExperimentState, Halt, Status, Verdict
from gpuchaos_stream.report.chain import Step, chain
from gpuchaos_stream.report.facts import facts
from gpuchaos_stream.report.model import Report
from gpuchaos_stream.report.spread import tie
from gpuchaos_stream.report.story import Story
from gpuchaos_stream.report.words import GOALS, count, few, head, number, seconds, stamp

#: Verdict → the rule that gives it, in the order in which `experiments/verdict.py` looks.
RULES: Final[dict[Verdict | None, str]] = {
    Verdict.HALTED: "A halt decides before everything else: it says who ended the run.",
    Verdict.STOPPED: "A person's stop decides where there was no halt.",
    Verdict.VOID: "Nothing was tested, so nothing is judged.",
    Verdict.FAILED: "One objective missed, one limit exceeded, one undo not confirmed or no steady state is enough.",
    Verdict.PASSED: "Every objective met, every limit kept, every fault undone, and the steady state back.",
    None: "There is no verdict before it is finished.",
}
#: Status → what it waits for.
_WAITS: Final[dict[Status, str]] = {
    Status.PENDING: "the steady state, or the right to inject",
    Status.INJECTING: "the answers of the agents",
    Status.ACTIVE: "the end of its duration",
    Status.UNDOING: "the agents' word that the faults are gone",
    Status.HALTING: "the agents' word that the faults are gone",
    Status.RECOVERING: "the steady state to hold, or the deadline",
}


class Reason(Wire):
    """One fact that bears on the verdict, and what shows it."""

    fact: str = Field(description="objective ttd, limit nodes, halt, undo, steady state, …")
    sentence: str
    evidence: tuple[str, ...] = ()


class Explained(Wire):
    """Why an experiment's verdict is what it is."""

    format: Literal["gpuchaos-explain/1"] = "gpuchaos-explain/1"
    experiment_id: str
    name: str
    status: Status
    verdict: Verdict | None
    reason: str
    rule: str
    decided: tuple[Reason, ...] = Field(description="what decided the verdict")
    besides: tuple[Reason, ...] = Field(description="what was looked at and did not")
    steps: tuple[Step, ...]
    as_of: Timestamp


def explain(state: ExperimentState, story: Story) -> Explained:
    """The explanation of one experiment as it was at `state`, commonly its latest one."""
    report = facts(state, story)
    good, bad = _judged(report)
    if state.verdict is Verdict.PASSED:
        decided, besides = good, bad
    elif state.verdict is Verdict.FAILED:
        decided, besides = bad, good
    else:
        decided, besides = list(_ended(report)), [*bad, *good]
    before = [version for version in story.versions(state.id) if version.time <= state.time]
    return Explained(
        experiment_id=state.id,
        name=state.name,
        status=state.status,
        verdict=state.verdict,
        reason=state.reason,
        rule=RULES[state.verdict],
        decided=tuple(decided),
        besides=(*besides, *_not_charged(report)),
        steps=tuple(chain(state, before, story.faults(state.id))),
        as_of=state.time,
    )


def _ended(report: Report) -> Iterator[Reason]:
    """What ended a run that was not judged by its recovery."""
    if report.verdict is Verdict.HALTED:
        halts = [halt for halt in report.halts if not halt.dry_run]
        yield from (_halt(halt, report) for halt in halts)
        if not halts:
            yield Reason(fact="halt", sentence=report.reason)
    elif report.verdict is Verdict.STOPPED:
        yield Reason(fact="stop", sentence=report.reason)
    elif report.verdict is Verdict.VOID:
        said = [f"{each.entity}: {each.phase} {each.reason}".rstrip() for each in report.injected]
        said += [f"check {name}: {state}" for name, state in report.steady.items()]
        yield Reason(fact="nothing tested", sentence=report.reason or "it never began", evidence=tuple(said))
    else:
        waits = _WAITS.get(report.status, "nothing more")
        yield Reason(fact="not finished", sentence=f"it is {report.status} and waits for {waits}")


def _halt(halt: Halt, report: Report) -> Reason:
    evidence = [f"requested {stamp(halt.requested)}"]
    for name in ("acknowledged", "undone", "confirmed", "escalated"):
        at = getattr(halt, name)
        evidence.append(f"{name} after {seconds(at - halt.requested)}" if at is not None else f"not {name}")
    evidence += [f"also: {cause}" for cause in halt.also]
    evidence += [
        f"{level.level}: {number(level.hurt)} hurt, limit {number(level.limit)}"
        for level in report.levels
        if not level.kept
    ]
    evidence += [_line(line) for line in report.charged]
    return Reason(fact=f"halt {halt.cause}", sentence=halt.reason, evidence=tuple(evidence))


def _judged(report: Report) -> tuple[list[Reason], list[Reason]]:
    """What speaks for it, and what against it: objectives, limits, undo, steady state."""
    good: list[Reason] = []
    bad: list[Reason] = []
    if report.recovery.injected is None and report.verdict not in {Verdict.FAILED, Verdict.PASSED}:
        return good, bad
    for goal in report.goals:
        of = f"objective {seconds(goal.objective)}"
        took = "never" if goal.value is None else seconds(goal.value)
        note = f", {goal.note}" if goal.note else ""
        sentence = f"{GOALS[goal.name]}: {took}, {of}{note}"
        evidence = tuple(_line(line) for line in report.charged[:1]) if goal.name == "ttd" else _faults(report)
        if goal.name == "ttr":
            evidence = (_held(report),)
        (good if goal.met is True else bad).append(
            Reason(fact=f"objective {goal.name}", sentence=sentence, evidence=evidence)
        )
    for level in report.levels:
        if level.limit is not None:
            sentence = f"{number(level.hurt)} {level.level} hurt beyond the targets, limit {number(level.limit)}"
            evidence = _reached(report) if not level.kept else ()
            found = Reason(fact=f"limit {level.level}", sentence=sentence, evidence=evidence)
            (good if level.kept else bad).append(found)
    undone = Reason(fact="undo", sentence="every fault is undone, as its agent verified", evidence=_faults(report))
    owed = Reason(fact="undo", sentence="a fault was not confirmed undone", evidence=report.undo_open)
    (good if report.undo_confirmed else bad).append(undone if report.undo_confirmed else owed)
    checks = tuple(f"check {name}: {state}" for name, state in report.steady.items())
    steady = "no steady state at the end" not in report.reason
    sentence = "the steady state held at the end" if steady else "no steady state at the end"
    if report.status is Status.FINISHED and (steady or report.verdict is Verdict.FAILED):
        (good if steady else bad).append(Reason(fact="steady state", sentence=sentence, evidence=checks))
    return good, bad


def _not_charged(report: Report) -> Iterator[Reason]:
    if report.unattributed:
        sentence = count(report.unattributed, "anomaly", "anomalies") + " that no fault explains: not charged to it"
        yield Reason(fact="unexplained", sentence=sentence, evidence=tuple(_line(line) for line in report.unexplained))
    for halt in report.halts:
        if halt.dry_run:
            yield Reason(fact=f"halt {halt.cause}", sentence=f"in a dry run, so nothing was stopped: {halt.reason}")


def _line(line: AnomalyLine) -> str:
    if line.sentence.startswith(f"{line.metric} on {line.entity}"):
        return line.sentence
    return f"{line.metric} on {line.entity} after {seconds(line.after_s)}: {line.sentence}"


def _faults(report: Report) -> tuple[str, ...]:
    lines = [
        f"{each.fault} on {each.entity}: injected {stamp(each.injected)}, undone {stamp(each.undone)}"
        for each in report.injected
        if each.injected is not None
    ]
    return head(lines)


def _held(report: Report) -> str:
    record = report.recovery
    unknown = f", {seconds(record.unknown_s)} of it not known" if record.unknown_s else ""
    if record.ttr is None:
        return f"no window of {seconds(record.hold_s)} in which every check held{unknown}"
    return f"every check held for {seconds(record.hold_s)} from {seconds(record.ttr)} on{unknown}"


def _reached(report: Report) -> tuple[str, ...]:
    """By which way harm went."""
    return tuple(
        f"{branch.target} reached {few([each.entity for each in branch.reached], 3)}: {tie(branch)}"
        for branch in report.branches
    )
