"""What a loop shows in numbers: what is there while it is true, gone with what it tells of, and bounded in number."""

from __future__ import annotations

from typing import Any, Final

import pytest
from prometheus_client import REGISTRY
from prometheus_client.samples import Sample

from gpuchaos_stream.events.experiment import Halt, HaltState
from gpuchaos_stream.events.node import GpuPlace, NodeInfo
from gpuchaos_stream.events.observation import CellSummary, NodeSeen
from gpuchaos_stream.experiments.client import start_command
from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.guard.rules import load as load_rules
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.loop import gauges
from gpuchaos_stream.loop.cluster import ClusterLoop

T0: Final = 1_000_000.0
TRACEPARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
RULES: Final = load_rules([shipped_rules()])
#: Far from every loop of other tests in this process.
CLUSTER: Final = "gauges"

PLAN: Final = {
    "api_version": "gpuchaos/v1",
    "kind": "Experiment",
    "name": "stopped",
    "description": "a rank is stopped",
    "owner": "tests",
    "fault": {"name": "process-stop", "certifies": ("hang-detection",)},
    "targets": {"entities": ("process/n1/7",)},
    "duration": 5.0,
    "lease": 5.0,
    "undo": {"method": "automatic"},
    "limits": {"gpus": 4, "nodes": 0, "jobs": 0, "gpu_seconds": 60.0},
    "steady_state": {
        "hold": 2.0,
        "checks": (
            {
                "name": "up",
                "telemetry": {"of": "node/n1", "metric": "node.cpu_busy_ratio.mean", "op": "<=", "value": 2},
            },
        ),
    },
    "objectives": {"ttd": 5.0, "ttm": 10.0, "ttr": 20.0},
}


def summary(at: float, *, load: float | None = 0.5, n2: float = 0.0, jobs: Any = None) -> CellSummary:
    return CellSummary(
        id=f"s{at}",
        time=at,
        cluster=CLUSTER,
        cell="rack-7",
        nodes={"n1": NodeSeen(last=at), "n2": NodeSeen(last=at - n2)},
        order=("n1", "n2"),
        columns={"gpu.utilization_ratio.mean": (load, None), "gpu.power_watts.mean": (700.0, 300.0)},
        jobs=jobs or {},
    )


@pytest.fixture
def loop() -> Any:
    made = ClusterLoop(CLUSTER, RULES)
    for name in ("n1", "n2"):
        made.feed(NodeInfo(id=name, time=T0, cluster=CLUSTER, node=name, cell="rack-7", gpus=(GpuPlace(index="0"),)))
    yield made
    gauges.hide(made)


def settle(loop: ClusterLoop, at: float, told: CellSummary | None = None) -> None:
    """One round, as the control stage does it."""
    if told is not None:
        loop.feed(told)
        gauges.show_cell(loop, told)
    loop.settle(at)
    gauges.show(loop)


def shown(name: str) -> list[Sample]:
    """The series of our cluster under a name."""
    samples = (sample for family in REGISTRY.collect() for sample in family.samples)
    return [sample for sample in samples if sample.name == name and sample.labels.get("cluster") == CLUSTER]


def by(label: str, name: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in shown(name)}


def test_nodes_are_counted_by_whether_they_are_heard(loop: ClusterLoop) -> None:
    settle(loop, T0, summary(T0))
    settle(loop, T0 + 30, summary(T0 + 30, n2=20))
    assert by("state", "gpuchaos_nodes") == {"fresh": 1, "silent": 1}
    assert by("state", "gpuchaos_cell_nodes") == {"fresh": 1, "silent": 1}
    assert by("cell", "gpuchaos_cell_nodes").keys() == {"rack-7"}
    assert by("cluster", "gpuchaos_telemetry_age_seconds") == {CLUSTER: 20}
    assert by("cluster", "gpuchaos_gpus") == {CLUSTER: 2}


def test_a_cell_is_shown_over_the_nodes_that_told(loop: ClusterLoop) -> None:
    settle(loop, T0)
    settle(loop, T0 + 1, summary(T0 + 1, load=0.25))
    assert by("over", "gpuchaos_cell_gpu_utilization_ratio") == {"min": 0.25, "mean": 0.25, "max": 0.25}
    assert by("over", "gpuchaos_cell_gpu_power_watts") == {"min": 300, "mean": 500, "max": 700}


def test_a_number_that_nobody_knows_any_more_is_no_series(loop: ClusterLoop) -> None:
    settle(loop, T0)
    settle(
        loop, T0 + 1, summary(T0 + 1, jobs={"llama": {"step_time_seconds": 2.0, "ranks": 8.0, "ranks_running": 7.0}})
    )
    assert by("training_job", "gpuchaos_job_step_time_seconds") == {"llama": 2.0}
    assert by("state", "gpuchaos_job_processes") == {"all": 8, "running": 7}
    settle(loop, T0 + 6, summary(T0 + 6, load=None))
    assert shown("gpuchaos_cell_gpu_utilization_ratio") == []
    assert shown("gpuchaos_job_step_time_seconds") == []
    assert shown("gpuchaos_cell_gpu_power_watts") != []


def test_a_cell_that_is_gone_for_an_hour_takes_its_series_away(loop: ClusterLoop) -> None:
    settle(loop, T0)
    settle(loop, T0 + 1, summary(T0 + 1))
    settle(loop, T0 + 1 + gauges.GONE_S + 1)
    assert shown("gpuchaos_cell_gpu_power_watts") == []


def test_jobs_beyond_the_bound_are_not_shown(loop: ClusterLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "MOST_JOBS", 3)
    settle(loop, T0)
    jobs = {f"j{number}": {"step_time_seconds": 1.0} for number in range(9)}
    for at in (1, 6):
        settle(loop, T0 + at, summary(T0 + at, jobs=jobs))
        assert set(by("training_job", "gpuchaos_job_step_time_seconds")) == {"j0", "j1", "j2"}


def start(loop: ClusterLoop, at: float, name: str = "stopped") -> str:
    command = start_command(Plan.model_validate(PLAN | {"name": name}), cluster=CLUSTER, now=at)
    loop.command(command, now=at, traceparent=TRACEPARENT)
    assert command.experiment_id is not None
    return command.experiment_id


def test_an_experiment_is_shown_with_its_limits_and_objectives(loop: ClusterLoop) -> None:
    one = start(loop, T0)
    settle(loop, T0 + 1, summary(T0 + 1))
    (info,) = shown("gpuchaos_experiment_info")
    assert info.labels == {
        "cluster": CLUSTER,
        "experiment_id": one,
        "name": "stopped",
        "owner": "tests",
        "fault": "process-stop",
        "target_kind": "process",
        "status": "pending",
        "verdict": "",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }
    assert by("level", "gpuchaos_experiment_blast_limit") == {"gpus": 4, "nodes": 0, "jobs": 0}
    assert by("experiment_id", "gpuchaos_experiment_lost_gpu_limit_seconds") == {one: 60}
    assert by("event", "gpuchaos_experiment_timestamp_seconds") == {"started": T0}
    assert shown("gpuchaos_experiment_recovery_seconds") == [], "nothing is measured yet"


def test_a_status_that_is_left_leaves_no_series(loop: ClusterLoop) -> None:
    one = start(loop, T0)
    settle(loop, T0 + 1)
    loop.machine.stop(one, reason="enough", by="tests")
    settle(loop, T0 + 3)
    settle(loop, T0 + 5)
    assert [sample.labels["status"] for sample in shown("gpuchaos_experiment_info")] == ["finished"]


def test_only_so_many_experiments_have_series_of_their_own_the_running_ones_first(loop: ClusterLoop) -> None:
    over = start(loop, T0, "over")
    loop.machine.stop(over, reason="enough", by="tests")
    settle(loop, T0 + 1)
    for number in range(gauges.MOST_EXPERIMENTS):
        start(loop, T0 + 2, f"e{number}")
    settle(loop, T0 + 4)
    names = {sample.labels["name"] for sample in shown("gpuchaos_experiment_info")}
    assert len(names) == gauges.MOST_EXPERIMENTS
    assert "over" not in names
    assert sum(by("status", "gpuchaos_experiments").values()) == gauges.MOST_EXPERIMENTS + 1


def halt(experiment_id: str, state: HaltState, **fields: Any) -> Halt:
    known = {"id": "h", "cause": "rule:x", "reason": "r", "requested": T0, "experiment_id": experiment_id}
    return Halt.model_validate(known | {"state": state} | fields)


def test_a_halt_is_counted_in_the_state_that_it_is_in_and_no_other(loop: ClusterLoop) -> None:
    one = start(loop, T0)
    settle(loop, T0 + 1)
    open_in = []
    for at, state in enumerate((HaltState.REQUESTED, HaltState.ACKNOWLEDGED, HaltState.UNDONE, HaltState.ESCALATED)):
        loop.machine.update(one, halts=(halt(one, state),))
        gauges.show(loop, at_once=True)
        counted = by("state", "gpuchaos_halts_open")
        assert sum(counted.values()) == 1, at
        open_in += [name for name, count in counted.items() if count]
    assert open_in == ["requested", "acknowledged", "undone", "escalated"]
    loop.machine.update(one, halts=(halt(one, HaltState.CONFIRMED, confirmed=T0 + 9),))
    gauges.show(loop, at_once=True)
    assert set(by("state", "gpuchaos_halts_open").values()) == {0}


def test_a_halt_of_a_dry_run_is_nothing_to_wait_for(loop: ClusterLoop) -> None:
    one = start(loop, T0)
    settle(loop, T0 + 1)
    loop.machine.update(one, halts=(halt(one, HaltState.REQUESTED, dry_run=True),))
    gauges.show(loop, at_once=True)
    assert set(by("state", "gpuchaos_halts_open").values()) == {0}


def test_what_is_counted_is_there_at_zero_before_it_happens(loop: ClusterLoop) -> None:
    settle(loop, T0)
    assert by("cluster", "gpuchaos_settle_errors_total") == {CLUSTER: 0}
    runs = shown("gpuchaos_objective_runs_total")
    assert {sample.labels["fault"] for sample in runs} == {name for name, fault in FAULTS.items() if fault.available}
    assert {sample.value for sample in (*runs, *shown("gpuchaos_objective_misses_total"))} == {0}


def test_a_cluster_that_became_another_workers_leaves_no_gauge_behind(loop: ClusterLoop) -> None:
    start(loop, T0)
    settle(loop, T0 + 1, summary(T0 + 1))
    settle(loop, T0 + 2, summary(T0 + 2))
    before = {family.name for family in REGISTRY.collect() for sample in family.samples if family.type == "gauge"}
    assert "gpuchaos_breaker_tripped" in before
    gauges.hide(loop)
    left = [
        sample.name
        for family in REGISTRY.collect()
        for sample in family.samples
        if family.type == "gauge" and sample.labels.get("cluster") == CLUSTER
    ]
    assert left == []
