"""What `gpuchaos watch` says of one moment, as plain objects: the same fields in the terminal, in JSON and in YAML."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from gpuchaos_stream.events.experiment import ExperimentState, HaltState, Status, Verdict
from gpuchaos_stream.events.incident import LEVELS, Incident

#: Levels of the blast radius, and the GPU-seconds lost: what an experiment may limit.
LIMITED: Final = (*LEVELS, "gpu_seconds")


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True)


class Against(_Row):
    """A value and what it is held against; None is not known yet, or not limited."""

    value: float | None
    bound: float | None
    met: bool | None = None


class HaltRow(_Row):
    """One halt of an experiment."""

    cause: str
    state: HaltState
    dry_run: bool
    waiting_for: tuple[str, ...]
    reason: str


class ExperimentRow(_Row):
    """An experiment at one moment. `time_left_s`: seconds until its faults end as planned, None where that is over."""

    kind: Literal["experiment"] = "experiment"
    experiment: str
    cluster: str
    fault: str
    owner: str
    status: Status
    verdict: Verdict | None
    reason: str
    time_left_s: float | None
    faults: int
    faults_there: int
    blast_radius: dict[str, Against]
    times: dict[str, Against]
    steady: dict[str, str]
    halts: tuple[HaltRow, ...]
    charged: int
    unexplained: int


class BreakerRow(_Row):
    """The breaker of the cluster."""

    kind: Literal["breaker"] = "breaker"
    cluster: str
    tripped: bool
    since: float | None
    cause: str
    frozen_until: float | None
    reset_by: str
    reset_reason: str


class IncidentRow(_Row):
    """An incident that no fault explains."""

    kind: Literal["incident"] = "incident"
    incident: str
    cluster: str
    opened: float
    closed: float | None
    severity: str
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]
    anomalies: int
    summary: str


class ControlRow(_Row):
    """The control plane of the cluster: whether a worker speaks. `silent_s` None: none has been heard."""

    kind: Literal["control"] = "control"
    cluster: str
    silent: bool
    silent_s: float | None
    says: str


Row = ExperimentRow | BreakerRow | IncidentRow | ControlRow


def experiment_row(state: ExperimentState, now: float) -> ExperimentRow:
    """`state` at `now`, event time in epoch seconds."""
    there = sum(fault.injected is not None and fault.undone is None for fault in state.faults)
    running = state.status in {Status.PENDING, Status.INJECTING, Status.ACTIVE}
    left = max(0.0, state.ends - now) if running and state.ends is not None else None
    radius, recovery = state.blast_radius, state.recovery
    return ExperimentRow(
        experiment=state.id,
        cluster=state.cluster,
        fault=state.faults[0].fault if state.faults else "",
        owner=state.owner,
        status=state.status,
        verdict=state.verdict,
        reason=state.reason,
        time_left_s=None if left is None else round(left, 1),
        faults=len(state.faults),
        faults_there=there,
        blast_radius={
            level: Against(
                value=getattr(radius, level),
                bound=state.limits.get(level),
                met=_met(getattr(radius, level), state.limits.get(level)),
            )
            for level in LIMITED
        },
        times={
            name: Against(
                value=getattr(recovery, name), bound=recovery.objectives.get(name), met=recovery.met.get(name)
            )
            for name in ("ttd", "ttm", "ttr")
        },
        steady=dict(state.steady),
        halts=tuple(
            HaltRow(cause=h.cause, state=h.state, dry_run=h.dry_run, waiting_for=h.waiting_for, reason=h.reason)
            for h in state.halts
        ),
        charged=state.attributed,
        unexplained=state.unattributed,
    )


def incident_row(incident: Incident) -> IncidentRow:
    """An incident as a row."""
    return IncidentRow(
        incident=incident.id,
        cluster=incident.cluster,
        opened=incident.opened,
        closed=incident.closed,
        severity=str(incident.severity),
        nodes=incident.nodes,
        jobs=incident.jobs,
        anomalies=len(incident.anomalies),
        summary=incident.summary or incident.cause,
    )


def _met(value: float, limit: float | None) -> bool | None:
    return None if limit is None else value <= limit
