"""The state of an experiment, as everybody outside the control stage sees it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from gpuchaos_stream.events.base import Entity, Event, Severity, Timestamp, Wire
from gpuchaos_stream.events.incident import BlastRadius, RecoveryRecord


class Status(StrEnum):
    """Where an experiment is in its life; the transitions are in `experiments/machine.py`."""

    PENDING = "pending"  # accepted, steady state not yet seen
    INJECTING = "injecting"  # inject commands sent, not all answered
    ACTIVE = "active"  # the faults are there, leases renewed
    UNDOING = "undoing"  # the planned end
    HALTING = "halting"  # a limit breached, a rule or a person said stop
    RECOVERING = "recovering"  # faults gone, steady state not yet confirmed
    FINISHED = "finished"


class Verdict(StrEnum):
    """What an experiment showed."""

    PASSED = "passed"  # recovered within every objective and limit
    FAILED = "failed"  # recovered too late or not at all
    HALTED = "halted"  # stopped by the guard
    STOPPED = "stopped"  # stopped by a person
    VOID = "void"  # nothing was tested: refused, not effective, or no steady state to begin with


class HaltState(StrEnum):
    """requested → acknowledged by each agent → undone → confirmed by telemetry, or escalated."""

    REQUESTED = "requested"
    ACKNOWLEDGED = "acknowledged"
    UNDONE = "undone"
    CONFIRMED = "confirmed"
    ESCALATED = "escalated"


class Halt(Wire):
    """One halt: one per experiment and cause. Times are event time; None until it happened."""

    id: str
    experiment_id: str
    cause: str
    reason: str
    state: HaltState
    dry_run: bool = False
    requested: Timestamp
    acknowledged: Timestamp | None = None
    undone: Timestamp | None = None
    confirmed: Timestamp | None = None
    escalated: Timestamp | None = None
    waiting_for: tuple[str, ...] = Field(default=(), description="nodes that have not answered or undone")
    also: tuple[str, ...] = Field(default=(), description="causes that fired after this halt had begun")


class InjectedFault(Wire):
    """One fault of an experiment on one target."""

    fault_id: str
    fault: str
    node: str
    entity: Entity
    phase: str
    injected: Timestamp | None = None
    acknowledged: Timestamp | None = None
    undone: Timestamp | None = None
    lease_expires: Timestamp | None = None
    reason: str = ""


#: The most lines of each kind that a state carries, for it travels with every change.
MOST_LINES: Final = 12


class AnomalyLine(Wire):
    """Anomalies of one metric on one kind of entity, as one line of an experiment's report.

    `after_s`: when the first of them began, in seconds of event time since the first injection, or since the start
    while there is none; negative where it was there before. `entity`, `score` (0..1) and `sentence` are the first
    one's: how well the cause that the sentence names explains it. `entities`: on how many of that kind.
    """

    metric: str
    entity: Entity
    after_s: float
    count: int = Field(ge=1)
    entities: int = Field(ge=1)
    severity: Severity = Field(description="of the worst of them")
    score: float = Field(ge=0, le=1)
    sentence: str


class ExperimentState(Event):
    """The whole state of one experiment; `id` is the experiment's, `time` that of the last change."""

    type: Literal["experiment"] = "experiment"
    name: str
    owner: str
    status: Status
    verdict: Verdict | None = None
    reason: str = ""
    plan: dict[str, object]
    started: Timestamp
    ends: Timestamp | None = None
    finished: Timestamp | None = None
    faults: tuple[InjectedFault, ...] = ()
    blast_radius: BlastRadius = BlastRadius()
    limits: dict[str, float] = {}
    recovery: RecoveryRecord = RecoveryRecord()
    halts: tuple[Halt, ...] = ()
    attributed: int = Field(default=0, description="anomalies charged to it")
    unattributed: int = Field(default=0, description="anomalies during it that no fault explains")
    charged: tuple[AnomalyLine, ...] = Field(
        default=(), description="what was charged to it: of more than 12 lines the worst, then the first, by time"
    )
    unexplained: tuple[AnomalyLine, ...] = Field(default=(), description="what is not, likewise")
    incidents: tuple[str, ...] = ()
    steady: dict[str, str] = Field(default={}, description="latest state per steady-state check")
    traceparent: str | None = None


class BreakerState(Event):
    """The breaker of a cluster; `id` is `breaker`. Latched: it opens by itself and closes only by a person."""

    type: Literal["breaker"] = "breaker"
    tripped: bool = False
    since: Timestamp | None = None
    cause: str = ""
    reset_by: str = ""
    reset_reason: str = ""
    frozen_until: Timestamp | None = Field(default=None, description="a `freeze` of new injections, not latched")


ExperimentRecord = Annotated[ExperimentState | BreakerState, Field(discriminator="type")]
