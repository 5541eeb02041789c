"""Hard facts as anomalies: an observed fault event is one, without any statistics."""

from __future__ import annotations

from typing import Final

from gpuchaos_stream.events.anomaly import Anomaly, AnomalyKind, AnomalyPhase
from gpuchaos_stream.events.base import Severity, stable_id
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin

#: A fact has no end of its own. It counts as lasting for this long after its last report, seconds; who reads
#: signals treats one as over at `start + SIGNAL_TTL_S` unless a newer one of the same entity and metric came.
SIGNAL_TTL_S: Final = 60.0

#: The most that a record may claim which a process wrote: anybody on the node can write to `/dev/kmsg`.
SPOOF_CAP: Final = Severity.WARNING


def signal_of(fault: FaultEvent, *, cell: str | None = None, job: str | None = None) -> Anomaly | None:
    """The anomaly that an observed fault is; None for every other phase, and for mere information.

    Information is that something is back, or that a worker ended because it was asked to: nothing is wrong with that.
    It is opened and never closed (see `SIGNAL_TTL_S`); its ids are made of the fault event's, so that a
    repeat makes the same. A record written by a process that does not name itself an injection is kept, with
    severity at most warning and `detail["spoof"]` true: it is not hardware speaking. `cell` and `job` are
    the caller's knowledge of where the entity sits.
    """
    if fault.phase is not FaultPhase.OBSERVED or fault.severity is Severity.INFO:
        return None
    spoof = fault.origin is Origin.PROCESS and not fault.injected_mark
    severity = fault.severity
    if spoof and severity.rank > SPOOF_CAP.rank:
        severity = SPOOF_CAP
    time = fault.event_time
    anomaly_id = stable_id("signal", fault.entity, fault.fault, fault.id)
    detail: dict[str, str | float | int | bool | None] = dict(fault.evidence)
    if fault.reason:
        detail["reason"] = fault.reason
    if fault.fault_id is not None:
        detail.setdefault("fault_id", fault.fault_id)
    if spoof:
        detail["spoof"] = True
        detail["claimed_severity"] = fault.severity.value
    return Anomaly(
        id=stable_id(anomaly_id, AnomalyPhase.OPENED.value),
        time=time,
        cluster=fault.cluster,
        anomaly_id=anomaly_id,
        phase=AnomalyPhase.OPENED,
        kind=AnomalyKind.SIGNAL,
        metric=fault.fault,
        entity=fault.entity,
        node=fault.node,
        cell=cell,
        job=job,
        start=time,
        severity=severity,
        score=1.0 + severity.rank,
        origin=fault.origin,
        injected_mark=fault.injected_mark,
        fault_event_id=fault.id,
        detail=detail,
    )
