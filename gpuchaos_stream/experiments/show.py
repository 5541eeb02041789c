"""Experiments as text: a table, a page, a line. Rich on a terminal, plain everywhere else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, TextIO

from gpuchaos_stream import output
from gpuchaos_stream.events.experiment import AnomalyLine, ExperimentState
from gpuchaos_stream.events.incident import LEVELS

_COLUMNS: Final = ("experiment", "fault", "status", "verdict", "ttd", "ttm", "ttr", "hurt", "owner", "started")
#: Verdict → colour on a terminal.
_COLOURS: Final = {"passed": "green", "failed": "red", "halted": "yellow", "stopped": "yellow", "void": "dim"}


def table(states: Sequence[ExperimentState], out: TextIO) -> None:
    """All states, one a row."""
    rows = [_row(state) for state in states]
    output.table(_COLUMNS, rows, out, styles=[_COLOURS.get(str(state.verdict), "") for state in states])


def page(state: ExperimentState, out: TextIO) -> None:
    """One experiment, everything that a person asks about it."""
    radius = state.blast_radius
    lines = [
        ("experiment", state.id),
        ("owner", state.owner),
        ("status", state.status + (f": {state.verdict}" if state.verdict else "")),
        ("reason", state.reason or "-"),
        ("started", stamp(state.started)),
        ("finished", stamp(state.finished)),
        *((name, _against(state, name)) for name in ("ttd", "ttm", "ttr")),
        ("confirmed", _seconds(state.recovery.confirm)),
        ("unknown", _seconds(state.recovery.unknown_s)),
        ("clock skew", _seconds(state.recovery.skew_s)),
        ("hurt beyond targets", " ".join(f"{level}={getattr(radius, level)}" for level in LEVELS)),
        ("GPU-seconds lost", f"{radius.gpu_seconds:.1f}"),
        ("anomalies", f"{state.attributed} charged to it, {state.unattributed} that no fault explains"),
        *_told("charged", state.charged, state.attributed),
        *_told("unexplained", state.unexplained, state.unattributed),
        ("steady state", " ".join(f"{name}={value}" for name, value in state.steady.items()) or "-"),
    ]
    lines.extend(
        (f"fault {f.fault_id}", f"{f.fault} on {f.entity}: {f.phase} {f.reason}".rstrip()) for f in state.faults
    )
    lines.extend((f"halt {h.cause}", f"{h.state}{' (dry run)' * h.dry_run}: {h.reason}") for h in state.halts)
    width = max(len(name) for name, _ in lines)
    out.writelines(f"{name.ljust(width)}  {output.harmless(value)}\n" for name, value in lines)


def line(state: ExperimentState) -> str:
    """One change, for a running log."""
    return f"{stamp(state.time)} {news(state)}"


def news(state: ExperimentState) -> str:
    """What a change says, without its time: the same text, nothing new."""
    there = sum(fault.injected is not None and fault.undone is None for fault in state.faults)
    parts = [state.id, str(state.status) + (f":{state.verdict}" if state.verdict else "")]
    parts.append(f"faults={there}/{len(state.faults)}")
    parts.extend(f"{name}={_seconds(getattr(state.recovery, name))}" for name in ("ttd", "ttm", "ttr"))
    parts.append(f"hurt={_hurt(state)}")
    return output.harmless(" ".join(parts) + (f"  {state.reason}" if state.reason else ""))


def stamp(time: float | None) -> str:
    """UTC, to the second; `-` for none."""
    return "-" if time is None else datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _row(state: ExperimentState) -> tuple[str, ...]:
    recovery = state.recovery
    fault = state.faults[0].fault if state.faults else "-"
    times = (_seconds(recovery.ttd), _seconds(recovery.ttm), _seconds(recovery.ttr))
    return (
        state.id,
        fault,
        str(state.status),
        str(state.verdict or "-"),
        *times,
        _hurt(state),
        state.owner,
        stamp(state.started),
    )


def _told(what: str, lines: Sequence[AnomalyLine], of: int) -> Iterator[tuple[str, str]]:
    """A row for each line of anomalies, and one that says how many are not among them."""
    for each in lines:
        count = f"{each.count} anomal{'y' if each.count == 1 else 'ies'}"
        count += f" on {each.entities} entities" if each.entities > 1 else ""
        said = f"{_seconds(each.after_s)}, {each.severity}, score {each.score:.2f}, {count}: {each.sentence}"
        yield f"{what} {each.metric}", said
    left = of - sum(each.count for each in lines)
    if lines and left > 0:
        yield f"{what} besides", f"{left} more, none worse than these"


def _hurt(state: ExperimentState) -> str:
    radius = state.blast_radius
    parts = [f"{getattr(radius, level)} {level}" for level in ("gpus", "nodes", "jobs") if getattr(radius, level)]
    return ",".join(parts).replace(" ", ":") or "0"


def _against(state: ExperimentState, name: str) -> str:
    recovery = state.recovery
    value, objective, met = getattr(recovery, name), recovery.objectives.get(name), recovery.met.get(name)
    said = {True: "met", False: "missed", None: "open" if state.finished is None else "not measured"}[met]
    how = " (the work moved off it)" if name == "ttm" and recovery.mitigated_by == "moved" else ""
    how = " (absorbed: no check went out of tolerance)" if name == "ttr" and value == 0 else how
    return _seconds(value) + (f" of {objective:g} s, {said}" if objective is not None else "") + how


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}s"
