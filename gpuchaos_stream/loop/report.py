"""What a settled loop shows of itself: log lines, metrics, and the trace of a finished experiment."""

from __future__ import annotations

from collections import Counter

from gpuchaos_stream.events.experiment import ExperimentState, Halt, Status
from gpuchaos_stream.events.incident import LEVELS
from gpuchaos_stream.guard.rules import Action
from gpuchaos_stream.loop.cluster import ClusterLoop, Settled
from gpuchaos_stream.observe import logs, metrics, tracing

log = logs.logger(__name__)


def report(loop: ClusterLoop, settled: Settled) -> None:
    """Logs and counts what `settled` says; reads the loop's gauges."""
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
        _finished(state)
    if settled.events or settled.decisions:
        _gauges(loop)


def _gauges(loop: ClusterLoop) -> None:
    cluster = loop.cluster
    states = loop.machine.states()
    counts = Counter(state.status for state in states)
    for status in Status:
        metrics.EXPERIMENTS.labels(cluster, status.value).set(counts[status])
    total = loop.correlator.total(loop.now)
    for level in LEVELS:
        metrics.BLAST_RADIUS.labels(cluster, level).set(getattr(total, level))
    metrics.BREAKER.labels(cluster).set(loop.breaker.state.tripped)
    open_halts = Counter(halt.state for state in states for halt in state.halts if halt.confirmed is None)
    for halt_state in {halt.state for state in states for halt in state.halts}:
        metrics.HALTS_OPEN.labels(cluster, halt_state.value).set(open_halts[halt_state])
    for rule, errors in loop.guard.errors.items():
        metrics.RULE_ERRORS.labels(cluster, rule).set(errors)
    for budget in loop.slo.budgets():
        metrics.BUDGET.labels(budget.fault, budget.objective).set(budget.remaining)


def _finished(state: ExperimentState) -> None:
    verdict = state.verdict.value if state.verdict else "none"
    metrics.VERDICTS.labels(state.cluster, verdict).inc()
    fault = state.faults[0].fault if state.faults else "none"
    for phase in ("ttd", "ttm", "ttr"):
        value = getattr(state.recovery, phase)
        if value is not None:
            metrics.RECOVERY.labels(fault, phase).observe(value)
    log.info("finished", experiment_id=state.id, verdict=verdict, reason=state.reason, cluster=state.cluster)
    _trace(state, fault)


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
