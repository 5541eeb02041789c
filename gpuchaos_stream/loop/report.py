"""What a settled loop shows of itself: log lines, metrics, and spans (`traces.py`)."""

from __future__ import annotations

from collections.abc import Callable

from gpuchaos_stream.events.envelope import trace_id_of
from gpuchaos_stream.events.experiment import ExperimentState, Verdict
from gpuchaos_stream.guard.decision import Decision
from gpuchaos_stream.guard.rules import Action
from gpuchaos_stream.loop import gauges, traces
from gpuchaos_stream.loop.cluster import ClusterLoop, Settled
from gpuchaos_stream.observe import logs, metrics
from gpuchaos_stream.recovery.slo import OBJECTIVES

log = logs.logger(__name__)


def report(loop: ClusterLoop, settled: Settled, clock: Callable[[], float] | None = None) -> None:
    """Logs, counts and traces what `settled` says; shows the loop's gauges.

    `clock` is the broker's, epoch seconds: the time at which it was concluded; without one, that of the newest record.
    """
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
        _trace(loop, decision, clock)
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
    traces.experiment(state, loop.correlator.attributed(state.id))


def _exemplar(state: ExperimentState) -> dict[str, str] | None:
    """The trace of the experiment, for whoever looks at a single slow recovery."""
    trace = trace_id_of(state.traceparent)
    return {"trace_id": trace} if trace else None


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


def again(loop: ClusterLoop, now: float) -> None:
    """Traces the experiments that ended just before `now`, for a worker that was killed before it had exported them."""
    for state in loop.machine.states():
        if state.finished is not None and state.finished >= now - traces.AGAIN_S:
            traces.experiment(state, loop.correlator.attributed(state.id))


def _trace(loop: ClusterLoop, decision: Decision, clock: Callable[[], float] | None) -> None:
    now = loop.now if clock is None else max(loop.now, clock())
    state = loop.machine.state(decision.experiment_id) if decision.experiment_id else None
    traces.decision(state, decision, loop.cluster, read=loop.now, now=now)
    if decision.experiment_id is None:
        # One that concerns the whole cluster is told in the trace of each experiment that it halts as well.
        for each in loop.machine.states():
            if any(halt.cause == decision.cause for halt in each.halts):
                traces.decision(each, decision, loop.cluster, read=loop.now, now=now)
