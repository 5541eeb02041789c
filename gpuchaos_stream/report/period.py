"""A period: its runs and verdicts, the SLO of each objective and its budget, the worst, what repeats."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal

from pydantic import Field

from gpuchaos_stream.events.base import Timestamp, Wire
from gpuchaos_stream.events.experiment import ExperimentState, Verdict
from gpuchaos_stream.recovery.slo import OBJECTIVES, Budget, SloBook
from gpuchaos_stream.report.facts import levels, plan_fault
from gpuchaos_stream.report.page import Block, Cell, Heading, Page, Table, Tone, Words, row
from gpuchaos_stream.report.sheet import TONES
from gpuchaos_stream.report.spread import origin_of
from gpuchaos_stream.report.words import count, number, seconds, stamp

#: How many of the worst are named.
WORST: Final = 10
#: The same thing so often is a repeat.
REPEATS: Final = 2
#: Anomalies of one metric and entity that begin within so many seconds are one.
ONCE_S: Final = 2.0


class RunLine(Wire):
    """One run of the period."""

    experiment_id: str
    name: str
    fault: str
    targets: tuple[str, ...]
    owner: str
    verdict: str
    started: Timestamp
    finished: Timestamp | None
    ttd: float | None
    ttm: float | None
    ttr: float | None
    met: dict[str, bool | None]
    gpus: int
    nodes: int
    jobs: int
    gpu_seconds: float
    unattributed: int
    halts: int
    reason: str


class Times(Wire):
    """The times of one objective of one fault over the period, seconds. Runs without one count as the worst."""

    fault: str
    objective: str
    runs: int
    never: int = Field(description="runs that were tested and never came to it")
    median: float | None
    worst: float | None


class Worst(Wire):
    """A run that came nearest to, or went furthest past, what was allowed: `share` 1 is the objective or limit."""

    experiment_id: str
    what: str
    value: float | None
    allowed: float
    share: float | None = Field(description="value / allowed; None where it never came to it")


class Repeat(Wire):
    """The same trouble in several runs."""

    what: str
    experiments: tuple[str, ...]


class Period(Wire):
    """The report of a period. A run belongs to it by when it started; times are event time."""

    format: Literal["gpuchaos-period/1"] = "gpuchaos-period/1"
    cluster: str | None
    since: Timestamp
    until: Timestamp
    runs: tuple[RunLine, ...] = ()
    verdicts: dict[str, int] = {}
    budgets: tuple[Budget, ...] = ()
    times: tuple[Times, ...] = ()
    worst: tuple[Worst, ...] = ()
    repeats: tuple[Repeat, ...] = ()


def period(states: Iterable[ExperimentState], since: float, until: float, cluster: str | None = None) -> Period:
    """The period from `since` to `until`, both inclusive, event time in seconds."""
    chosen = sorted((s for s in states if since <= s.started <= until), key=lambda s: (s.started, s.id))
    book = SloBook()
    for state in chosen:
        book.feed(state)
    runs = tuple(_line(state) for state in chosen)
    verdicts = Counter(run.verdict for run in runs)
    return Period(
        cluster=cluster,
        since=since,
        until=until,
        runs=runs,
        verdicts=dict(sorted(verdicts.items())),
        budgets=tuple(book.budgets()),
        times=tuple(_times(chosen)),
        worst=tuple(_worst(chosen)),
        repeats=tuple(_repeats(chosen)),
    )


def _line(state: ExperimentState) -> RunLine:
    record, radius = state.recovery, state.blast_radius
    return RunLine(
        experiment_id=state.id,
        name=state.name,
        fault=plan_fault(state)[0],
        targets=tuple(fault.entity for fault in state.faults),
        owner=state.owner,
        verdict=str(state.verdict or state.status),
        started=state.started,
        finished=state.finished,
        ttd=record.ttd,
        ttm=record.ttm,
        ttr=record.ttr,
        met=record.met,
        gpus=radius.gpus,
        nodes=radius.nodes,
        jobs=radius.jobs,
        gpu_seconds=radius.gpu_seconds,
        unattributed=state.unattributed,
        halts=sum(not halt.dry_run for halt in state.halts),
        reason=state.reason,
    )


def _tested(state: ExperimentState) -> bool:
    return state.verdict not in {None, Verdict.VOID} and state.recovery.injected is not None


def _times(states: Sequence[ExperimentState]) -> Iterator[Times]:
    found: defaultdict[tuple[str, str], list[float | None]] = defaultdict(list)
    for state in states:
        if _tested(state):
            for name in OBJECTIVES:
                found[plan_fault(state)[0], name].append(getattr(state.recovery, name))
    for (fault, name), values in sorted(found.items()):
        known = sorted(value for value in values if value is not None)
        never = len(values) - len(known)
        middle = (len(values) - 1) // 2
        yield Times(
            fault=fault,
            objective=name,
            runs=len(values),
            never=never,
            median=known[middle] if middle < len(known) else None,
            worst=None if never else known[-1],
        )


def _worst(states: Sequence[ExperimentState]) -> list[Worst]:
    found = []
    for state in states:
        if not _tested(state):
            continue
        for name, allowed in state.recovery.objectives.items():
            value = getattr(state.recovery, name, None)
            if state.recovery.met.get(name) is not None and allowed > 0:
                share = None if value is None else round(value / allowed, 3)
                found.append(Worst(experiment_id=state.id, what=name, value=value, allowed=allowed, share=share))
        for level in levels(state):
            if level.limit is not None and level.hurt:
                share = round(level.hurt / level.limit, 3) if level.limit else None
                row = {"what": level.level, "value": level.hurt, "allowed": level.limit, "share": share}
                found.append(Worst.model_validate({"experiment_id": state.id, **row}))
    order = sorted(found, key=lambda w: (-(w.share if w.share is not None else float("inf")), w.experiment_id, w.what))
    return order[:WORST]


def _repeats(states: Sequence[ExperimentState]) -> list[Repeat]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for state in states:
        for what in dict.fromkeys(_troubles(state)):
            found[f"{plan_fault(state)[0]}: {what}"].append(state.id)
    for what, ids in _unexplained(states):
        found[what] = ids
    often = [(what, ids) for what, ids in found.items() if len(ids) >= REPEATS]
    ordered = sorted(often, key=lambda item: (-len(item[1]), item[0]))
    return [Repeat(what=what, experiments=tuple(ids)) for what, ids in ordered]


def _troubles(state: ExperimentState) -> Iterator[str]:
    """What went wrong in a run, in words that are the same when it happens again."""
    if state.verdict is Verdict.VOID:
        yield f"void ({state.reason})"
    for name, met in state.recovery.met.items():
        if met is False:
            yield f"{name} missed"
    for level in levels(state):
        if not level.kept:
            yield f"limit {level.level} exceeded"
    for halt in state.halts:
        if not halt.dry_run:
            yield f"halted by {halt.cause}"


def _unexplained(states: Sequence[ExperimentState]) -> Iterator[tuple[str, list[str]]]:
    """What no fault explains and came back; two runs at one time that saw the same failure saw it once."""
    seen: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for state in states:
        for line in state.unexplained:
            what = f"{line.metric} that no fault explains, on {line.entity}"
            seen[what].append((origin_of(state) + line.after_s, state.id))
    for what, times in seen.items():
        times.sort()
        ids = [times[0][1]]
        ids += [later[1] for earlier, later in pairwise(times) if later[0] - earlier[0] > ONCE_S]
        yield what, ids


def period_sheet(found: Period) -> Page:
    """The page of a period."""
    counted = ", ".join(f"{number_of} {verdict}" for verdict, number_of in found.verdicts.items()) or "none"
    badge = Cell(count(len(found.runs), "run"), _tone(found))
    of = f"cluster {found.cluster}" if found.cluster else "every cluster"
    lead = f"{of}, {stamp(found.since)} to {stamp(found.until)}: {counted}."
    blocks = tuple(block for part in (_runs, _budgets, _how_long, _furthest, _again) for block in part(found))
    return Page("Chaos experiments of a period", badge, lead, blocks)


def _tone(found: Period) -> Tone:
    """The worst of its verdicts."""
    tones = {TONES.get(next((each for each in Verdict if each == name), None), "plain") for name in found.verdicts}
    order: tuple[Tone, ...] = ("bad", "warn", "plain", "good")
    return next((tone for tone in order if tone in tones), "plain")


def _runs(found: Period) -> Iterator[Block]:
    yield Heading("Runs")
    if not found.runs:
        yield Words("No experiment started in this period.")
        return
    rows = []
    for run in found.runs:
        tone = TONES.get(next((verdict for verdict in Verdict if verdict == run.verdict), None), "plain")
        times = [seconds(value) for value in (run.ttd, run.ttm, run.ttr)]
        hurt = f"{run.gpus} GPUs, {run.nodes} nodes, {run.jobs} jobs"
        rows.append(
            row(run.experiment_id, run.fault, Cell(run.verdict, tone), *times, hurt, stamp(run.started), run.reason)
        )
    columns = ("experiment", "fault", "verdict", "TTD", "TTM", "TTR", "hurt beyond targets", "started", "reason")
    yield Table("Oldest first", columns, rows)


def _budgets(found: Period) -> Iterator[Block]:
    yield Heading("Recovery SLOs")
    if not found.budgets:
        yield Words("No run of this period measured an objective.")
        return
    rows = []
    for each in found.budgets:
        left = Cell(f"{each.remaining:.0%}", "good" if each.remaining > 0 else "bad")
        good = f"{each.good} of {each.total}"
        rows.append(row(f"{each.fault} {each.objective}", f"{each.slo:.1%}", good, left, f"{each.burn:.2f}"))
    columns = ("objective", "SLO", "met", "budget left", "burn")
    yield Table("Runs that met each objective; burn 1 spends the budget exactly", columns, rows)


def _how_long(found: Period) -> Iterator[Block]:
    if found.times:
        rows = [
            row(f"{t.fault} {t.objective}", str(t.runs), seconds(t.median), seconds(t.worst), str(t.never))
            for t in found.times
        ]
        yield Table("How long it took", ("objective", "runs", "median", "worst", "never"), rows)


def _furthest(found: Period) -> Iterator[Block]:
    yield Heading("The worst")
    if not found.worst:
        yield Words("Nothing was measured.")
        return
    rows = []
    for each in found.worst:
        over = each.share is None or each.share > 1
        said = "never, or nothing was allowed" if each.share is None else f"{each.share:.0%} of what was allowed"
        value = number(each.value)
        cell = Cell(said, "bad" if over else "plain", each.share)
        rows.append(row(each.experiment_id, each.what, value, number(each.allowed), cell))
    yield Table(
        "Nearest to what was allowed, or furthest past it", ("experiment", "what", "was", "allowed", "share"), rows
    )


def _again(found: Period) -> Iterator[Block]:
    yield Heading("What repeats")
    if found.repeats:
        rows = [row(each.what, str(len(each.experiments)), ", ".join(each.experiments)) for each in found.repeats]
        yield Table("The same trouble in several runs", ("what", "runs", "experiments"), rows)
    else:
        yield Words("Nothing went wrong twice.")
