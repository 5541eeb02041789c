"""Anomalies: a signal, or a number far from its peers or from its own past."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from gpuchaos_stream.events.base import Entity, Event, Severity, Timestamp
from gpuchaos_stream.events.fault import Origin


class AnomalyPhase(StrEnum):
    """An anomaly is opened once, updated while it lasts, closed once."""

    OPENED = "opened"
    UPDATED = "updated"
    CLOSED = "closed"


class AnomalyKind(StrEnum):
    """How it was found."""

    SIGNAL = "signal"  # a hard fact: an Xid, a link down, lost telemetry
    PEER = "peer"  # far from its peers in the cell
    PAST = "past"  # far from its own past


class Anomaly(Event):
    """One anomaly of one metric on one entity, from `start` on.

    `anomaly_id` stays the same through its phases and is made of entity, metric and start (of a job's or a cell's also
    of the cell, since two may report the same job); `id` is
    unique per phase. `score` counts robust standard deviations (signals: 1 + severity rank); `effect` is the
    relative distance from what was expected (0.5 = half off), None for signals. `time` is the event time of
    the frame or fact that led to this phase. `metric` of a signal is its fault name.
    """

    anomaly_id: str
    phase: AnomalyPhase
    kind: AnomalyKind
    metric: str
    entity: Entity
    node: str | None
    cell: str | None = None
    job: str | None = None
    start: Timestamp
    end: Timestamp | None = None
    severity: Severity = Severity.WARNING
    score: float = Field(ge=0)
    effect: float | None = None
    value: float | None = None
    expected: float | None = None
    origin: Origin | None = None
    injected_mark: bool = False
    fault_event_id: str | None = Field(default=None, description="the observed fault that this signal is")
    detail: dict[str, str | float | int | bool | None] = {}
