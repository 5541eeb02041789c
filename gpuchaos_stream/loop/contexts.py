"""What the guard sees: the stages' answers, put into the typed context of the rules."""

from __future__ import annotations

from typing import Final

from gpuchaos_stream.events.base import Severity, entity_kind, entity_node
from gpuchaos_stream.events.experiment import ExperimentState
from gpuchaos_stream.events.observation import CheckState
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.guard.context import (
    BlastView,
    BreakerView,
    ClusterContext,
    ClusterView,
    ExperimentContext,
    ExperimentView,
    FreshnessView,
    LimitsView,
    SloView,
    SteadyView,
    UnattributedView,
)
from gpuchaos_stream.loop.stages import Stages

#: Telemetry older than this, in seconds, has stopped: frames come each second, and a tick is judged within two.
STALE_S: Final = 5.0
#: A node that has said nothing for so long, neither frames nor its place, is no longer counted, seconds.
GONE_S: Final = 3600.0
#: Seconds over which the breaker counts halts.
RATE_WINDOW_S: Final = 600.0


def cluster_context(stages: Stages, now: float) -> ClusterContext:
    """The context of rules of scope `cluster`."""
    reset_at = stages.breaker.reset_at
    nodes = stages.topology.nodes
    return ClusterContext(
        total=BlastView.of(stages.correlator.total(now)),
        breaker=BreakerView.of(
            stages.breaker.state,
            now,
            reset_at=reset_at,
            halts_10m=stages.halts.requested_since(max(now - RATE_WINDOW_S, reset_at)),
            running=len(stages.machine.open()),
        ),
        cluster=ClusterView(
            name=stages.cluster,
            nodes=sum(heard(stages, node, now) < GONE_S for node in nodes),
            gpus=stages.topology.gpu_count,
            silent_nodes=sum(_silent(stages, node, now) for node in nodes),
        ),
    )


def experiment_context(
    stages: Stages, cluster: ClusterContext, state: ExperimentState, plan: Plan, now: float
) -> ExperimentContext:
    """The context of rules of scope `experiment`, for one experiment."""
    nodes = sorted({node for entity in plan.targets.entities if (node := entity_node(entity)) is not None})
    budgets = [stages.slo.budget(plan.fault.name, objective) for objective in ("ttd", "ttm", "ttr")]
    remaining = [budget.remaining for budget in budgets if budget is not None]
    return ExperimentContext(
        **dict(cluster),
        experiment=ExperimentView.of(state, plan, now),
        blast=BlastView.of(state.blast_radius),
        limits=LimitsView.of(plan.limits),
        slo=SloView.of(state.recovery, now, budget_remaining=min(remaining, default=None)),
        # Those of recovery are not counted: what they ask for need not be there before the injection.
        steady=SteadyView.of(state.steady.get(check.name, CheckState.UNKNOWN) for check in plan.steady_state.checks),
        freshness=FreshnessView.of({node: _age(stages, node, now) for node in nodes}, STALE_S),
        unattributed=_unattributed(stages, state, plan, now),
    )


def _age(stages: Stages, node: str, now: float) -> float:
    """Seconds since a node's last frame. While the loop resumes, silence is the worker's own and says nothing."""
    return 0.0 if stages.resuming else stages.freshness.age(node, now)


def _silent(stages: Stages, node: str, now: float) -> bool:
    """Whether a node has fallen silent of late. One that was not heard of for long is not of the cluster any more."""
    return _age(stages, node, now) > STALE_S and heard(stages, node, now) < GONE_S


def heard(stages: Stages, node: str, now: float) -> float:
    """Seconds since a node's last word of any kind."""
    return min(stages.freshness.age(node, now), now - stages.topology.heard(node))


def _unattributed(stages: Stages, state: ExperimentState, plan: Plan, now: float) -> UnattributedView:
    since = state.recovery.injected if state.recovery.injected is not None else state.started
    critical = stages.correlator.critical_unattributed(now, since)
    target_jobs = target_jobs_of(stages, plan)
    on_target_jobs = [each for each in critical if target_jobs.intersection(each.jobs)]
    on_other_jobs = [each for each in critical if set(each.jobs) - target_jobs]
    open_now = [
        each
        for each in stages.correlator.unattributed(since)
        if (each.end is None or each.end > now) and each.severity.rank >= Severity.WARNING.rank
    ]
    return UnattributedView(
        anomalies=len(open_now),
        critical=len(critical),
        critical_on_target_jobs=len(on_target_jobs),
        critical_on_other_jobs=len(on_other_jobs),
        worst=f"{critical[0].entity} {critical[0].metric}" if critical else "",
    )


def target_jobs_of(stages: Stages, plan: Plan) -> frozenset[str]:
    """The jobs that work on the plan's targets now, as far as the topology knows."""
    jobs: set[str] = set()
    for entity in plan.targets.entities:
        jobs |= stages.topology.jobs(entity)
        if entity_kind(entity) == "job":
            jobs.add(entity.removeprefix("job/"))
    return frozenset(jobs)
