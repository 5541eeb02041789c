"""States → what holds in them: the alerts that a state says are on or over, and the notices that it is worth.

Nothing here remembers what was said before; that is `book.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuchaos_stream.events.base import Severity, stable_id
from gpuchaos_stream.events.experiment import BreakerState, ExperimentState, Halt, HaltState, Status, Verdict
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.notify import telling
from gpuchaos_stream.notify.message import Section

#: Label that says what kind of alert it is. An abort signal is never silenced by an experiment.
SIGNAL: Final = "signal"
ABORT, HARM, NOTICE = "abort", "harm", "notice"

#: Status → whether a fault of the experiment has been on its way to a node.
_BEGUN: Final = frozenset({Status.INJECTING, Status.ACTIVE, Status.UNDOING, Status.HALTING, Status.RECOVERING})
#: Verdict → how loudly the end of an experiment is told. One that was void has tested nothing: someone should look.
_VERDICTS: Final = {
    Verdict.PASSED: Severity.INFO,
    Verdict.FAILED: Severity.ERROR,
    Verdict.HALTED: Severity.WARNING,
    Verdict.STOPPED: Severity.INFO,
    Verdict.VOID: Severity.WARNING,
}
#: How a person's own stop is marked in a halt's cause (`guard/decision.py`).
_BY_A_PERSON: Final = "operator:"


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is on (`ends` None) or over, or with `notice` something that happened.

    `stage` changes when the change is worth another message; everything else may change silently.
    """

    key: str
    name: str
    severity: Severity
    stage: str
    title: str
    sections: tuple[Section, ...]
    labels: dict[str, str]
    cluster: str
    starts: float
    ends: float | None = None
    experiment_id: str | None = None
    notice: bool = field(default=False)


def of_experiment(state: ExperimentState) -> Iterator[Condition]:
    """Its halts, its faults that could not be undone, and the notices of its start and end."""
    yield from _notices(state)
    for halt in state.halts:
        if not halt.dry_run:
            yield _halt(state, halt)
    stuck = [fault for fault in state.faults if fault.phase == "undo_failed"]
    ever = stuck or [fault for fault in state.faults if fault.phase == "undone"]
    if ever:
        starts = min((fault.injected for fault in ever if fault.injected is not None), default=state.started)
        yield Condition(
            key=stable_id("not-undone", state.cluster, state.id),
            name="FaultNotUndone",
            severity=Severity.CRITICAL,
            stage=",".join(sorted(fault.fault_id for fault in stuck)),
            title=f"{state.name}: {len(stuck)} faults could not be undone"
            if stuck
            else f"{state.name}: every fault is undone",
            sections=telling.of_experiment(state, telling.todo_not_undone(stuck)),
            labels=_labels("FaultNotUndone", state.cluster, ABORT, state),
            cluster=state.cluster,
            experiment_id=state.id,
            starts=starts,
            ends=None if stuck else state.time,
        )


def of_breaker(state: BreakerState, experiments: Sequence[ExperimentState]) -> Iterator[Condition]:
    """The cluster's breaker: on while it is tripped. `experiments` are those that run there."""
    name = "BreakerTripped"
    yield Condition(
        key=stable_id("breaker", state.cluster),
        name=name,
        severity=Severity.CRITICAL,
        stage=state.cause if state.tripped else "",
        title=f"breaker of {state.cluster} tripped: {state.cause}"
        if state.tripped
        else f"breaker of {state.cluster} reset by {state.reset_by or 'a person'}: {state.reset_reason}",
        sections=telling.of_breaker(state, experiments),
        labels=_labels(name, state.cluster, ABORT),
        cluster=state.cluster,
        starts=state.since or state.time,
        ends=None if state.tripped else state.time,
    )


def of_incident(incident: Incident, experiments: Sequence[ExperimentState]) -> Iterator[Condition]:
    """The incident: on until it is closed or its anomalies have moved to another. `experiments` run there now."""
    over = incident.closed is not None or incident.superseded
    state = next((each for each in experiments if each.id == incident.experiment_id), None)
    name = "ExperimentHarm" if incident.attributed else "Incident"
    labels = _labels(name, incident.cluster, HARM, state)
    if incident.experiment_id:
        labels["experiment_id"] = incident.experiment_id
    yield Condition(
        key=stable_id("incident-alert", incident.cluster, incident.id),
        name=name,
        severity=incident.severity,
        stage="",
        title=f"{incident.cluster}: {incident.summary or incident.id}",
        sections=telling.of_incident(incident, state, experiments),
        labels={**labels, "attributed": str(incident.attributed).lower(), "incident_id": incident.id},
        cluster=incident.cluster,
        experiment_id=incident.experiment_id,
        starts=incident.opened,
        ends=(incident.closed or incident.time) if over else None,
    )


def _halt(state: ExperimentState, halt: Halt) -> Condition:
    finished = state.status is Status.FINISHED
    # An experiment may end before telemetry has confirmed; what is left on a node is not over by that.
    over = halt.confirmed if halt.confirmed is not None else (halt.undone if finished else None)
    escalated = halt.state is HaltState.ESCALATED and over is None
    by_person = halt.cause.startswith(_BY_A_PERSON)
    severity = Severity.CRITICAL if escalated else Severity.WARNING if by_person else Severity.ERROR
    name = "ExperimentHalted"
    return Condition(
        key=stable_id("halt-alert", state.cluster, halt.id),
        name=name,
        severity=severity,
        stage="escalated" if escalated else "requested" if halt.undone is None else "undone",
        # First what must not be cut off.
        title=("undo NOT confirmed: " if escalated else "") + f"{state.name} halted: {halt.reason or halt.cause}",
        sections=telling.of_experiment(state, telling.todo_halt(halt, finished=finished)),
        labels=_labels(name, state.cluster, ABORT, state) | {"halt_id": halt.id},
        cluster=state.cluster,
        experiment_id=state.id,
        starts=halt.requested,
        ends=over,
    )


def _notices(state: ExperimentState) -> Iterator[Condition]:
    if state.status in _BEGUN:
        begun = min((each.injected for each in state.faults if each.injected is not None), default=state.started)
        yield _notice(state, "ExperimentStarted", Severity.INFO, f"experiment {state.name} started", begun)
    if state.status is Status.FINISHED and state.verdict is not None:
        title = f"experiment {state.name} finished: {state.verdict}" + (f" ({state.reason})" if state.reason else "")
        yield _notice(state, "ExperimentFinished", _VERDICTS[state.verdict], title, state.finished or state.time)


def _notice(state: ExperimentState, name: str, severity: Severity, title: str, at: float) -> Condition:
    return Condition(
        key=stable_id("notice", name, state.cluster, state.id),
        name=name,
        severity=severity,
        stage="",
        title=title,
        sections=telling.of_experiment(state, telling.todo_notice(state)),
        labels=_labels(name, state.cluster, NOTICE, state)
        | ({"verdict": str(state.verdict)} if state.verdict and name == "ExperimentFinished" else {}),
        cluster=state.cluster,
        experiment_id=state.id,
        starts=at,
        ends=at,
        notice=True,
    )


def _labels(name: str, cluster: str, signal: str, state: ExperimentState | None = None) -> dict[str, str]:
    """Labels that never change while an alert lasts: they are its identity in Alertmanager. Severity is not among them
    here; who sends adds it.
    """
    labels = {"alertname": f"GPUChaos{name}", "cluster": cluster, SIGNAL: signal}
    if state is not None:
        labels |= {"experiment_id": state.id, "experiment": state.name, "owner": state.owner}
    return labels
