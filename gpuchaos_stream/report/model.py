"""The shape of a report: what is written as JSON, and what every other form is drawn from."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from gpuchaos_stream.events.base import Entity, Severity, Timestamp, Wire
from gpuchaos_stream.events.experiment import AnomalyLine, Halt, Status, Verdict
from gpuchaos_stream.events.incident import RecoveryRecord

#: In these no fault should be there any more.
AFTER: Final = frozenset({Status.RECOVERING, Status.FINISHED})

Scalar = str | float | int | bool | None


class InjectedLine(Wire):
    """One fault: what was done where, and what its agent measured at that layer (`evidence`, `undo_evidence`)."""

    fault_id: str
    fault: str
    node: str
    entity: Entity
    phase: str
    params: dict[str, Scalar] = {}
    injected: Timestamp | None = None
    acknowledged: Timestamp | None = None
    undone: Timestamp | None = None
    reason: str = ""
    evidence: dict[str, Scalar] = {}
    undo_evidence: dict[str, Scalar] = {}


class Claim(Wire):
    """One claim of the plan: whether this run certifies it, and why or why not."""

    claim: str
    certified: bool
    why: str


class Goal(Wire):
    """One recovery time against its objective, seconds since the first injection. `met` None: open, or none set."""

    name: Literal["ttd", "ttm", "ttr"]
    value: float | None
    objective: float | None
    met: bool | None
    note: str = ""


class Level(Wire):
    """Harm at one level. `now`: at `as_of`, None where only the whole is counted. `limit` None: not set."""

    level: str
    hurt: float
    now: float | None = None
    limit: float | None = None
    kept: bool = True


class Reached(Wire):
    """Something that was no target and broke. Times are seconds since the first injection."""

    entity: Entity
    metrics: tuple[str, ...] = ()
    after_s: float | None = None
    anomalies: int = 0
    severity: Severity | None = None
    sentence: str = ""


class Branch(Wire):
    """All that broke by one way from one target: `through` a job, rail, domain, … named `shared`.

    `through` is `unknown` where the topology knows nothing that ties the two together: the tie is one that nobody
    has written down. `total` counts all, `reached` names at most fifty, the first ones.
    """

    target: Entity
    through: str
    shared: str
    words: str
    total: int = Field(ge=1)
    reached: tuple[Reached, ...]


class Advice(Wire):
    """One thing to change, and the fact of this run that says so."""

    change: str
    why: str


class Moment(Wire):
    """Something that happened. `after_s`: seconds since the first injection, or since the start while there is none."""

    after_s: float
    kind: str
    text: str


class Bar(Wire):
    """Something that lasted, for the picture. `end_s` None: it had not ended when the report was made."""

    lane: str
    kind: Literal["fault", "charged", "unexplained", "halt"]
    start_s: float
    end_s: float | None


class Curve(Wire):
    """What one check measured over time, from one source (a cell, or empty), and the bound that it must keep.

    `points` are (seconds since the first injection, value), None where it could not be known; a probe that asks outside
    gives 1 in tolerance and 0 out of it. `bound` is absolute; None where there was no baseline to go by.
    """

    check: str
    source: str
    op: str
    bound: float | None
    points: tuple[tuple[float, float | None], ...]


class Report(Wire):
    """All that a report of one experiment says. `as_of` is the event time of the newest state that it is made of."""

    format: Literal["gpuchaos-report/1"] = "gpuchaos-report/1"
    experiment_id: str
    cluster: str
    name: str
    owner: str
    description: str = ""
    fault: str
    layer: str = ""
    status: Status
    verdict: Verdict | None
    reason: str
    started: Timestamp
    finished: Timestamp | None
    as_of: Timestamp
    origin: Timestamp = Field(description="what `after_s` is counted from: the first injection, else the start")
    injected: tuple[InjectedLine, ...] = ()
    claims: tuple[Claim, ...] = ()
    never: tuple[str, ...] = Field(default=(), description="what people expect of this fault, and no run of it shows")
    goals: tuple[Goal, ...] = ()
    recovery: RecoveryRecord = RecoveryRecord()
    levels: tuple[Level, ...] = ()
    unknown_nodes: int = 0
    attributed: int = 0
    unattributed: int = 0
    charged: tuple[AnomalyLine, ...] = ()
    unexplained: tuple[AnomalyLine, ...] = ()
    branches: tuple[Branch, ...] = ()
    advice: tuple[Advice, ...] = ()
    halts: tuple[Halt, ...] = ()
    undo_confirmed: bool
    undo_open: tuple[str, ...] = Field(default=(), description="faults that may still be there, in words")
    steady: dict[str, str] = {}
    timeline: tuple[Moment, ...] = ()
    bars: tuple[Bar, ...] = ()
    curves: tuple[Curve, ...] = Field(default=(), description="of a recording alone, where the samples are at hand")
    end_s: float = Field(description="where the picture ends, seconds since `origin`")
