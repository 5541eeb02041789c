"""What to change: each row of the table is a fact of a run and what follows from it. Nothing here is a guess."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuchaos_stream.events.experiment import HaltState, Verdict
from gpuchaos_stream.guard.decision import OPERATOR
from gpuchaos_stream.report.model import AFTER, Advice, Report
from gpuchaos_stream.report.spread import UNKNOWN
from gpuchaos_stream.report.words import GOALS, count, few, number, seconds

#: The way along which harm went → what makes it shorter.
_CUT: Final[dict[str, str]] = {
    "job": "job {shared} falls as one: give it a shorter collective timeout and a spare rank, or let it shrink",
    "domain": "NVLink domain {shared} is shared: keep other jobs off it, or declare them as targets",
    "rail": "rail {shared} is shared: spread the traffic over more rails, or count rails in the limits",
    "cell": "cell {shared} is shared: look for what its nodes have in common (leaf switch, storage, power)",
    "rack": "rack {shared} is shared: power and cooling reach further than the target",
    "node": "node {shared} fails as one: what runs beside the target needs a node of its own",
    "owner": "node {shared} and its devices fail as one: declare the node as the target",
    "entity": "it is the target itself under another name: declare it",
    UNKNOWN: "write down what ties them together (labels, jobs, rails of the nodes), so that the next run expects it",
}

#: The recovery time that was missed → where its seconds go.
_FASTER: Final[dict[str, str]] = {
    "ttd": "find it sooner: a rule or a threshold nearer to what this fault moves, or a faster telemetry tick",
    "ttm": "end the harm sooner: move the work off by itself, or a shorter duration and undo",
    "ttr": "come back sooner: restart, checkpoint and scheduling are what is left after the fault is gone",
}

#: A verdict that asks for another run → what to do before it.
_AGAIN: Final[dict[Verdict, str]] = {
    Verdict.VOID: "mend what kept it from beginning and run it again: nothing was tested",
    Verdict.STOPPED: "run it again: a person ended it before its time",
}


def advice(report: Report) -> tuple[Advice, ...]:
    """What follows from a report, most urgent first."""
    parts = (_undo, _halts, _verdict, _goals, _spread, _limits, _unexplained)
    return tuple(row for part in parts for row in part(report))


def _undo(report: Report) -> Iterator[Advice]:
    if report.undo_open and report.status in AFTER:
        change = "take it back by hand, `gpuchaos-agent undo --all` on its node, and see why the agent could not"
        yield Advice(change=change, why=few(list(report.undo_open)))


def _halts(report: Report) -> Iterator[Advice]:
    for halt in report.halts:
        if halt.state is HaltState.ESCALATED:
            waiting = few(list(halt.waiting_for)) or "telemetry never confirmed it"
            yield Advice(change="find out why the halt was not confirmed", why=f"halt {halt.cause}: {waiting}")
        by_rule = not halt.dry_run and not halt.cause.startswith(OPERATOR)
        # A run that was to show that it is halted needs no mending for that it was.
        if report.verdict is Verdict.HALTED and by_rule and not any(claim.certified for claim in report.claims):
            change = f"mend what rule {halt.cause} found, or change the rule if it halts too early; then run it again"
            yield Advice(change=change, why=halt.reason)


def _verdict(report: Report) -> Iterator[Advice]:
    if report.verdict in _AGAIN:
        yield Advice(change=_AGAIN[report.verdict], why=report.reason)


def _goals(report: Report) -> Iterator[Advice]:
    for goal in report.goals:
        if goal.met is False:
            took = "never" if goal.value is None else f"after {seconds(goal.value)}"
            why = f"{GOALS[goal.name]}: {took}, objective {seconds(goal.objective)}"
            yield Advice(change=_FASTER[goal.name], why=why)


def _spread(report: Report) -> Iterator[Advice]:
    for branch in report.branches:
        names = few([each.entity for each in branch.reached], 3)
        why = f"{branch.target} reached {names}"
        yield Advice(change=_CUT[branch.through].format(shared=branch.shared), why=why)


def _limits(report: Report) -> Iterator[Advice]:
    for level in report.levels:
        if not level.kept:
            change = f"cut the way that the harm took, or allow for it: limits.{level.level} is less than what depends"
            yield Advice(change=change, why=f"{number(level.hurt)} {level.level} hurt, limit {number(level.limit)}")


def _unexplained(report: Report) -> Iterator[Advice]:
    if report.unattributed:
        why = count(report.unattributed, "anomaly", "anomalies") + " that no fault explains"
        if report.unexplained:
            worst = max(report.unexplained, key=lambda line: line.severity.rank)
            why += f", the worst {worst.metric} on {worst.entity}"
        change = "look at what else happened: it is not of this experiment, and was there all the same"
        yield Advice(change=change, why=why)
    if report.unknown_nodes:
        change = "give the nodes telemetry that outlives the fault: what is silent counts as hurt"
        yield Advice(change=change, why=count(report.unknown_nodes, "node") + " without telemetry")
