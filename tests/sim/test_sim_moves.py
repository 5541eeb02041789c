"""A job that its scheduler moves off a node that was cut off, through all stages: agents, detector, control loop."""

from __future__ import annotations

from sim_loop_help import Whole

from gpuchaos_stream.events.experiment import ExperimentState, Verdict
from gpuchaos_stream.events.incident import Mitigation
from gpuchaos_stream.experiments.plan import Plan

CLUSTER = "moving"
DURATION_S = 55.0
PLAN = Plan.model_validate(
    {
        "api_version": "gpuchaos/v1",
        "kind": "Experiment",
        "name": "cut-off",
        "description": "A job whose node is cut off goes on with a spare one.",
        "owner": "tests",
        "fault": {"name": "network-partition", "certifies": ["node-isolation"]},
        "targets": {"entities": ["node/n003"]},
        "duration": DURATION_S,
        "lease": DURATION_S,  # nobody reaches the node to renew it
        "undo": {"method": "automatic"},
        "limits": {"gpus": 64, "nodes": 8, "jobs": 1, "gpu_seconds": 5000},
        "steady_state": {
            "hold": 3,
            "checks": [
                {
                    "name": "pace",
                    "telemetry": {"of": "job/train-c0-0", "metric": "steps_rate", "op": ">=", "value": 0.5},
                }
            ],
        },
        "objectives": {"ttd": 10, "ttm": 60, "ttr": 80},
    }
)


def finished(spares: int) -> ExperimentState:
    whole = Whole(CLUSTER, collective_timeout_s=5.0, spares=spares)
    whole.run(10)
    return whole.run_until_finished(whole.start(PLAN))[0]


def test_the_work_s_move_to_a_spare_node_is_its_mitigation_long_before_the_fault_is_gone() -> None:
    state = finished(spares=2)
    record = state.recovery
    assert state.verdict is Verdict.PASSED
    assert record.mitigated_by is Mitigation.MOVED
    assert record.ttm is not None
    assert record.ttr is not None
    # Stalled for 20 s at its rendezvous and 5 s in its collective, then 6 to 10 s for the restart.
    assert 31 < record.ttm < DURATION_S - 10
    assert abs(record.ttm - record.ttr) < 3


def test_without_a_spare_node_only_the_fault_s_removal_ends_it() -> None:
    record = finished(spares=0).recovery
    assert record.mitigated_by is Mitigation.REMOVED
    assert record.ttm is not None
    assert record.ttm >= DURATION_S - 1
