from __future__ import annotations

import pytest
from detect_samples import T0, Run, SampleCell

from gpuchaos_stream.detect.config import DetectConfig
from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.events.anomaly import AnomalyKind, AnomalyPhase
from gpuchaos_stream.events.base import Severity


def test_a_node_that_falls_silent_is_a_signal_until_its_frames_are_back() -> None:
    run = Run(SampleCell()).go(30).go(8, without=["n2"])
    (opened,) = run.anomalies
    assert (opened.entity, opened.metric, opened.node) == ("node/n2", "telemetry_stale", "n2")
    assert opened.kind is AnomalyKind.SIGNAL
    assert opened.severity is Severity.ERROR
    assert opened.start == pytest.approx(T0 + 30.1)
    run.go(3)
    assert run.anomalies[-1].phase is AnomalyPhase.CLOSED
    assert run.anomalies[-1].anomaly_id == opened.anomaly_id
    assert run.anomalies[-1].end == pytest.approx(T0 + 38.1)


def test_silence_is_noticed_without_any_frame_at_all() -> None:
    run = Run(SampleCell(jobs=("llama",))).go(10)
    events = []
    for quarter in range(4 * 10, 4 * 15):
        events += run.detector.tick(T0 + quarter / 4)
    assert [(e.entity, e.metric) for e in events if hasattr(e, "entity")] == [("node/n0", "telemetry_stale")]


def test_a_whole_cell_that_falls_silent_is_one_anomaly_and_stragglers_are_named_on_return() -> None:
    run = Run(SampleCell()).go(10).go(8, without=run_nodes())
    assert run.opened() == {("cell/c1", "telemetry_stale")}
    run.go(4, without=["n4"])
    assert run.opened() == {("cell/c1", "telemetry_stale"), ("node/n4", "telemetry_stale")}
    run.go(2)
    closed = {a.entity for a in run.anomalies if a.phase is AnomalyPhase.CLOSED}
    assert closed == {"cell/c1", "node/n4"}


def run_nodes() -> tuple[str, ...]:
    return SampleCell().nodes


def test_a_pause_of_the_worker_itself_makes_no_node_silent() -> None:
    run = Run(SampleCell()).go(10)
    frames = [f for tick in range(10, 40) for f in run.cell.tick(tick)]
    run.take(run.detector.feed(frames[:3], T0 + 40.0))
    run.take(run.detector.feed(frames[3:], T0 + 40.1))
    run.take(run.detector.tick(T0 + 40.3))
    assert run.anomalies == []


def test_a_node_that_fell_silent_within_a_backlog_is_found_while_the_backlog_is_read() -> None:
    cell = SampleCell()
    frames = [f for tick in range(60) for f in cell.tick(tick, without=["n2"] if tick >= 30 else [])]
    detector = Detector()
    opened = [e for e in detector.feed(frames, T0 + 9000.0) if hasattr(e, "entity")]
    assert [(e.entity, e.start) for e in opened] == [("node/n2", pytest.approx(T0 + 30.1))]


def test_a_silent_node_is_marked_stale_in_the_summary_and_has_no_values() -> None:
    run = Run(SampleCell()).go(20).go(8, without=["n2"])
    last = run.summaries[-1]
    assert [name for name, seen in last.nodes.items() if seen.stale] == ["n2"]
    assert last.nodes["n2"].last == pytest.approx(T0 + 19.1)
    assert last.columns["gpu.utilization_ratio.mean"][last.order.index("n2")] is None


def test_a_node_silent_for_an_hour_is_forgotten_and_says_why() -> None:
    run = Run(SampleCell(), Detector(DetectConfig(forget_after=20.0))).go(10).go(40, without=["n2"])
    assert run.anomalies[-1].phase is AnomalyPhase.CLOSED
    assert run.anomalies[-1].detail["closed_because"] == "node_forgotten"
    assert "n2" not in run.summaries[-1].nodes
    assert run.go(20).opened() == {("node/n2", "telemetry_stale")}


def test_cells_that_another_worker_took_over_are_dropped_without_a_word() -> None:
    run = Run(SampleCell()).go(60).go(5, {("n2", "gpu", "1", "power_watts"): 100.0})
    assert run.detector.open_anomalies == 1
    run.detector.forget([("test", "c1")])
    assert run.detector.open_anomalies == 0
    assert run.detector.tick(T0 + 200.0) == []
    said = len(run.anomalies)
    run.go(60)
    assert len(run.anomalies) == said
