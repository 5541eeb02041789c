"""What the demo says: lines while it runs, a table at its end. Rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Final

import click

from gpuchaos_stream.events.experiment import ExperimentState, Halt, Verdict
from gpuchaos_stream.events.incident import LEVELS, Incident
from gpuchaos_stream.output import coloured, console
from gpuchaos_stream.sim.scenarios import FAILING_GPU, touches

#: Verdict → colour on a terminal.
_COLOURS: Final = {Verdict.PASSED: "green", Verdict.HALTED: "yellow", Verdict.FAILED: "red", Verdict.VOID: "red"}
#: Said under the table: without it the number reads as anomalies that were missed.
_FOOTNOTE: Final = "anomalies unattributed: of ecc-record, those of the GPU that really failed and of its job"


class Narrator:
    """Says what changes, once. Times are seconds since its start."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._states: dict[str, ExperimentState] = {}
        self._told: set[str] = set()

    @property
    def elapsed(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._start

    def say(self, text: str, colour: str | None = None) -> None:
        """One line."""
        stamp, wanted = f"{self.elapsed:6.1f} s", coloured(sys.stdout)
        stamp = click.style(stamp, dim=True) if wanted else stamp
        click.echo(f"{stamp}  {click.style(text, fg=colour) if colour and wanted else text}")

    def experiment(self, state: ExperimentState) -> None:
        """What is new in an experiment's state."""
        before = self._states.get(state.id)
        self._states[state.id] = state
        if before is None or before.status is not state.status:
            verdict = f": {state.verdict}" if state.verdict else ""
            new = state.reason and (before is None or before.reason != state.reason)
            reason = f" ({state.reason})" if new else ""
            self.say(f"{state.name}: {state.status}{verdict}{reason}", _COLOURS.get(state.verdict or Verdict.STOPPED))
        if state.recovery.ttd is not None and (before is None or before.recovery.ttd is None):
            self.say(f"{state.name}: first anomaly charged to it {state.recovery.ttd:.1f} s after injection")
        known = {halt.id: halt.state for halt in before.halts} if before else {}
        for halt in state.halts:
            if known.get(halt.id) is not halt.state:
                self.say(f"{state.name}: halt {halt.state} ({halt.cause})", "yellow")

    def incident(self, incident: Incident) -> None:
        """A failure that is nobody's experiment."""
        if incident.experiment_id is None and touches(incident, FAILING_GPU) and "failure" not in self._told:
            self._told.add("failure")
            self.say(f"told apart, charged to no experiment: {incident.summary or incident.cause}", "cyan")


def show(states: Sequence[ExperimentState | None], titles: Sequence[str]) -> None:
    """The table at the end: a column an experiment, a row a fact."""
    columns = [_facts(state) for state in states]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [[name, *(column.get(name, "-") for column in columns)] for name in names]
    for number, title in enumerate(titles, 1):
        click.echo(f"{number}. {title}")
    if sys.stdout.isatty():
        _draw(rows)
    else:
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        for row in rows:
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    click.echo(_FOOTNOTE)


def _draw(rows: list[list[str]]) -> None:
    from rich.table import Table  # noqa: PLC0415  (only a terminal pays for it)

    table = Table(*rows[0], header_style="bold", pad_edge=False)
    for row in rows[1:]:
        table.add_row(*row)
    console(sys.stdout).print(table)


def _facts(state: ExperimentState | None) -> dict[str, str]:
    if state is None:
        return {"experiment": "(not finished)", "verdict": "-"}
    recovery, radius = state.recovery, state.blast_radius
    facts = {
        "experiment": state.name,
        "fault": ", ".join(f"{fault.fault} on {fault.entity}" for fault in state.faults) or "-",
        "verdict": str(state.verdict or "-"),
        "anomalies attributed": str(state.attributed),
        "anomalies unattributed": str(state.unattributed),
    }
    for level in LEVELS:
        facts[f"hurt beyond target: {level}"] = _of(getattr(radius, level), state.limits.get(level))
    facts["GPU-seconds lost"] = _of(round(radius.gpu_seconds, 1), state.limits.get("gpu_seconds"))
    for name in ("ttd", "ttm", "ttr"):
        facts[f"{name.upper()} / objective"] = _of(getattr(recovery, name), recovery.objectives.get(name), " s")
    facts["recovery confirmed"] = _seconds(recovery.confirm)
    halt = state.halts[0] if state.halts else None
    facts["halt"] = halt.cause if halt else "-"
    facts["halt: breach → acknowledged"] = _since(halt, "acknowledged")
    facts["halt: breach → undone"] = _since(halt, "undone")
    facts["halt: breach → confirmed"] = _since(halt, "confirmed")
    return facts


def _since(halt: Halt | None, step: str) -> str:
    at = getattr(halt, step) if halt else None
    return "-" if halt is None or at is None else f"{at - halt.requested:.2f} s"


def _of(value: float | None, bound: float | None, unit: str = "") -> str:
    said = "-" if value is None else f"{value:g}" if not unit else f"{value:.1f}{unit}"
    return said if bound is None or bound >= 2**53 else f"{said} / {bound:g}{unit}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
