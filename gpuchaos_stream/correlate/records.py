"""What the correlator keeps of each event: facts that merge the same in any order and however often they come.

Everything else (which fault explains what, incidents, blast radius) is worked out of these, so that a replay, a
restart or another order of arrival cannot lead to another conclusion.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from gpuchaos_stream.correlate import signatures
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyKind, AnomalyPhase
from gpuchaos_stream.events.base import Severity, entity_kind
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin

#: Phases that say something of a fault that is or was there. A refused command is no fault.
_LIFE: Final = frozenset(
    {
        FaultPhase.INJECTED,
        FaultPhase.NOT_EFFECTIVE,
        FaultPhase.RENEWED,
        FaultPhase.ACKNOWLEDGED,
        FaultPhase.UNDONE,
        FaultPhase.UNDO_FAILED,
    }
)

#: A fact of the log is a moment. It counts as lasting this long, unless it is critical: a lost GPU stays lost.
FACT_LASTS_S: Final = 60.0
#: How finely the time of the last word is kept, rounded up, so that updates rewrite the state less often.
_LAST_GRAIN_S: Final = 10.0


class FaultRecord(msgspec.Struct):
    """One injected fault. Times are event time; `injected` is None until the injection itself has been read.

    `form` is what its parameters chose, empty while they are not known (`signatures.form_of`).
    """

    fault_id: str
    experiment_id: str
    fault: str
    entity: str
    node: str
    cluster: str
    job: str | None
    order: tuple[bool, float, str]
    last: float
    injected: float | None = None
    undone: float | None = None
    void: bool = False
    undo_failed: bool = False
    form: str = ""

    @property
    def active(self) -> bool:
        """Whether it can explain anything at all."""
        return self.injected is not None and not self.void


def fault_record(event: FaultEvent, known: FaultRecord | None) -> FaultRecord | None:
    """`known` with `event` in it; None where the event says nothing of an injected fault, or nothing new."""
    if event.phase not in _LIFE or event.fault_id is None or event.experiment_id is None:
        return None
    time = event.event_time
    order = (event.phase is not FaultPhase.INJECTED, time, event.id)
    job = event.evidence.get("job")
    record = FaultRecord(
        fault_id=event.fault_id,
        experiment_id=event.experiment_id,
        fault=event.fault,
        entity=event.entity,
        node=event.node,
        cluster=event.cluster,
        job=str(job) if job else None,
        order=order,
        last=_coarse(time),
        injected=time if event.phase is FaultPhase.INJECTED else None,
        undone=time if event.phase is FaultPhase.UNDONE else None,
        void=event.phase is FaultPhase.NOT_EFFECTIVE,
        undo_failed=event.phase is FaultPhase.UNDO_FAILED,
        form=signatures.form_of(event.fault, event.params),
    )
    if known is None:
        return record
    first = record if order < known.order else known
    merged = msgspec.structs.replace(
        first,
        last=max(record.last, known.last),
        injected=_first(record.injected, known.injected),
        undone=_first(record.undone, known.undone),
        void=record.void or known.void,
        undo_failed=record.undo_failed or known.undo_failed,
        form=max(record.form, known.form),
    )
    return None if merged == known else merged


class ExperimentRecord(msgspec.Struct):
    """What the correlator must know of an experiment: whom it declared as targets, and whether it is over."""

    experiment_id: str
    targets: tuple[str, ...]
    ended: float | None = None


class AnomalyRecord(msgspec.Struct):
    """One anomaly through all its phases. `says` is the fault that its mark names, `fact` the observed fault it is.

    `first` is the time and id of its first version: when it was detected. `closed` is the end that a closing
    version names, `hint` the one that an open version expects, `lapsed` the last word of one that nobody closed.
    """

    anomaly_id: str
    cluster: str
    kind: AnomalyKind
    metric: str
    entity: str
    node: str | None
    job: str | None
    start: float
    first: tuple[float, str]
    last: float
    severity: Severity
    origin: Origin | None
    marked: bool
    says: str | None
    fact: str | None
    closed: float | None = None
    hint: float | None = None
    lapsed: float | None = None

    @property
    def detected(self) -> float:
        """When it was first told, event time."""
        return self.first[0]

    @property
    def end(self) -> float | None:
        """When it ended, None while it lasts."""
        if self.closed is not None:
            return self.closed
        if self.lapsed is not None and self.lapsed >= self.last:
            return self.lapsed
        return self.hint

    @property
    def key(self) -> tuple[float, str]:
        """The order in which anomalies are looked at: a total one, by start."""
        return (self.start, self.anomaly_id)

    @property
    def name(self) -> str:
        """Metric or fault name without the kind in front of it (`gpu.power_watts` → `power_watts`)."""
        return self.metric.rsplit(".", 1)[-1]

    @property
    def entity_kind(self) -> str:
        """Kind of its entity."""
        return entity_kind(self.entity)

    @property
    def spoof(self) -> bool:
        """A record in the hardware's words that a process wrote and that nobody here marked."""
        return self.kind is AnomalyKind.SIGNAL and self.origin is Origin.PROCESS and not self.marked

    @property
    def weight(self) -> Severity:
        """Severity that counts: what a process wrote is not hardware speaking, and no more than a warning."""
        if self.spoof and self.severity.rank > Severity.WARNING.rank:
            return Severity.WARNING
        return self.severity

    @property
    def until(self) -> float:
        """End of the harm, infinite while it lasts."""
        if self.end is not None:
            return self.end
        if self.fact is not None and self.weight is not Severity.CRITICAL:
            return self.start + FACT_LASTS_S
        return math.inf

    def open_at(self, now: float) -> bool:
        """Whether the harm lasts at `now`."""
        return self.start <= now < self.until


def anomaly_record(event: Anomaly, known: AnomalyRecord | None) -> AnomalyRecord | None:
    """`known` with `event` in it, None where that is nothing new."""
    says = event.detail.get("fault_id") if event.injected_mark else None
    closed = event.phase is AnomalyPhase.CLOSED
    record = AnomalyRecord(
        anomaly_id=event.anomaly_id,
        cluster=event.cluster,
        kind=event.kind,
        metric=event.metric,
        entity=event.entity,
        node=event.node,
        job=event.job,
        start=event.start,
        first=(event.time, event.id),
        last=_coarse(event.time),
        severity=event.severity,
        origin=event.origin,
        marked=event.injected_mark,
        says=str(says) if says else None,
        fact=event.fault_event_id,
        closed=(event.end if event.end is not None else event.time) if closed else None,
        hint=None if closed else event.end,
    )
    if known is None:
        return record
    merged = msgspec.structs.replace(
        min(record, known, key=lambda each: each.first),
        start=min(record.start, known.start),
        last=max(record.last, known.last),
        severity=max(record.severity, known.severity, key=lambda severity: severity.rank),
        marked=record.marked or known.marked,
        says=min(filter(None, (record.says, known.says)), default=None),
        fact=min(filter(None, (record.fact, known.fact)), default=None),
        lapsed=known.lapsed,
        closed=max((end for end in (record.closed, known.closed) if end is not None), default=None),
        hint=max((end for end in (record.hint, known.hint) if end is not None), default=None),
    )
    return None if merged == known else merged


def _first(one: float | None, other: float | None) -> float | None:
    return min((value for value in (one, other) if value is not None), default=None)


def _coarse(time: float) -> float:
    return math.ceil(time / _LAST_GRAIN_S) * _LAST_GRAIN_S
