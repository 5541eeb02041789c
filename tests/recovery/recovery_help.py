"""Shared by the recovery tests: a plan with one job check, its samples, its faults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.observation import CellSummary, CheckState, NodeSeen, ProbeResult
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.recovery.recovery import Recovery

EXPERIMENT = "hang-1"
#: When the fault comes, epoch seconds; samples are at whole seconds.
T0 = 1000.0
PACE = {"of": "job/llama", "metric": "steps_rate", "op": ">=", "value": 0.5}


def plan(*checks: dict[str, Any], hold: float = 3, ttr: float = 30) -> Plan:
    return Plan.model_validate(
        {
            "api_version": "gpuchaos/v1",
            "kind": "Experiment",
            "name": "hang",
            "description": "a rank hangs",
            "owner": "sre",
            "fault": {"name": "process-stop", "certifies": ["hang-detection"]},
            "targets": {"entities": ["process/n1/10"]},
            "duration": 10,
            "lease": 6,
            "undo": {"method": "automatic"},
            "limits": {"gpus": 8, "nodes": 1, "jobs": 0, "gpu_seconds": 100},
            "steady_state": {"hold": hold, "checks": list(checks) or [{"name": "pace", "telemetry": PACE}]},
            "objectives": {"ttd": 5, "ttm": 15, "ttr": ttr},
        }
    )


def begun(*checks: dict[str, Any], **fields: Any) -> Recovery:
    recovery = Recovery()
    recovery.begin(EXPERIMENT, plan(*checks, **fields), T0 - 60)
    return recovery


def summary(time: float, rate: float | None, *, cell: str = "c1", **fields: Any) -> CellSummary:
    """A summary of `cell` that knows the job at `rate` (no job at all where `rate` is negative)."""
    jobs = {} if rate is not None and rate < 0 else {"llama": {"steps_rate": rate}}
    body: dict[str, Any] = {"nodes": {}, "order": (), "columns": {}, "jobs": jobs} | fields
    return CellSummary(id=stable_id(cell, time, rate), time=time, cluster="c", cell=cell, **body)


def node_summary(time: float, value: float | None, *, last: float | None = None, **seen: Any) -> CellSummary:
    """A summary that knows node n1 with one value."""
    return summary(
        time,
        -1,
        nodes={"n1": NodeSeen(last=time if last is None else last, **seen)},
        order=("n1",),
        columns={"gpu.utilization_ratio.mean": (value,)},
    )


def fault(phase: FaultPhase, time: float, *, fault_id: str = "f1", **fields: Any) -> FaultEvent:
    return FaultEvent(
        id=stable_id(phase, fault_id, time),
        time=time,
        cluster="c",
        phase=phase,
        fault="process-stop",
        node="n1",
        entity="process/n1/10",
        fault_id=fault_id,
        experiment_id=EXPERIMENT,
        **fields,
    )


def probe(time: float, state: CheckState, check: str = "web") -> ProbeResult:
    return ProbeResult(
        id=stable_id(check, time), time=time, cluster="c", experiment_id=EXPERIMENT, check=check, state=state
    )


def injected_and_undone(recovery: Recovery, undone: float | None = 10.0) -> None:
    recovery.feed(fault(FaultPhase.INJECTED, T0))
    if undone is not None:
        recovery.feed(fault(FaultPhase.UNDONE, T0 + undone))


def feed_rates(recovery: Recovery, rates: Iterable[float | None], start: float = T0 - 10) -> None:
    """One sample a second from `start` on; "None" is a sample whose value is not known."""
    for i, rate in enumerate(rates):
        recovery.feed(summary(start + i, rate))
