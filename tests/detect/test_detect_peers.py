from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from detect_samples import T0, Run, SampleCell
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.detect.peers import robust
from gpuchaos_stream.events.anomaly import AnomalyKind, AnomalyPhase
from gpuchaos_stream.events.base import Severity


def test_a_healthy_cell_raises_nothing() -> None:
    run = Run(SampleCell()).go(120)
    assert run.anomalies == []
    assert len(run.summaries) >= 117


def test_a_straggler_is_found_against_its_peers_within_three_ticks_of_its_slowing() -> None:
    run = Run(SampleCell()).go(60).go(12, {("n2", "gpu", "1", "sm_clock_hertz"): 1.2e9})
    found = run.of("gpu/n2/1", "sm_clock_hertz")
    assert run.opened() == {("gpu/n2/1", "sm_clock_hertz")}
    opened = found[0]
    assert opened.kind is AnomalyKind.PEER
    assert opened.start == pytest.approx(T0 + 60.1)
    assert opened.time <= T0 + 60.1 + 2 + 1e-6
    assert opened.node == "n2"
    assert opened.job == "llama"
    assert opened.cell == "c1"
    assert opened.effect == pytest.approx((1.9 - 1.2) / 1.9, abs=0.02)
    assert opened.value == pytest.approx(1.2e9, rel=1e-6)
    assert opened.expected == pytest.approx(1.9e9, rel=0.02)
    assert opened.score >= 6


def test_a_straggler_that_was_slow_from_the_start_is_found_without_any_past() -> None:
    run = Run(SampleCell()).go(20, {("n2", "gpu", "1", "sm_clock_hertz"): 1.2e9})
    assert run.opened() == {("gpu/n2/1", "sm_clock_hertz")}


def test_an_anomaly_is_opened_once_updated_every_five_seconds_and_closed_once_after_five_good_ticks() -> None:
    run = Run(SampleCell()).go(60).go(30, {("n2", "gpu", "1", "power_watts"): 200.0}).go(20)
    found = run.of("gpu/n2/1", "power_watts")
    phases = [a.phase for a in found]
    assert phases[0] is AnomalyPhase.OPENED
    assert phases[-1] is AnomalyPhase.CLOSED
    assert set(phases[1:-1]) == {AnomalyPhase.UPDATED}
    gaps = [b.time - a.time for a, b in itertools.pairwise(found[:-1])]
    assert all(gap == pytest.approx(5.0) for gap in gaps)
    assert len({a.anomaly_id for a in found}) == 1
    assert len({a.id for a in found}) == len(found)
    assert found[-1].end == pytest.approx(T0 + 90.1)
    assert found[-1].time == pytest.approx(T0 + 94.1)


def test_an_outlier_of_a_single_tick_is_no_anomaly() -> None:
    run = Run(SampleCell()).go(60)
    for _ in range(4):
        run.go(1, {("n2", "gpu", "1", "power_watts"): 100.0}).go(6)
    assert run.anomalies == []


def test_a_small_difference_is_no_anomaly_however_equal_the_peers_are() -> None:
    """ByteDance trace AR: a healthy worker at z = 9.3 among peers that agree to the last digit."""
    run = Run(SampleCell(noise=0.0)).go(60).go(20, {("n2", "gpu", "1", "sm_clock_hertz"): 1.9e9 * 0.93})
    assert run.anomalies == []


def test_a_device_on_the_good_side_of_its_peers_is_no_anomaly() -> None:
    run = Run(SampleCell()).go(60).go(20, {("n2", "gpu", "1", "temperature_celsius"): 30.0})
    assert run.anomalies == []


def test_idle_devices_beside_busy_ones_are_no_anomaly() -> None:
    run = Run(SampleCell(jobs=("llama",) * 4 + ("",) * 3 + ("qwen",) * 2)).go(90)
    assert run.anomalies == []


def test_fewer_than_four_peers_are_no_peers() -> None:
    cell = SampleCell(jobs=("llama",), gone={"n0": {("gpu", "3")}})
    run = Run(cell).go(25, {("n0", "gpu", "1", "sm_clock_hertz"): 1.2e9})
    assert run.anomalies == []


def test_a_port_that_was_never_in_use_is_no_anomaly() -> None:
    run = Run(SampleCell(unused_port="3")).go(90)
    assert run.anomalies == []


def test_a_port_that_goes_down_is_found_by_its_state_and_its_traffic_is_not_judged_meanwhile() -> None:
    down = {("n1", "rdma", "2", "port_active"): 0.0, ("n1", "rdma", "2", "tx_bytes_rate"): 0.0}
    run = Run(SampleCell()).go(60).go(10, down)
    assert run.opened() == {("port/n1/2", "port_active")}
    assert run.of("port/n1/2", "port_active")[0].severity is Severity.ERROR


def test_a_process_that_is_stopped_is_found_within_two_ticks() -> None:
    run = Run(SampleCell()).go(60).go(4, {("n3", "process", "301", "running"): 0.0})
    (opened,) = run.anomalies
    assert (opened.entity, opened.metric, opened.time) == ("process/n3/301", "running", pytest.approx(T0 + 61.1))


def test_a_single_process_job_without_peers_is_judged_by_its_own_past() -> None:
    others = {("n0", "process", i, "running"): None for i in ("1", "2", "3")}
    run = Run(SampleCell(jobs=("toy",), gone={"n0": {("process", i) for i in ("1", "2", "3")}}))
    run.go(60, others).go(6, {("n0", "process", "0", "running"): 0.0, ("n0", "process", "0", "steps_rate"): 0.0})
    assert run.opened() == {("process/n0/0", "running"), ("process/n0/0", "steps_rate")}


def test_an_event_rate_above_its_floor_is_a_signal_at_once() -> None:
    run = Run(SampleCell()).go(5).go(1, {("n1", "gpu", "0", "ecc_uncorrected_rate"): 1.0}).go(8)
    opened, closed = run.of("gpu/n1/0", "ecc_uncorrected_rate")
    assert opened.kind is AnomalyKind.SIGNAL
    assert opened.severity is Severity.ERROR
    assert opened.start == opened.time == pytest.approx(T0 + 5.1)
    assert opened.score == 1 + Severity.ERROR.rank
    assert opened.effect is None
    assert closed.phase is AnomalyPhase.CLOSED
    assert closed.end == pytest.approx(T0 + 6.1)


def test_missing_values_are_never_zero_nor_close_what_is_open() -> None:
    slow = {("n2", "gpu", "1", "sm_clock_hertz"): 1.2e9}
    unread = {("n2", "gpu", "1", "sm_clock_hertz"): None}
    run = Run(SampleCell()).go(60).go(6, unread)
    assert run.anomalies == []
    run.go(6, slow).go(20, unread)
    assert [a.phase for a in run.of("gpu/n2/1", "sm_clock_hertz")][-1] is not AnomalyPhase.CLOSED
    run.go(5)
    assert run.of("gpu/n2/1", "sm_clock_hertz")[-1].phase is AnomalyPhase.CLOSED


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e300])
def test_numbers_that_are_no_measurement_neither_crash_nor_spread(value: float) -> None:
    run = Run(SampleCell()).go(60).go(10, {("n2", "gpu", "1", "power_watts"): value}).go(20)
    assert run.anomalies == []


def test_peers_meet_across_nodes_whose_frames_have_different_shapes() -> None:
    cell = SampleCell(jobs=("llama",) * 4, gone={"n3": {("gpu", "2"), ("gpu", "3"), ("gpu", "1")}})
    run = Run(cell).go(20, {("n3", "gpu", "0", "sm_clock_hertz"): 1.2e9})
    assert run.opened() == {("gpu/n3/0", "sm_clock_hertz")}


@given(
    st.lists(
        st.lists(st.one_of(st.just(math.nan), st.floats(-1e6, 1e6, width=32)), min_size=7, max_size=7),
        min_size=1,
        max_size=4,
    )
)
def test_median_and_mad_are_those_of_the_known_values(rows: list[list[float]]) -> None:
    center, spread, known = robust(np.array(rows, np.float32))
    for i, row in enumerate(rows):
        values = np.array([v for v in row if not math.isnan(v)], np.float32)
        assert known[i, 0] == len(values)
        if len(values):
            assert center[i, 0] == pytest.approx(float(np.median(values)), rel=1e-5, abs=1e-3)
            mad = float(np.median(np.abs(values - np.median(values))))
            assert spread[i, 0] == pytest.approx(1.4826 * mad, rel=1e-4, abs=1e-2)
        else:
            assert math.isnan(center[i, 0])
