"""The page of one experiment: what was done, what broke, how long it took, what it shows and what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gpuchaos_stream.events.experiment import AnomalyLine, Verdict
from gpuchaos_stream.events.incident import MOST_ENTITIES
from gpuchaos_stream.report import curve_pictures, pictures
from gpuchaos_stream.report.model import AFTER, Bar, Curve, Goal, Level, Reached, Report
from gpuchaos_stream.report.page import Block, Cell, Heading, Page, Picture, Table, Tone, Words, row
from gpuchaos_stream.report.spread import tie
from gpuchaos_stream.report.words import GOALS, answer, count, number, pairs, seconds, stamp

#: Verdict → how it is meant.
TONES: Final[dict[Verdict | None, Tone]] = {
    Verdict.PASSED: "good",
    Verdict.FAILED: "bad",
    Verdict.HALTED: "warn",
    Verdict.STOPPED: "warn",
    Verdict.VOID: "bad",
    None: "plain",
}


def sheet(report: Report) -> Page:
    """The page of one experiment's report."""
    badge = Cell(str(report.verdict or report.status), TONES[report.verdict])
    parts: tuple[Callable[[Report], Iterator[Block]], ...] = (
        _overview,
        _claims,
        _recovery,
        _timeline,
        _radius,
        _spread,
        _injected,
        _anomalies,
        _halts,
        _advice,
        _moments,
    )
    blocks = tuple(block for part in parts for block in part(report))
    return Page(f"Experiment {report.experiment_id}", badge, lead(report), blocks)


def lead(report: Report) -> str:
    """The report in a few sentences."""
    there = [each for each in report.injected if each.injected is not None]
    targets = count(len(report.injected), "target")
    said = [f"{report.fault} on {targets}"]
    said.append(f"{len(there)} of {len(report.injected)} took effect" if there else "no fault took effect")
    verdict = f"{report.verdict}" if report.verdict else f"still {report.status}"
    sentences = [", ".join(said) + f": {verdict}" + (f" ({report.reason.rstrip('.')})" if report.reason else "") + "."]
    if broke := _broke(report):
        said_so = f"{broke} entities or more" if broke >= MOST_ENTITIES else count(broke, "entity", "entities")
        sentences.append(f"Beyond the targets {said_so} broke with it.")
    if report.unattributed:
        sentences.append(f"No fault explains {count(report.unattributed, 'anomaly', 'anomalies')}.")
    if report.undo_open:
        late = report.status in AFTER
        sentences.append("NOT every fault is confirmed undone." if late else "Not every fault is undone yet.")
    elif there:
        sentences.append("Every fault is undone.")
    return " ".join(sentences)


def _broke(report: Report) -> int:
    """How many entities beyond the targets are named."""
    return sum(branch.total for branch in report.branches)


def _overview(report: Report) -> Iterator[Block]:
    if report.description:
        yield Words(report.description)
    rows = [
        row("fault", report.fault),
        row("what it reaches", report.layer or "not known to this version"),
        row("cluster", report.cluster),
        row("owner", report.owner),
        row("started", stamp(report.started)),
        row("finished", stamp(report.finished)),
        row("undo", _undo(report)),
    ]
    yield Table("The experiment", ("what", "said"), rows)


def _undo(report: Report) -> Cell:
    if report.undo_open:
        if report.status not in AFTER:
            return Cell("not yet: " + "; ".join(report.undo_open))
        return Cell("NOT CONFIRMED: " + "; ".join(report.undo_open), "bad")
    if all(each.injected is None for each in report.injected):
        return Cell("nothing to undo: no fault took effect")
    return Cell("confirmed: no fault is there any more", "good")


def _claims(report: Report) -> Iterator[Block]:
    yield Heading("What it certifies, and what not")
    words = {True: Cell("certified", "good"), False: Cell("not certified", "warn")}
    rows = [row(each.claim, words[each.certified], each.why) for each in report.claims]
    rows += [row(name, Cell("never", "plain"), "no run of this fault shows it") for name in report.never]
    if rows:
        yield Table("Claims of the plan, and what people expect of this fault", ("claim", "this run", "why"), rows)
    else:
        yield Words("Nothing was claimed that can be read.")


def _recovery(report: Report) -> Iterator[Block]:
    yield Heading("Recovery")
    record = report.recovery
    if record.injected is not None:
        lines = tuple(f"{GOALS[goal.name]}: {_took(goal, report)}" for goal in report.goals)
        title = "Recovery times; the thick line is the objective, dashed the window that held"
        yield Picture(title, pictures.recovery(report), lines)
    rows = [
        row(
            f"{GOALS[goal.name]} ({goal.name.upper()})",
            seconds(goal.value),
            seconds(goal.objective),
            _met(goal, report),
            goal.note,
        )
        for goal in report.goals
    ]
    yield Table("Times since the first injection", ("time", "measured", "objective", "met", "note"), rows)
    if report.curves:
        told = tuple(_curve(curve) for curve in report.curves)
        title = "What the checks measured; dashed the bound, shaded the fault, gaps where it was not known"
        yield Picture(title, curve_pictures.curves(report), told)
    held = record.confirm is not None
    details = (
        ("confirmed after", record.confirm),
        ("held for" if held else "each check has to hold for", record.hold_s or None),
        ("a check was unknown for", record.unknown_s or None),
        ("clock skew", record.skew_s),
    )
    known = [f"{what} {seconds(value)}" for what, value in details if value is not None]
    if known and record.injected is not None:
        yield Words("; ".join(known).capitalize() + ".")
    if report.steady:
        yield Words(f"Steady state: {', '.join(f'{name} {state}' for name, state in report.steady.items())}.")


def _curve(curve: Curve) -> str:
    values = [value for _, value in curve.points if value is not None]
    unknown = len(curve.points) - len(values)
    span = f"from {min(values):.3g} to {max(values):.3g}" if values else "never known"
    bound = "no baseline" if curve.bound is None else f"{curve.op} {curve.bound:.3g}"
    source = f" ({curve.source})" if curve.source else ""
    return f"{curve.check}{source}: {span}, bound {bound}" + (f", {unknown} samples unknown" if unknown else "")


def _took(goal: Goal, report: Report) -> str:
    return f"{seconds(goal.value)} of {seconds(goal.objective)}, {_met(goal, report).text}"


def _met(goal: Goal, report: Report) -> Cell:
    tone: dict[bool | None, Tone] = {True: "good", False: "bad", None: "plain"}
    over = report.finished is not None
    return Cell(answer(goal.met, goal.value, goal.objective, over=over), tone[goal.met])


def _timeline(report: Report) -> Iterator[Block]:
    if report.bars:
        yield Heading("Timeline")
        shown = pictures.drawn(report.bars)
        lines = tuple(_lasted(bar) for bar in shown)
        title = "Faults, halts, anomalies charged to it (filled) and those that no fault explains (hollow)"
        if more := len(report.bars) - len(shown):
            title += f"; {count(more, 'more fault')} below"
        yield Picture(title, pictures.timeline(report), lines)


def _lasted(bar: Bar) -> str:
    until = "not ended" if bar.end_s is None else f"to {seconds(bar.end_s)}"
    return f"{bar.kind}: {bar.lane}, from {seconds(bar.start_s)} {until}"


def _radius(report: Report) -> Iterator[Block]:
    yield Heading("Blast radius beyond the targets")
    rows = [row(each.level, _hurt(each), number(each.now), number(each.limit), _kept(each)) for each in report.levels]
    yield Table(
        "Ever hurt, still hurt at the last word of it, and the limit", ("level", "ever", "last", "limit", "kept"), rows
    )
    if report.unknown_nodes:
        yield Words(f"{count(report.unknown_nodes, 'node')} without telemetry: unknown counts as hurt.", "warn")


def _hurt(level: Level) -> Cell:
    if not level.limit:
        return Cell(number(level.hurt))
    return Cell(number(level.hurt), share=level.hurt / level.limit)


def _kept(level: Level) -> Cell:
    if level.limit is None:
        return Cell("no limit set")
    return Cell("kept", "good") if level.kept else Cell("EXCEEDED", "bad")


def _spread(report: Report) -> Iterator[Block]:
    yield Heading("What broke that was not a target")
    if not report.branches:
        yield Words("Nothing beyond the targets was hurt by it.")
        return
    lines: list[str] = []
    for branch in report.branches:
        lines.append(f"{branch.target} reached {branch.total}: {tie(branch)}")
        lines += [f"    {each.entity}" for each in branch.reached]
        if branch.total > len(branch.reached):
            lines.append(f"    and {branch.total - len(branch.reached)} more")
    yield Picture(
        "From the target, along what is shared", pictures.spread(report.branches, report.experiment_id), tuple(lines)
    )
    rows = [_broken(each, tie(branch)) for branch in report.branches for each in branch.reached]
    yield Table("Each of them, and why it is charged", ("entity", "after", "what", "along", "why"), rows)
    if _broke(report) >= MOST_ENTITIES:
        yield Words(f"At most {MOST_ENTITIES} are named; how many were hurt is in the blast radius.")


def _broken(reached: Reached, along: str) -> tuple[Cell, ...]:
    what = ", ".join(reached.metrics) or "named by the blast radius alone"
    severity = f" ({reached.severity})" if reached.severity else ""
    return row(reached.entity, seconds(reached.after_s), what + severity, along, reached.sentence)


def _injected(report: Report) -> Iterator[Block]:
    yield Heading("What was injected")
    rows = []
    for each in report.injected:
        words = "; ".join(filter(None, (each.phase, each.reason)))
        shown = pairs(each.evidence) or "no evidence was read"
        back = pairs(each.undo_evidence) or "-"
        rows.append(
            row(each.entity, pairs(each.params) or "-", stamp(each.injected), stamp(each.undone), words, shown, back)
        )
    columns = ("target", "parameters", "injected", "undone", "state", "evidence", "evidence of the undo")
    if rows:
        yield Table("One fault a target", columns, rows)
    else:
        yield Words("No fault: the plan was never readable.")


def _anomalies(report: Report) -> Iterator[Block]:
    for title, lines, of in (
        ("Anomalies charged to it", report.charged, report.attributed),
        ("Anomalies that no fault explains", report.unexplained, report.unattributed),
    ):
        yield Heading(f"{title} ({of})")
        if lines:
            yield Table(
                "First of each kind", ("metric", "first on", "after", "how many", "severity", "why"), _lines(lines)
            )
        left = of - sum(line.count for line in lines)
        if left > 0:
            yield Words(f"{left} more, none worse than these.")
        if not of:
            yield Words("None.")


def _lines(lines: Sequence[AnomalyLine]) -> list[tuple[Cell, ...]]:
    return [
        row(
            line.metric,
            line.entity,
            seconds(line.after_s),
            f"{line.count} on {line.entities}",
            str(line.severity),
            f"{line.sentence} (score {line.score:.2f})",
        )
        for line in lines
    ]


def _halts(report: Report) -> Iterator[Block]:
    if not report.halts:
        return
    yield Heading("Halts")
    rows = []
    for halt in report.halts:
        times = [None if at is None else at - halt.requested for at in (halt.acknowledged, halt.undone, halt.confirmed)]
        state = str(halt.state) + (" (dry run)" if halt.dry_run else "")
        tone: Tone = "bad" if halt.escalated is not None else "plain"
        also = f" Also: {', '.join(halt.also)}." if halt.also else ""
        rows.append(row(halt.cause, Cell(state, tone), *map(seconds, times), halt.reason + also))
    columns = ("cause", "state", "acknowledged after", "undone after", "confirmed after", "reason")
    yield Table("One a cause", columns, rows)


def _advice(report: Report) -> Iterator[Block]:
    yield Heading("What to change")
    if report.advice:
        yield Table("What follows from this run", ("change", "because"), [row(a.change, a.why) for a in report.advice])
    else:
        yield Words("Nothing follows from this run.")


def _moments(report: Report) -> Iterator[Block]:
    yield Heading("All moments")
    rows = [row(seconds(each.after_s), each.kind, each.text) for each in report.timeline]
    yield Table(f"Seconds since {stamp(report.origin)}", ("after", "kind", "what"), rows)
