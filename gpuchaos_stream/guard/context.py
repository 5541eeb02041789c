"""What a rule may look at: every name that an expression can use, with its unit and what stands for "unknown".

A rule must never err, or stay silent, because a number was missing. So None, NaN and infinity become a
documented value here, before any rule sees them, and that value is always the unsafe side: harm that is not
known is worse than any limit, telemetry that was never seen is infinitely old.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpuchaos_stream.events.experiment import BreakerState, ExperimentState, Status
from gpuchaos_stream.events.incident import BlastRadius, RecoveryOutcome, RecoveryRecord
from gpuchaos_stream.events.observation import CheckState
from gpuchaos_stream.experiments.plan import Limits, Plan

#: Stands for a limit that a plan does not set. Greater than any count; exact as a float.
NO_LIMIT: Final = 2**53
#: Stands for harm that is not known: above every limit that is set, not above one that is not.
WORST: Final = 2**53 - 1
#: Seconds that stand for "never seen".
NEVER_S: Final = 1e9
#: Stands for a recovery time that is still open, and for a time before injection.
OPEN_S: Final = -1.0


def _known(fallback: float) -> BeforeValidator:
    def convert(value: object) -> object:
        missing = value is None or (isinstance(value, float) and not math.isfinite(value))
        return fallback if missing else value

    return BeforeValidator(convert)


Harm = Annotated[int, _known(WORST)]
HarmSeconds = Annotated[float, _known(float(WORST))]
Limit = Annotated[int, _known(NO_LIMIT)]
LimitSeconds = Annotated[float, _known(float(NO_LIMIT))]
Age = Annotated[float, _known(NEVER_S)]
Maybe = Annotated[float, _known(OPEN_S)]
Budget = Annotated[float, _known(1.0)]


class View(BaseModel):
    """Base of the views: a wrong name in the wiring is an error at once, not a rule that never fires."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ExperimentView(View):
    """The experiment that the rule is evaluated for."""

    id: str = Field(description="its id")
    name: str = Field(default="", description="its plan's name")
    owner: str = Field(default="", description="who answers for it")
    status: Status = Field(default=Status.PENDING, description="pending, injecting, active, undoing, …")
    fault: str = Field(default="", description="the strategy that it injects")
    labels: dict[str, str] = Field(default={}, description="its plan's labels; ask has() before reading one")
    targets: tuple[str, ...] = Field(default=(), description="declared target entities")
    age_s: float = Field(default=0.0, description="seconds since it was accepted")
    injected_s: Maybe = Field(default=OPEN_S, description="seconds since its first injection, -1 before it")
    duration_s: float = Field(default=0.0, description="planned seconds of fault")

    @classmethod
    def of(cls, state: ExperimentState, plan: Plan, now: float) -> Self:
        """The view of `state` at `now` (event time, seconds)."""
        injected = state.recovery.injected
        return cls(
            id=state.id,
            name=state.name,
            owner=state.owner,
            status=state.status,
            fault=plan.fault.name,
            labels=plan.labels,
            targets=plan.targets.entities,
            age_s=max(0.0, now - state.started),
            injected_s=OPEN_S if injected is None else max(0.0, now - injected),
            duration_s=plan.duration,
        )


class BlastView(View):
    """Harm beyond the declared targets, per level: entities ever hurt, and those hurt now (`…_now`)."""

    gpus: Harm = Field(default=0, description="GPUs hurt")
    nodes: Harm = Field(default=0, description="nodes hurt")
    cells: Harm = Field(default=0, description="cells hurt")
    racks: Harm = Field(default=0, description="racks hurt")
    rails: Harm = Field(default=0, description="rails (leaf switches) hurt")
    nvlink_domains: Harm = Field(default=0, description="NVLink domains hurt")
    jobs: Harm = Field(default=0, description="jobs hurt")
    gpu_seconds: HarmSeconds = Field(default=0.0, description="GPU-seconds lost")
    gpus_now: Harm = Field(default=0, description="GPUs hurt at this moment")
    nodes_now: Harm = Field(default=0, description="nodes hurt at this moment")
    jobs_now: Harm = Field(default=0, description="jobs hurt at this moment")
    unknown_nodes: Harm = Field(default=0, description="nodes of targets or hurt ones that are silent")

    @classmethod
    def of(cls, blast: BlastRadius) -> Self:
        """The view of a blast radius."""
        return cls(**blast.model_dump(exclude={"entities"}))


class LimitsView(View):
    """The plan's limits on harm beyond its targets. A level without a limit reads 2^53, above any count."""

    gpus: Limit = Field(default=NO_LIMIT, description="most GPUs")
    nodes: Limit = Field(default=NO_LIMIT, description="most nodes")
    cells: Limit = Field(default=NO_LIMIT, description="most cells")
    racks: Limit = Field(default=NO_LIMIT, description="most racks")
    rails: Limit = Field(default=NO_LIMIT, description="most rails (leaf switches)")
    nvlink_domains: Limit = Field(default=NO_LIMIT, description="most NVLink domains")
    jobs: Limit = Field(default=NO_LIMIT, description="most jobs")
    gpu_seconds: LimitSeconds = Field(default=float(NO_LIMIT), description="most GPU-seconds")

    @classmethod
    def of(cls, limits: Limits) -> Self:
        """The view of a plan's limits."""
        return cls(**limits.model_dump())


class SloView(View):
    """Recovery against its objectives. Seconds since the first injection; -1 while open, and before it."""

    elapsed_s: Maybe = Field(default=OPEN_S, description="seconds since the first injection")
    ttd: Maybe = Field(default=OPEN_S, description="time to the first attributed detection")
    ttm: Maybe = Field(default=OPEN_S, description="time to the fault's removal, or the work's move off it")
    ttr: Maybe = Field(default=OPEN_S, description="time to recovery")
    ttd_objective: LimitSeconds = Field(default=float(NO_LIMIT), description="objective for ttd")
    ttm_objective: LimitSeconds = Field(default=float(NO_LIMIT), description="objective for ttm")
    ttr_objective: LimitSeconds = Field(default=float(NO_LIMIT), description="objective for ttr")
    ttd_missed: bool = Field(default=False, description="ttd is over its objective, or still open past it")
    ttm_missed: bool = Field(default=False, description="ttm is over its objective, or still open past it")
    ttr_missed: bool = Field(default=False, description="ttr is over its objective, or still open past it")
    missed: bool = Field(default=False, description="any of the three is missed")
    recovered: bool = Field(default=False, description="recovery is confirmed")
    budget_remaining: Budget = Field(default=1.0, description="smallest share of error budget left, 1 before any run")

    @classmethod
    def of(cls, record: RecoveryRecord, now: float, *, budget_remaining: float | None = None) -> Self:
        """The view of a recovery record at `now`. An objective still open past its time is missed already."""
        elapsed = OPEN_S if record.injected is None else max(0.0, now - record.injected)
        values: dict[str, float | bool | None] = {}
        for name, value in (("ttd", record.ttd), ("ttm", record.ttm), ("ttr", record.ttr)):
            objective = record.objectives.get(name)
            reached = elapsed if value is None or not math.isfinite(value) else value
            values[name] = value
            values[f"{name}_objective"] = objective
            values[f"{name}_missed"] = (objective is not None and reached > objective) or record.met.get(name) is False
        missed = any(values[f"{name}_missed"] for name in ("ttd", "ttm", "ttr"))
        return cls.model_validate(
            {
                **values,
                "elapsed_s": elapsed,
                "missed": missed or record.outcome is RecoveryOutcome.MISSED,
                "recovered": record.outcome is RecoveryOutcome.RECOVERED,
                "budget_remaining": budget_remaining,
            }
        )


class SteadyView(View):
    """How many steady-state checks say what. Unknown is unsafe."""

    ok: int = Field(default=0, description="checks in tolerance")
    bad: int = Field(default=0, description="checks out of tolerance")
    unknown: int = Field(default=0, description="checks without an answer")

    @classmethod
    def of(cls, states: Iterable[str]) -> Self:
        """Counts of `ok`, `bad` and whatever else (unknown)."""
        listed = list(states)
        ok, bad = listed.count(CheckState.OK), listed.count(CheckState.BAD)
        return cls(ok=ok, bad=bad, unknown=len(listed) - ok - bad)


class FreshnessView(View):
    """How old the telemetry of the targets' nodes is."""

    target_age_s: Age = Field(default=0.0, description="age of the oldest target's telemetry; 1e9: never seen")
    stale_targets: Harm = Field(default=0, description="target nodes whose telemetry has stopped")

    @classmethod
    def of(cls, ages: Mapping[str, float | None], limit_s: float) -> Self:
        """The view of `ages` (seconds per target node, None: never seen); older than `limit_s` is stale."""
        seen = [NEVER_S if age is None or not math.isfinite(age) else age for age in ages.values()]
        return cls(target_age_s=max(seen, default=0.0), stale_targets=sum(age > limit_s for age in seen))


class UnattributedView(View):
    """What happens during the experiment that no fault explains: maybe a real failure."""

    anomalies: Harm = Field(default=0, description="open anomalies that no fault explains")
    critical: Harm = Field(default=0, description="critical signals among them")
    critical_on_target_jobs: Harm = Field(default=0, description="of those, on a job of a target")
    critical_on_other_jobs: Harm = Field(default=0, description="of those, on a job that is not a target")
    worst: str = Field(default="", description="entity and metric of the first critical one, for the message")


class BreakerView(View):
    """The breaker and the load that trips it."""

    tripped: bool = Field(default=False, description="no new fault may be injected until a person resets it")
    frozen: bool = Field(default=False, description="new faults wait, for a while")
    reset_at: float = Field(default=0.0, description="event time of the last reset, 0: never")
    halts_10m: Harm = Field(default=0, description="halts requested in the last 10 min, counted from the last reset on")
    running: int = Field(default=0, description="experiments that are not finished")

    @classmethod
    def of(cls, state: BreakerState, now: float, *, reset_at: float, halts_10m: int, running: int) -> Self:
        """The view of the breaker at `now`; see `Breaker.reset_at` and `Halts.requested_since`."""
        frozen = state.frozen_until is not None and now < state.frozen_until
        return cls(tripped=state.tripped, frozen=frozen, reset_at=reset_at, halts_10m=halts_10m, running=running)


class ClusterView(View):
    """The size of the cluster, to make shares of."""

    name: str = Field(default="", description="its name")
    nodes: int = Field(default=0, description="nodes that the topology knows")
    gpus: int = Field(default=0, description="GPUs that the topology knows")
    silent_nodes: Harm = Field(default=0, description="nodes whose telemetry has stopped")


class ClusterContext(View):
    """What a rule of scope `cluster` sees."""

    total: BlastView = BlastView()  # summed over all running experiments
    breaker: BreakerView = BreakerView()
    cluster: ClusterView = ClusterView()


class ExperimentContext(ClusterContext):
    """What a rule of scope `experiment` sees: the above, and one experiment."""

    experiment: ExperimentView
    blast: BlastView = BlastView()
    limits: LimitsView = LimitsView()
    slo: SloView = SloView()
    steady: SteadyView = SteadyView()
    freshness: FreshnessView = FreshnessView()
    unattributed: UnattributedView = UnattributedView()


def calm() -> ExperimentContext:
    """An example in which nothing is wrong: what a rule is tried on at load, and where a rule test starts."""
    return ExperimentContext(
        experiment=ExperimentView(
            id="example", name="example", owner="team", status=Status.ACTIVE, fault="process-stop", injected_s=10.0
        ),
        limits=LimitsView(gpus=8, nodes=2, cells=1, racks=1, rails=8, nvlink_domains=1, jobs=1, gpu_seconds=240.0),
        slo=SloView(elapsed_s=10.0, ttd=1.0, ttd_objective=5.0, ttm_objective=40.0, ttr_objective=60.0),
        steady=SteadyView(ok=2),
        freshness=FreshnessView(target_age_s=0.5),
        breaker=BreakerView(running=1),
        cluster=ClusterView(name="example", nodes=64, gpus=512),
    )


def busy() -> ExperimentContext:
    """An example in which every number is above zero: what each part of an expression is tried on at load."""
    context = calm()
    harm = dict.fromkeys(BlastView.model_fields, 3)
    return context.model_copy(
        update={
            "experiment": context.experiment.model_copy(update={"targets": ("gpu/n1/0",), "duration_s": 30.0}),
            "blast": BlastView.model_validate(harm),
            "total": BlastView.model_validate(harm),
            "slo": context.slo.model_copy(update={"ttm": 12.0, "ttr": 15.0, "budget_remaining": 0.5}),
            "steady": SteadyView(ok=1, bad=1, unknown=1),
            "freshness": FreshnessView(target_age_s=9.0, stale_targets=1),
            "unattributed": UnattributedView(
                anomalies=3, critical=2, critical_on_target_jobs=1, critical_on_other_jobs=1, worst="gpu/n1/0 gpu_lost"
            ),
            "breaker": BreakerView(halts_10m=1, running=2),
            "cluster": ClusterView(name="example", nodes=64, gpus=512, silent_nodes=1),
        }
    )
