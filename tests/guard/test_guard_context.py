import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gpuchaos_stream.events.experiment import BreakerState, ExperimentState
from gpuchaos_stream.events.incident import BlastRadius, RecoveryRecord
from gpuchaos_stream.experiments.plan import Limits, Plan
from gpuchaos_stream.guard.context import (
    NEVER_S,
    NO_LIMIT,
    OPEN_S,
    WORST,
    BlastView,
    BreakerView,
    ExperimentContext,
    ExperimentView,
    FreshnessView,
    LimitsView,
    SloView,
    SteadyView,
    busy,
    calm,
)

_UNKNOWN = st.sampled_from([None, math.nan, math.inf, -math.inf])


@given(_UNKNOWN, st.floats(min_value=0, max_value=1e12))
@settings(deadline=None)
def test_harm_that_is_not_known_is_above_every_limit_that_is_set(unknown: float | None, limit: float) -> None:
    blast = BlastView.model_validate({"gpus": unknown, "gpu_seconds": unknown})
    assert blast.gpus == WORST > limit
    assert blast.gpu_seconds > limit
    assert blast.gpus < NO_LIMIT


@given(_UNKNOWN)
@settings(deadline=None)
def test_telemetry_that_was_never_seen_is_stale(age: float | None) -> None:
    view = FreshnessView.of({"n1": 0.5, "n2": age}, limit_s=5.0)
    assert view.stale_targets == 1
    assert view.target_age_s == NEVER_S


def test_a_level_without_a_limit_has_none() -> None:
    view = LimitsView.of(Limits(gpus=4, nodes=1, jobs=0, gpu_seconds=60))
    assert (view.gpus, view.nodes, view.jobs, view.gpu_seconds) == (4, 1, 0, 60.0)
    assert view.cells == view.racks == view.rails == view.nvlink_domains == NO_LIMIT


def test_the_blast_radius_arrives_whole_but_for_its_list() -> None:
    view = BlastView.of(BlastRadius(gpus=3, nodes=2, unknown_nodes=1, gpu_seconds=7.5, entities=("gpu/n1/0",)))
    assert (view.gpus, view.nodes, view.unknown_nodes, view.gpu_seconds) == (3, 2, 1, 7.5)


@pytest.mark.parametrize(
    ("record", "now", "missed"),
    [
        (RecoveryRecord(), 100.0, (False, False, False)),
        (RecoveryRecord(injected=100, objectives={"ttd": 5, "ttm": 20, "ttr": 30}), 104.0, (False, False, False)),
        (RecoveryRecord(injected=100, objectives={"ttd": 5, "ttm": 20, "ttr": 30}), 106.0, (True, False, False)),
        (
            RecoveryRecord(injected=100, objectives={"ttd": 5, "ttm": 20, "ttr": 30}, ttd=4, ttm=25),
            126,
            (False, True, False),
        ),
        (RecoveryRecord(injected=100, objectives={"ttr": 30}, ttr=29.0), 900.0, (False, False, False)),
        (RecoveryRecord(injected=100, objectives={"ttr": 30}, ttr=math.nan), 900.0, (False, False, True)),
        (
            RecoveryRecord(injected=100, objectives={"ttr": 30}, ttr=1.0, met={"ttr": False}),
            101.0,
            (False, False, True),
        ),
    ],
)
def test_an_objective_open_past_its_time_is_missed(
    record: RecoveryRecord, now: float, missed: tuple[bool, bool, bool]
) -> None:
    view = SloView.of(record, now)
    assert (view.ttd_missed, view.ttm_missed, view.ttr_missed) == missed
    assert view.missed == any(missed)


def test_an_open_recovery_time_reads_minus_one_and_a_budget_before_any_run_is_whole() -> None:
    view = SloView.of(RecoveryRecord(), 100.0)
    assert view.ttd == view.ttm == view.ttr == view.elapsed_s == OPEN_S
    assert view.budget_remaining == 1.0


def test_the_experiment_is_seen_with_its_plan_at_the_time_asked_for() -> None:
    plan = Plan.model_validate(
        {
            "api_version": "gpuchaos/v1",
            "kind": "Experiment",
            "name": "stop-a-rank",
            "description": "d",
            "owner": "team",
            "labels": {"tier": "gold"},
            "fault": {"name": "process-stop", "certifies": ["job-stall"]},
            "targets": {"entities": ["process/n1/7"]},
            "duration": "20s",
            "lease": "6s",
            "undo": {"method": "automatic"},
            "limits": {"gpus": 1, "nodes": 1, "jobs": 0, "gpu_seconds": 10},
            "steady_state": {"hold": "5s", "checks": [{"name": "up", "http": {"url": "http://127.0.0.1/"}}]},
            "objectives": {"ttd": "5s", "ttm": "30s", "ttr": "40s"},
        }
    )
    state = ExperimentState(
        id="e1",
        time=100,
        cluster="c",
        name="stop-a-rank",
        owner="team",
        status="active",
        plan={},
        started=100,
        recovery=RecoveryRecord(injected=104),
    )
    view = ExperimentView.of(state, plan, 110.0)
    assert (view.id, view.fault, view.labels) == ("e1", "process-stop", {"tier": "gold"})
    assert view.targets == ("process/n1/7",)
    assert (view.age_s, view.injected_s, view.duration_s) == (10.0, 6.0, 20.0)
    early = ExperimentView.of(state.model_copy(update={"recovery": RecoveryRecord()}), plan, 110.0)
    assert early.injected_s == OPEN_S


def test_a_check_that_says_something_else_is_unknown() -> None:
    view = SteadyView.of(["ok", "bad", "unknown", "", "ok"])
    assert (view.ok, view.bad, view.unknown) == (2, 1, 2)


def test_a_freeze_ends_by_itself() -> None:
    state = BreakerState(id="breaker", time=0, cluster="c", frozen_until=50.0)
    frozen = [BreakerView.of(state, now, reset_at=0, halts_10m=0, running=0).frozen for now in (49.0, 50.0)]
    assert frozen == [True, False]


def test_a_wrong_name_in_the_wiring_is_an_error() -> None:
    with pytest.raises(ValidationError):
        BlastView.model_validate({"gpuz": 1})


def test_every_name_that_a_rule_may_use_is_explained() -> None:
    for group, field in ExperimentContext.model_fields.items():
        model = field.annotation
        assert model is not None
        for name, inner in model.model_fields.items():
            assert inner.description, f"{group}.{name}"


def test_the_examples_for_the_check_at_load_differ_in_every_group() -> None:
    for group in ExperimentContext.model_fields:
        if group != "limits":
            assert getattr(calm(), group) != getattr(busy(), group)
