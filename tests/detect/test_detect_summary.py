from __future__ import annotations

import math

import pytest
from detect_samples import T0, Run, SampleCell

from gpuchaos_stream.detect.config import JOB_SUMMARY, SUMMARY
from gpuchaos_stream.events.metrics import METRICS
from gpuchaos_stream.events.observation import CellSummary


def test_a_summary_holds_the_nodes_values_by_name() -> None:
    changes = {
        ("n1", "gpu", "0", "utilization_ratio"): 0.2,
        ("n1", "gpu", "1", "utilization_ratio"): 0.4,
        ("n1", "gpu", "2", "utilization_ratio"): 0.6,
        ("n1", "gpu", "3", "utilization_ratio"): None,
        ("n2", "rdma", "3", "port_active"): 0.0,
        ("n3", "process", "302", "steps_rate"): 0.25,
        ("n4", "gpu", None, "temperature_celsius"): None,
    }
    run = Run(SampleCell(noise=0.0)).go(8, changes)
    last = run.summaries[-1]
    at = {name: last.order.index(name) for name in last.order}
    assert last.order == ("n0", "n1", "n2", "n3", "n4", "n5")
    assert last.columns["gpu.utilization_ratio.mean"][at["n1"]] == pytest.approx(0.4)
    assert last.columns["gpu.utilization_ratio.min"][at["n1"]] == pytest.approx(0.2)
    assert last.columns["rdma.port_active.min"][at["n2"]] == 0.0
    assert last.columns["rdma.port_active.min"][at["n1"]] == 1.0
    assert last.columns["gpu.temperature_celsius.max"][at["n4"]] is None
    assert last.columns["gpu.temperature_celsius.max"][at["n0"]] == pytest.approx(60.0)
    assert last.jobs["llama"] == {
        "steps_rate": pytest.approx(0.25),
        "step_time_seconds": pytest.approx(1.0),
        "running": 1.0,
        "ranks": 24.0,
        "ranks_running": 24.0,
        "progress_age_seconds": pytest.approx(0.5),
    }


def test_there_is_one_summary_a_second_and_it_survives_the_wire() -> None:
    run = Run(SampleCell(jobs=("llama", "", "qwen", "llama"))).go(30)
    assert [int(s.time) - T0 for s in run.summaries] == list(range(len(run.summaries)))
    assert len({s.id for s in run.summaries}) == len(run.summaries)
    for summary in run.summaries:
        assert CellSummary.model_validate_json(summary.model_dump_json()) == summary


def test_nodes_of_different_shapes_share_one_summary() -> None:
    last = Run(SampleCell(jobs=("llama", "", "qwen", "llama"), noise=0.0)).go(8).summaries[-1]
    assert last.columns["process.steps_rate.min"] == (1.0, None, 1.0, 1.0)
    assert last.columns["gpu.power_watts.mean"] == (600.0, 75.0, 600.0, 600.0)
    assert {job: values["ranks"] for job, values in last.jobs.items()} == {"llama": 8.0, "qwen": 4.0}


def test_a_node_that_missed_the_tick_has_no_values_and_its_ranks_do_not_count() -> None:
    run = Run(SampleCell(noise=0.0)).go(20).go(3, without=["n5"])
    last = run.summaries[-1]
    assert last.columns["gpu.power_watts.mean"][-1] is None
    assert last.jobs["llama"]["ranks"] == 20.0


def test_a_silent_node_keeps_its_processes_and_those_that_do_not_run_are_named() -> None:
    cell = SampleCell(jobs=("llama", "", "llama"))
    run = Run(cell).go(20).go(12, {("n0", "process", "1", "running"): 0.0}, without=["n2"])
    last = run.summaries[-1]
    assert last.processes == {
        "llama": {
            "n0": dict.fromkeys(["0", "1", "2", "3"], ""),
            "n2": dict.fromkeys(["200", "201", "202", "203"], ""),
        }
    }
    assert last.not_running == {"n0": ("1",)}
    assert (last.jobs["llama"]["ranks"], last.jobs["llama"]["ranks_running"]) == (4.0, 3.0)
    assert last.nodes["n2"].stale


def test_the_progress_of_a_job_is_the_oldest_of_those_processes_that_run() -> None:
    ages = {("n0", "process", "1", "progress_age_seconds"): 9.0, ("n0", "process", "2", "progress_age_seconds"): 50.0}
    run = Run(SampleCell()).go(8, {**ages, ("n0", "process", "2", "running"): 0.0})
    assert run.summaries[-1].jobs["llama"]["progress_age_seconds"] == 9.0


def test_a_job_whose_progress_cannot_be_read_is_unknown_not_zero() -> None:
    last = Run(SampleCell()).go(8, {(None, "process", None, "steps_rate"): None}).summaries[-1]
    assert last.jobs["llama"]["steps_rate"] is None
    assert last.columns["process.steps_rate.min"] == (None,) * 6


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_what_is_no_number_is_unknown(value: float) -> None:
    last = Run(SampleCell()).go(8, {("n0", "gpu", None, "power_watts"): value}).summaries[-1]
    assert last.columns["gpu.power_watts.mean"][0] is None


def test_every_metric_in_the_summary_tables_is_a_known_one() -> None:
    assert SUMMARY.keys() <= METRICS.keys()
    assert {("process", metric) for metric, _ in JOB_SUMMARY.values()} <= METRICS.keys()
