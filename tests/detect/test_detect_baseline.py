from __future__ import annotations

import numpy as np
from detect_samples import T0, Run, SampleCell
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_stream.events.anomaly import AnomalyPhase


def baseline(run: Run, kind: str, metric: str) -> np.ndarray:
    """What the detector holds for normal of one metric of the job, per device."""
    (cell,) = run.detector._cells.values()
    (group,) = [g for key, g in cell.groups.items() if key[0] == kind]
    return group.gather("mean", np.array([group.metrics.index(metric)]))[0].copy()


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([("gpu", "power_watts", 600.0), ("process", "steps_rate", 1.0), ("rdma", "tx_bytes_rate", 2e10)]),
    st.floats(0.0, 0.6),
    st.sampled_from(["n1", None]),
    st.integers(10, 60),
)
def test_baselines_do_not_learn_from_an_open_anomaly(
    what: tuple[str, str, float], factor: float, node: str | None, ticks: int
) -> None:
    kind, metric, level = what
    run = Run(SampleCell(jobs=("llama",) * 4)).go(50)
    before = baseline(run, kind, metric)
    run.go(ticks, {(node, kind, None, metric): level * factor})
    assert any(a.phase is AnomalyPhase.OPENED and a.metric == metric for a in run.anomalies)
    after = baseline(run, kind, metric)
    hurt = slice(4, 8) if node else slice(None)
    np.testing.assert_array_equal(after[hurt], before[hurt])


@settings(max_examples=8, deadline=None)
@given(st.floats(0.95, 1.05), st.integers(5, 60))
def test_quarantined_nodes_learn_nothing_even_from_values_that_look_healthy(factor: float, ticks: int) -> None:
    run = Run(SampleCell(jobs=("llama",) * 4)).go(50)
    before = baseline(run, "gpu", "power_watts")
    run.detector.quarantine(["n1"], T0 + 50 + ticks)
    run.go(ticks, {("n1", "gpu", None, "power_watts"): 600 * factor})
    after = baseline(run, "gpu", "power_watts")
    np.testing.assert_array_equal(after[4:8], before[4:8])
    if ticks >= 10:
        assert (after[:4] != before[:4]).any()


def test_a_quarantine_ends_by_event_time() -> None:
    run = Run(SampleCell(jobs=("llama",) * 4)).go(50)
    run.detector.quarantine(["n1"], T0 + 60)
    before = baseline(run, "gpu", "power_watts")
    run.go(40)
    assert (baseline(run, "gpu", "power_watts")[4:8] != before[4:8]).all()


def test_a_quarantine_that_came_before_the_node_holds_too() -> None:
    run = Run(SampleCell(jobs=("llama",) * 4))
    run.detector.quarantine(["n1"], T0 + 1000)
    run.go(50)
    assert (baseline(run, "gpu", "power_watts")[4:8] == 0).all()


def test_a_device_keeps_its_past_when_another_one_on_its_node_vanishes() -> None:
    cell = SampleCell(jobs=("llama",) * 4)
    run = Run(cell).go(60)
    cell.gone["n1"] = {("gpu", "3")}
    run.go(3).go(4, {("n1", "process", "102", "running"): 0.0, ("n1", "gpu", "0", "power_watts"): 100.0})
    assert run.opened() == {
        ("gpu/n1/3", "device_missing"),
        ("process/n1/102", "running"),
        ("gpu/n1/0", "power_watts"),
    }


def test_a_vanished_device_is_a_signal_until_it_is_back() -> None:
    cell = SampleCell(jobs=("llama",) * 4)
    run = Run(cell).go(30)
    cell.gone["n1"] = {("gpu", "3")}
    run.go(10)
    cell.gone.clear()
    run.go(10)
    found = run.of("gpu/n1/3", "device_missing")
    assert [a.phase for a in found] == [AnomalyPhase.OPENED, AnomalyPhase.CLOSED]
    assert [int(a.time) - T0 for a in found] == [30, 40]
    assert run.opened() == {("gpu/n1/3", "device_missing")}


def test_an_anomaly_of_a_device_that_vanishes_is_closed_with_the_reason() -> None:
    cell = SampleCell(jobs=("llama",) * 4)
    run = Run(cell).go(60).go(6, {("n1", "gpu", "3", "power_watts"): 100.0})
    cell.gone["n1"] = {("gpu", "3")}
    run.go(2)
    assert run.of("gpu/n1/3", "power_watts")[-1].detail["closed_because"] == "device_gone"
