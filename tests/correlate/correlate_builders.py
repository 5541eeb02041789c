"""A small cluster and its events, as the tests of the correlator need them.

Two cells of four nodes; each node has 4 GPUs and 2 ports. `n0`–`n2` run job `alpha`, `n3` and `n4` job `beta`
(which spans both cells), `n5` job `gamma`, `n6` and `n7` are idle. Two nodes share an NVLink domain.
"""

from __future__ import annotations

from typing import Any

from gpuchaos_stream.correlate.correlator import Correlator
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyKind, AnomalyPhase
from gpuchaos_stream.events.base import Severity, entity_node, stable_id
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin
from gpuchaos_stream.events.node import GpuPlace, NodeInfo, PortPlace
from gpuchaos_stream.topology.topology import Topology

T0 = 1_700_000_000.0
JOB_OF = {"n0": "alpha", "n1": "alpha", "n2": "alpha", "n3": "beta", "n4": "beta", "n5": "gamma"}


def node_info(number: int, *, time: float = T0 - 100.0, job: str | None = None) -> NodeInfo:
    node = f"n{number}"
    job = job if job is not None else JOB_OF.get(node)
    cell = number // 4
    return NodeInfo(
        id=stable_id("node", node, time, job),
        time=time,
        cluster="test",
        node=node,
        cell=f"c{cell}",
        rack=f"r{number // 2}",
        nvlink_domain=f"d{number // 2}",
        gpus=tuple(GpuPlace(index=str(index), job=job or None) for index in range(4)),
        ports=tuple(PortPlace(name=f"mlx5_{index}", rail=f"c{cell}-rail{index}") for index in range(2)),
        jobs=(job,) if job else (),
    )


def cluster() -> Topology:
    topology = Topology()
    for number in range(8):
        topology.apply(node_info(number))
    return topology


def correlator() -> Correlator:
    return Correlator(cluster())


def fault(
    phase: FaultPhase,
    at: float,
    *,
    fault_id: str = "f1",
    experiment: str = "e1",
    name: str = "process-stop",
    entity: str = "process/n0/100",
    params: dict[str, str | float | int | bool | None] | None = None,
) -> FaultEvent:
    return FaultEvent(
        id=stable_id(fault_id, phase, at),
        time=T0 + at,
        cluster="test",
        phase=phase,
        fault=name,
        node=entity_node(entity) or "?",
        entity=entity,
        fault_id=fault_id,
        experiment_id=experiment,
        params=params,
    )


def injected(at: float = 0.0, **options: Any) -> FaultEvent:
    return fault(FaultPhase.INJECTED, at, **options)


def undone(at: float, **options: str) -> FaultEvent:
    return fault(FaultPhase.UNDONE, at, **options)


def number(
    entity: str,
    metric: str,
    at: float,
    *,
    end: float | None = None,
    severity: Severity = Severity.WARNING,
    told: float | None = None,
) -> Anomaly:
    """An anomaly of a number, opened (or, with `end`, closed)."""
    anomaly_id = stable_id(entity, metric, at)
    phase = AnomalyPhase.OPENED if end is None else AnomalyPhase.CLOSED
    time = told if told is not None else (at + 2.0 if end is None else end + 5.0)
    return Anomaly(
        id=stable_id(anomaly_id, phase, time),
        time=T0 + time,
        cluster="test",
        anomaly_id=anomaly_id,
        phase=phase,
        kind=AnomalyKind.PEER,
        metric=metric,
        entity=entity,
        node=entity_node(entity),
        job=entity.removeprefix("job/") if entity.startswith("job/") else JOB_OF.get(entity_node(entity) or ""),
        start=T0 + at,
        end=None if end is None else T0 + end,
        severity=severity,
        score=8.0,
        effect=0.6,
    )


def fact(
    entity: str,
    name: str,
    at: float,
    *,
    severity: Severity = Severity.CRITICAL,
    origin: Origin = Origin.KERNEL,
    marked_by: str | None = None,
) -> Anomaly:
    """A hard fact from a log, as `detect/signals.py` makes it; with `marked_by`, one that names its fault."""
    event = stable_id("observed", entity, name, at, origin, marked_by)
    return Anomaly(
        id=stable_id(event, "opened"),
        time=T0 + at,
        cluster="test",
        anomaly_id=stable_id("signal", event),
        phase=AnomalyPhase.OPENED,
        kind=AnomalyKind.SIGNAL,
        metric=name,
        entity=entity,
        node=entity_node(entity),
        start=T0 + at,
        severity=severity,
        score=1.0 + severity.rank,
        origin=origin,
        injected_mark=marked_by is not None,
        fault_event_id=event,
        detail={"fault_id": marked_by} if marked_by else {},
    )
