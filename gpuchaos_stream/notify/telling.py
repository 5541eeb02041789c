"""The sentences of a message, part by part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuchaos_stream.events.experiment import (
    AnomalyLine,
    BreakerState,
    ExperimentState,
    Halt,
    HaltState,
    InjectedFault,
    Status,
    Verdict,
)
from gpuchaos_stream.events.incident import LEVELS, Incident
from gpuchaos_stream.notify.message import Part, Section, section

#: Phases in which a fault is not, or no longer, on its target.
_AWAY = frozenset({"waiting", "refused", "undone", "not_effective"})


def of_experiment(state: ExperimentState, todo: str) -> tuple[Section, ...]:
    """All parts of a message about an experiment; `todo` is the last one's text."""
    return (
        section(Part.INJECTED, _injected(state), "nothing yet"),
        section(Part.BROKE, _broke(state), "nothing that was seen"),
        section(Part.UNEXPLAINED, _unexplained(state.unexplained, state.unattributed), "nothing"),
        section(Part.HALTED, (_halted(halt) for halt in state.halts), "nothing"),
        section(Part.UNDO, _undo(state), "nothing to undo"),
        section(Part.DO, [todo], "nothing"),
    )


def of_breaker(state: BreakerState, experiments: Sequence[ExperimentState]) -> tuple[Section, ...]:
    """All parts of a message about the breaker; `experiments` run in its cluster."""
    return (
        section(Part.INJECTED, (line for each in experiments for line in _injected(each)), "nothing that runs now"),
        section(Part.BROKE, (line for each in experiments for line in _broke(each)), "nothing that was seen"),
        section(Part.UNEXPLAINED, _of_all(experiments), "nothing that is known here"),
        section(
            Part.HALTED,
            [f"every experiment of {state.cluster}: {state.cause}"] if state.tripped else [],
            "nothing now: the breaker is closed",
        ),
        section(Part.UNDO, (line for each in experiments for line in _undo(each)), "nothing to undo that runs now"),
        section(
            Part.DO,
            [
                f"find out why, then: gpuchaos breaker reset --reason WHY --cluster {state.cluster};"
                " nothing is injected before"
                if state.tripped
                else "nothing: experiments may start again"
            ],
            "nothing",
        ),
    )


def of_incident(
    incident: Incident, state: ExperimentState | None, experiments: Sequence[ExperimentState]
) -> tuple[Section, ...]:
    """All parts of a message about an incident; `state` is its experiment's, `experiments` all that run there."""
    what = [f"{each.severity}: {each.metric} on {each.entity}: {each.evidence.sentence}" for each in incident.anomalies]
    where = [f"nodes: {_list(incident.nodes)}"] if incident.nodes else []
    where += [f"jobs: {_list(incident.jobs)}"] if incident.jobs else []
    running = [state] if state is not None else [] if incident.attributed else experiments
    nothing = "by an experiment that is not known here" if incident.attributed else "nothing: no experiment runs"
    over = incident.closed is not None or incident.superseded
    return (
        section(Part.INJECTED, (line for each in running for line in _injected(each)), nothing),
        section(
            Part.BROKE,
            [*where, *what] if incident.attributed else [],
            "nothing of this is charged to an experiment",
        ),
        section(Part.UNEXPLAINED, [] if incident.attributed else [*where, *what], "nothing of this incident"),
        section(Part.HALTED, (_halted(halt) for each in running for halt in each.halts), "nothing"),
        section(Part.UNDO, (line for each in running for line in _undo(each)), "nothing to undo"),
        section(Part.DO, [_todo_incident(incident, over=over)], "nothing"),
    )


def todo_halt(halt: Halt, *, finished: bool) -> str:
    """What to do about a halt."""
    waiting = _list(halt.waiting_for)
    if halt.undone is None:
        if halt.state is HaltState.ESCALATED:
            return f"go to {waiting or 'its nodes'} and undo there: gpuchaos-agent undo --all"
        return "nothing yet: agents undo, and are asked again until they answer"
    if halt.confirmed is not None:
        return "nothing: it is undone and telemetry confirms it; read the cause before it runs again"
    if halt.state is HaltState.ESCALATED or finished:
        return "the fault is undone but telemetry does not show the effects gone: look at what broke with it"
    return "nothing yet: it is undone, telemetry is to confirm it"


def todo_not_undone(stuck: Iterable[InjectedFault]) -> str:
    """What to do about faults whose undo failed."""
    nodes = _list(sorted({fault.node for fault in stuck}))
    return f"on {nodes}: gpuchaos-agent undo --all; then see that the effect is gone" if nodes else "nothing"


def todo_notice(state: ExperimentState) -> str:
    """What to do about a start or an end: for most ends nothing."""
    if state.status is not Status.FINISHED:
        return f"nothing; to stop it: gpuchaos experiment stop {state.id} --reason WHY --cluster {state.cluster}"
    if state.verdict is Verdict.FAILED:
        return "it did not recover within its objectives: see what broke with it, and whether it is well again"
    if state.verdict is Verdict.VOID:
        return "nothing was tested: mend what the reason names and run it again"
    return "nothing"


def _injected(state: ExperimentState) -> list[str]:
    return [f"{f.fault} on {f.entity} ({f.phase}), by {state.name} of {state.owner}" for f in state.faults]


def _broke(state: ExperimentState) -> list[str]:
    radius = state.blast_radius
    hurt = [
        f"{getattr(radius, level)} {level}" + (f" of {state.limits[level]:g} allowed" if level in state.limits else "")
        for level in LEVELS
        if getattr(radius, level)
    ]
    if radius.unknown_nodes:
        hurt.append(f"{radius.unknown_nodes} nodes silent, counted as hurt")
    lines = [f"beyond its targets: {', '.join(hurt)}"] if hurt else []
    return lines + [_line(line) for line in state.charged]


def _unexplained(lines: Sequence[AnomalyLine], count: int) -> list[str]:
    told = [_line(line) for line in lines]
    return told or ([f"{count} anomalies"] if count else [])


def _of_all(experiments: Sequence[ExperimentState]) -> list[str]:
    return [line for each in experiments for line in _unexplained(each.unexplained, each.unattributed)]


def _line(line: AnomalyLine) -> str:
    many = f" and {line.entities - 1} more" if line.entities > 1 else ""
    return f"{line.severity}: {line.metric} on {line.entity}{many}, {line.after_s:+.1f} s: {line.sentence}"


def _halted(halt: Halt) -> str:
    also = f"; also {', '.join(halt.also)}" if halt.also else ""
    return f"{halt.state}{' (dry run, nothing was done)' * halt.dry_run}: {halt.reason or halt.cause}{also}"


def _undo(state: ExperimentState) -> list[str]:
    """Whether everything is gone, in words that leave no doubt about doubt."""
    injected = [fault for fault in state.faults if fault.phase not in {"waiting", "refused", "not_effective"}]
    if not injected:
        return []
    left = [fault for fault in injected if fault.phase not in _AWAY]
    planned = state.status in {Status.PENDING, Status.INJECTING, Status.ACTIVE}
    word = "still there, as planned" if planned else "NOT undone"
    lines = [f"{word}: {fault.fault} on {fault.entity}: {fault.phase} {fault.reason}".rstrip() for fault in left]
    waiting = sorted({node for halt in state.halts if not halt.dry_run for node in halt.waiting_for})
    if waiting:
        lines.append(f"waiting for {_list(waiting)}")
    if left or waiting:
        return lines
    halt = next((halt for halt in state.halts if not halt.dry_run), None)
    shown = halt.confirmed is not None if halt is not None else state.recovery.confirm is not None
    return [
        "confirmed: undone, and telemetry shows it" if shown else "undone, NOT yet confirmed by telemetry",
    ]


def _todo_incident(incident: Incident, *, over: bool) -> str:
    if incident.superseded:
        return "nothing: it has become part of another incident"
    if over:
        return "nothing: it is over"
    if incident.attributed:
        return "nothing while it stays within the experiment's limits: it is halted by itself beyond them"
    return "treat it as a real failure: no experiment explains it"


def _list(names: Iterable[str], most: int = 10) -> str:
    found = list(names)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")
