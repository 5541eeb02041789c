"""What a settled loop shows of itself: log lines, metrics, and the trace of a finished experiment."""

from __future__ import annotations

from gpuchaos_stream.events.experiment import ExperimentState, Halt, Verdict
from gpuchaos_stream.guard.rules import Action
from gpuchaos_stream.loop import gauges
from gpuchaos_stream.loop.cluster import ClusterLoop, Settled
from gpuchaos_stream.observe import logs, metrics, tracing
from gpuchaos_stream.recovery.slo import OBJECTIVES

log = logs.logger(__name__)


def report(loop: ClusterLoop, settled: Settled) -> None:
    """Logs and counts what `settled` says; shows the loop's gauges."""
    cluster = loop.cluster
    for decision in settled.decisions:
        if decision.action in {Action.HALT, Action.HALT_ALL}:
            metrics.HALTS.labels(cluster, decision.cause.partition(":")[0]).inc()
        log.warning(
            "decided",
            action=decision.action.value,
            cause=decision.cause,
            reason=decision.reason,
            experiment_id=decision.experiment_id,
            cluster=cluster,
            resolved=decision.resolved,
            unsafe=decision.unsafe,
        )
    for state in settled.finished:
        _finished(loop, state)
    gauges.show(loop, at_once=bool(settled.decisions or settled.finished))


def _finished(loop: ClusterLoop, state: ExperimentState) -> None:
    verdict = state.verdict.value if state.verdict else "none"
    metrics.VERDICTS.labels(state.cluster, verdict).inc()
    fault = state.faults[0].fault if state.faults else "none"
    for phase in ("ttd", "ttm", "ttr"):
        value = getattr(state.recovery, phase)
        if value is not None:
            metrics.RECOVERY.labels(fault, phase).observe(value, exemplar=_exemplar(state))
    _count_objectives(loop, state)
    log.info("finished", experiment_id=state.id, verdict=verdict, reason=state.reason, cluster=state.cluster)
    _trace(state, fault)


def _exemplar(state: ExperimentState) -> dict[str, str] | None:
    """The trace of the experiment, for whoever looks at a single slow recovery."""
    parts = (state.traceparent or "").split("-")
    return {"trace_id": parts[1]} if len(parts) == 4 and len(parts[1]) == 32 else None


def _count_objectives(loop: ClusterLoop, state: ExperimentState) -> None:
    """Counts the runs that `SloBook` counts: one that tested nothing says nothing about an objective."""
    if state.verdict in {None, Verdict.VOID}:
        return
    for objective in OBJECTIVES:
        met = state.recovery.met.get(objective)
        if met is not None:
            labels = (loop.cluster, gauges.fault_of(loop, state.id), gauges.target_kind(loop, state.id), objective)
            metrics.OBJECTIVE_RUNS.labels(*labels).inc()
            metrics.OBJECTIVE_MISSES.labels(*labels).inc(not met)


def _trace(state: ExperimentState, fault: str) -> None:
    """One trace from acceptance to confirmed recovery, under the span of whoever started the experiment."""
    shared = {"experiment_id": state.id, "gpuchaos.fault": fault, "gpuchaos.cluster": state.cluster}
    end = state.finished or state.time
    verdict = state.verdict.value if state.verdict else None
    tracing.past(
        f"experiment {state.name}",
        state.started,
        end,
        parent=state.traceparent,
        **{**shared, "gpuchaos.verdict": verdict},
    )
    for each in state.faults:
        if each.injected is not None:
            named = {**shared, "fault_id": each.fault_id, "node": each.node}
            tracing.past(f"fault {each.fault}", each.injected, each.undone or end, parent=state.traceparent, **named)
    for halt in state.halts:
        _trace_halt(halt, end, state.traceparent, shared)
    record = state.recovery
    if record.injected is not None and record.confirm is not None:
        begin, over = record.injected, record.injected + record.confirm
        tracing.past("recovery", begin, over, parent=state.traceparent, **{**shared, "gpuchaos.ttr": record.ttr})


def _trace_halt(halt: Halt, end: float, parent: str | None, shared: dict[str, str]) -> None:
    over = halt.confirmed or halt.undone or end
    tracing.past(
        f"halt {halt.cause}", halt.requested, over, parent=parent, **{**shared, "gpuchaos.halt": halt.state.value}
    )
