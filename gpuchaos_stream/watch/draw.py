"""Rows as text: a line for each change, and a screen of all. Nothing here knows a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpuchaos_stream.events.experiment import HaltState, Verdict
from gpuchaos_stream.experiments.show import stamp
from gpuchaos_stream.output import harmless
from gpuchaos_stream.watch.rows import Against, BreakerRow, ControlRow, ExperimentRow, HaltRow, IncidentRow, Row

#: Cells of a bar.
BAR: Final = 20
#: Full and empty cell where the terminal's encoding has them, and where it does not.
BLOCKS: Final = ("█", "░")
ASCII: Final = ("#", "-")
#: Most incidents on a screen.
MOST_INCIDENTS: Final = 8

_LEVELS: Final = {"gpu_seconds": "GPU-seconds", "nvlink_domains": "NVLink domains", "gpus": "GPUs"}
_LEVEL_WIDTH: Final = max(map(len, ("nvlink domains", *_LEVELS.values())))
_COLOURS: Final = {
    Verdict.PASSED: "green",
    Verdict.FAILED: "red",
    Verdict.HALTED: "yellow",
    Verdict.STOPPED: "yellow",
    Verdict.VOID: "dim",
}


@dataclass(frozen=True)
class Line:
    """One line of a screen and its colour, empty for the terminal's own."""

    text: str
    colour: str = ""


def line(row: Row) -> str:
    """A change in one line, without what only moves with the clock."""
    return harmless(_line(row))


def key(row: Row) -> object:
    """What of a row makes a new line."""
    return (row.silent, row.silent_s is not None) if isinstance(row, ControlRow) else line(row)


def _line(row: Row) -> str:
    if isinstance(row, ControlRow):
        return f"control plane of {row.cluster}: {row.says}"
    if isinstance(row, BreakerRow):
        return f"breaker of {row.cluster}: {_breaker(row)}"
    if isinstance(row, IncidentRow):
        end = f", closed {stamp(row.closed)}" if row.closed is not None else ""
        return f"incident {row.incident}: no fault explains it: {_incident(row)}{end}"
    parts = [f"{row.experiment} {row.status}" + (f":{row.verdict}" if row.verdict else "")]
    parts.append(f"faults={row.faults_there}/{row.faults}")
    parts += [f"{name}={_seconds(each.value)}{_word(row, each)}" for name, each in row.times.items()]
    parts.append("hurt=" + (",".join(f"{name}:{_of(each)}" for name, each in _hurt(row)) or "0"))
    parts += [f"halt={halt.state}({halt.cause}{', dry run' * halt.dry_run})" for halt in row.halts]
    parts += [f"unexplained={row.unexplained}"] * (row.unexplained > 0)
    return " ".join(parts) + (f"  {row.reason}" if row.reason else "")


def screen(rows: Sequence[Row], now: float, *, cells: tuple[str, str] = ASCII) -> Iterator[Line]:
    """Everything in view, from the cluster's state to the incidents that nobody asked for."""
    for row in rows:
        if isinstance(row, ControlRow):
            yield Line(f"cluster {harmless(row.cluster)}: {row.says}", "red" if row.silent else "")
        elif isinstance(row, BreakerRow):
            yield Line(harmless(f"breaker {_breaker(row)}"), "red" if row.tripped else "")
    running = [row for row in rows if isinstance(row, ExperimentRow)]
    if not running:
        yield from (Line(""), Line("no experiment is running", "dim"))
    for row in running:
        yield Line("")
        yield from _experiment(row, cells)
    yield from _incidents([row for row in rows if isinstance(row, IncidentRow)], now)


def _experiment(row: ExperimentRow, cells: tuple[str, str]) -> Iterator[Line]:
    verdict = f": {row.verdict}" if row.verdict else ""
    left = f", {row.time_left_s:.0f} s left" if row.time_left_s is not None else ""
    head = f"{row.experiment}  {row.fault or 'no fault'} of {row.owner}  {row.status}{verdict}{left}"
    yield Line(harmless(head), _COLOURS[row.verdict] if row.verdict else "bold")
    yield Line(f"  faults there    {row.faults_there} of {row.faults}")
    for name, each in row.blast_radius.items():
        if each.bound is not None or each.value:
            shown = _LEVELS.get(name, name).ljust(_LEVEL_WIDTH)
            yield Line(f"  {shown}  {bar(each, cells)} {_of(each, ' / ')}", "" if each.met is not False else "red")
    times = "   ".join(f"{name.upper()} {_seconds(each.value)}{_word(row, each)}" for name, each in row.times.items())
    missed = any(each.met is False for each in row.times.values())
    yield Line(f"  {times}", "red" if missed else "")
    if row.steady:
        said = ", ".join(f"{name} {state}" for name, state in row.steady.items())
        yield Line(harmless(f"  steady state    {said}"))
    for halt in row.halts:
        yield _halt(halt)
    if row.charged or row.unexplained:
        yield Line(f"  anomalies       {row.charged} charged to it, {row.unexplained} that no fault explains")
    if row.reason:
        yield Line(harmless(f"  because         {row.reason}"))


def bar(each: Against, cells: tuple[str, str]) -> str:
    """How much of its limit is used, `BAR` cells wide; none without a limit. What is over a limit of 0 fills it."""
    if each.bound is None:
        return " " * (BAR + 2)
    value = each.value or 0.0
    share = min(1.0, value / each.bound) if each.bound > 0 else float(value > 0)
    # What is hurt is seen, however little of the limit it is; a full bar is one that is used up.
    full = BAR if share >= 1 else min(BAR - 1, max(int(share * BAR), int(value > 0)))
    return f"[{cells[0] * full}{cells[1] * (BAR - full)}]"


def _halt(halt: HaltRow) -> Line:
    waits = f", waits for {', '.join(halt.waiting_for)}" if halt.waiting_for else ""
    dry = " (dry run: nothing was sent)" * halt.dry_run
    colour = {HaltState.ESCALATED: "red", HaltState.CONFIRMED: "green"}.get(halt.state, "yellow")
    return Line(harmless(f"  halt            {halt.state}{dry} for {halt.cause}{waits}"), colour)


def _incidents(rows: Sequence[IncidentRow], now: float) -> Iterator[Line]:
    if not rows:
        return
    count = "1 incident" if len(rows) == 1 else f"{len(rows)} incidents"
    yield from (Line(""), Line(f"{count} that no fault explains:", "bold"))
    for row in rows[-MOST_INCIDENTS:]:
        age = max(0.0, now - row.opened)
        yield Line(harmless(f"  {age:>5.0f} s ago  {_incident(row)}"), "red" if row.severity == "critical" else "")
    if len(rows) > MOST_INCIDENTS:
        yield Line(f"  and {len(rows) - MOST_INCIDENTS} older ones", "dim")


def _incident(row: IncidentRow) -> str:
    where = ", ".join(row.nodes[:4]) + (f" and {len(row.nodes) - 4} more" if len(row.nodes) > 4 else "")
    jobs = f", jobs {', '.join(row.jobs[:3])}" if row.jobs else ""
    return f"{row.severity} on {where or 'no node'}{jobs}: {row.summary}"


def _breaker(row: BreakerRow) -> str:
    if row.tripped:
        return f"TRIPPED since {stamp(row.since)}, no new fault may begin: {row.cause}"
    if row.frozen_until is not None:
        return f"closed, new faults wait until {stamp(row.frozen_until)}"
    return "closed"


def _hurt(row: ExperimentRow) -> Iterator[tuple[str, Against]]:
    """What counts things: GPU-seconds grow by themselves."""
    return ((name, each) for name, each in row.blast_radius.items() if each.value and name != "gpu_seconds")


def _of(each: Against, between: str = "/") -> str:
    value = round(each.value or 0.0, 1)
    return f"{value:g}" + (f"{between}{each.bound:g}" if each.bound is not None else "")


def _word(row: ExperimentRow, each: Against) -> str:
    if each.bound is None:
        return ""
    said = {True: "met", False: "missed", None: "open" if row.verdict is None else "not measured"}[each.met]
    return f" of {each.bound:g} s ({said})"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
