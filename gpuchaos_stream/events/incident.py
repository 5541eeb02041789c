"""Incidents, blast radius, recovery: what the loop concludes."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import Field

from gpuchaos_stream.events.base import Entity, Event, Severity, Timestamp, Wire

#: The units in which harm is counted, in the order in which they are shown.
LEVELS: Final = ("gpus", "nodes", "cells", "racks", "rails", "nvlink_domains", "jobs")

#: The most entities of a blast radius that are named; its counts are complete.
MOST_ENTITIES: Final = 200


class BlastRadius(Wire):
    """Entities beyond the declared targets that an experiment's faults hurt.

    `now` are those hurt at this moment, the rest were ever hurt. `gpu_seconds` is the integral of hurt GPUs
    beyond the targets over time, seconds. A target whose telemetry has stopped is unknown and is counted in
    `unknown_nodes`: unknown is unsafe.
    """

    gpus: int = 0
    nodes: int = 0
    cells: int = 0
    racks: int = 0
    rails: int = 0
    nvlink_domains: int = 0
    jobs: int = 0
    gpu_seconds: float = 0.0
    gpus_now: int = 0
    nodes_now: int = 0
    jobs_now: int = 0
    unknown_nodes: int = 0
    entities: tuple[Entity, ...] = Field(
        default=(), description=f"at most {MOST_ENTITIES} of them, sorted, for the message"
    )


class RecoveryOutcome(StrEnum):
    """How recovery ended."""

    PENDING = "pending"
    RECOVERED = "recovered"
    MISSED = "missed"  # not recovered by its deadline; kept, never dropped


class Mitigation(StrEnum):
    """What ended the harm first."""

    REMOVED = "removed"  # the last fault was taken back
    MOVED = "moved"  # the jobs on the targets went on elsewhere, in full


class RecoveryRecord(Wire):
    """Recovery times of one experiment, in seconds of event time since its first injection.

    `ttd`: to the first anomaly attributed to it. `ttm`: to the removal of its last fault, or the work's move
    off it; `mitigated_by` says which. `ttr`: to the start of the first window of `hold_s` in which every
    steady-state check is in tolerance, after which nothing went out of tolerance within the window;
    `confirm` = ttr + hold_s. `skew_s` is the largest clock offset among the agents involved: reported, not averaged
    away.
    """

    outcome: RecoveryOutcome = RecoveryOutcome.PENDING
    injected: Timestamp | None = None
    ttd: float | None = None
    ttm: float | None = None
    ttr: float | None = None
    confirm: float | None = None
    hold_s: float = 0.0
    skew_s: float | None = None
    objectives: dict[str, float] = Field(default={}, description="objective in seconds per name: ttd, ttm, ttr")
    met: dict[str, bool | None] = Field(default={}, description="None while it is open")
    unknown_s: float = Field(default=0.0, description="seconds in which a check was unknown")
    mitigated_by: Mitigation | None = Field(
        default=None, description="what `ttm` was counted to; None while it is open"
    )


class Evidence(Wire):
    """Why an anomaly is charged to a fault: each part of the score, 0..1, and the sentence."""

    fault_id: str | None
    score: float = Field(ge=0, le=1)
    time: float = Field(ge=0, le=1)
    distance: float = Field(ge=0, le=1)
    signature: float = Field(ge=0, le=1)
    sentence: str


class AttributedAnomaly(Wire):
    """One anomaly of an incident with its attribution. `evidence.fault_id` None: no fault explains it."""

    anomaly_id: str
    entity: Entity
    metric: str
    start: Timestamp
    end: Timestamp | None
    severity: Severity
    evidence: Evidence


class Incident(Event):
    """The anomalies that one cause explains. `id` is the incident's; later versions replace earlier ones.

    `cause` is a fault id, or `unattributed:<first anomaly>`: an answer, not a gap. `time` is that of the
    last change. `superseded` is true where a late event moved its anomalies to another incident.
    """

    cause: str
    experiment_id: str | None = None
    fault_id: str | None = None
    attributed: bool
    opened: Timestamp
    closed: Timestamp | None = None
    severity: Severity
    anomalies: tuple[AttributedAnomaly, ...] = ()
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    summary: str = ""
    superseded: bool = False
