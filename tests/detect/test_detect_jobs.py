from __future__ import annotations

import math

import pytest
from detect_samples import T0, Run, SampleCell

from gpuchaos_stream.detect.config import DetectConfig
from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.events.anomaly import AnomalyKind, AnomalyPhase
from gpuchaos_stream.events.base import Severity

SLOW_JOB = {(None, "process", None, "steps_rate"): 0.4}


def test_a_dip_of_a_whole_job_is_one_anomaly_of_the_job_and_none_of_its_processes() -> None:
    run = Run(SampleCell()).go(60).go(12, SLOW_JOB).go(20)
    found = run.of("job/llama", "steps_rate")
    assert run.opened() == {("job/llama", "steps_rate")}
    opened = found[0]
    assert opened.kind is AnomalyKind.PAST
    assert opened.severity is Severity.ERROR
    assert opened.start == pytest.approx(T0 + 60.1)
    assert opened.time == pytest.approx(T0 + 62.1)
    assert opened.node is None
    assert opened.job == "llama"
    assert opened.value == pytest.approx(0.4)
    assert opened.expected == pytest.approx(1.0, abs=0.01)
    assert opened.effect == pytest.approx(0.6, abs=0.01)
    assert opened.detail["devices"] == opened.detail["members"] == 24
    assert found[-1].phase is AnomalyPhase.CLOSED
    assert found[-1].end == pytest.approx(T0 + 72.1)


def test_a_paused_job_makes_one_anomaly_a_metric_however_many_devices_it_has() -> None:
    pause = {
        (None, "process", None, "steps_rate"): 0.0,
        (None, "gpu", None, "utilization_ratio"): 0.0,
        (None, "gpu", None, "power_watts"): 100.0,
        (None, "rdma", None, "tx_bytes_rate"): 0.0,
    }
    run = Run(SampleCell()).go(60).go(10, pause)
    assert run.opened() == {("job/llama", where[3]) for where in pause}


def test_one_job_slowing_says_nothing_of_the_other_job_in_the_cell() -> None:
    cell = SampleCell(jobs=("llama",) * 3 + ("qwen",) * 3)
    slow = {(node, "process", None, "steps_rate"): 0.4 for node in ("n0", "n1", "n2")}
    assert Run(cell).go(60).go(12, slow).opened() == {("job/llama", "steps_rate")}


def test_the_one_process_that_stopped_is_named_beside_the_job_that_it_holds_up() -> None:
    run = Run(SampleCell()).go(60).go(8, {**SLOW_JOB, ("n3", "process", "301", "running"): 0.0})
    assert run.opened() == {("job/llama", "steps_rate"), ("process/n3/301", "running")}


def test_idle_devices_that_shift_together_are_one_anomaly_of_the_cell() -> None:
    run = Run(SampleCell(jobs=("",) * 5)).go(60).go(8, {(None, "gpu", None, "temperature_celsius"): 60.0})
    assert run.opened() == {("cell/c1", "temperature_celsius")}


def test_a_diurnal_drift_of_two_per_cent_is_no_anomaly() -> None:
    run = Run(SampleCell(noise=0.002)).go(40)
    for tick in range(40, 400):
        level = 1 + 0.02 * math.sin(2 * math.pi * (tick - 40) / 360)
        run.go(1, {(None, "gpu", None, "power_watts"): 600 * level, (None, "process", None, "steps_rate"): level})
    assert run.anomalies == []


def test_a_job_that_ends_and_gives_its_devices_back_is_no_anomaly() -> None:
    cell = SampleCell(jobs=("llama",) * 6)
    run = Run(cell).go(60)
    cell.jobs = ("",) * 6
    run.go(60)
    assert run.anomalies == []


def test_a_job_that_ends_while_it_is_slow_has_its_anomaly_closed_with_the_reason() -> None:
    cell = SampleCell(jobs=("llama",) * 3 + ("qwen",) * 3)
    slow = {(node, "process", None, "steps_rate"): 0.4 for node in ("n0", "n1", "n2")}
    run = Run(cell).go(60).go(6, slow)
    cell.jobs = ("",) * 3 + ("qwen",) * 3
    run.go(10)
    last = run.of("job/llama", "steps_rate")[-1]
    assert last.phase is AnomalyPhase.CLOSED
    assert last.detail["closed_because"] == "job_gone"


def test_a_shift_that_stays_becomes_the_new_normal() -> None:
    run = Run(SampleCell(), Detector(DetectConfig(accept_after=30.0))).go(60).go(120, SLOW_JOB)
    found = run.of("job/llama", "steps_rate")
    assert [a.phase for a in found if a.phase is not AnomalyPhase.UPDATED] == [AnomalyPhase.OPENED, AnomalyPhase.CLOSED]
    assert found[-1].detail["closed_because"] == "new_normal"


def test_what_two_cells_say_of_one_job_has_two_ids() -> None:
    detector = Detector()
    first, second = Run(SampleCell(cell="c1"), detector), Run(SampleCell(cell="c2", seed=8), detector)
    for changes, ticks in ({}, 60), (SLOW_JOB, 6):
        for _ in range(ticks):
            first.go(1, changes)
            second.go(1, changes)
    opened = [a for a in [*first.anomalies, *second.anomalies] if a.phase is AnomalyPhase.OPENED]
    assert {(a.entity, a.cell) for a in opened} == {("job/llama", "c1"), ("job/llama", "c2")}
    assert len({a.anomaly_id for a in opened}) == 2
