from __future__ import annotations

import random

import msgspec
import pytest
from detect_samples import T0, Run, SampleCell
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_stream.detect.config import DetectConfig
from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.codec import PackedFrame

FAULT = {("n2", "gpu", "1", "sm_clock_hertz"): 1.2e9, ("n1", "rdma", "0", "link_downed_rate"): 1.0}
SHORT = DetectConfig(grace=2, warmup=6)


def arrivals(seed: int, lateness: float) -> list[tuple[float, PackedFrame]]:
    """Frames of a short run with a fault in it, each arriving up to `lateness` after its time."""
    cell, order = SampleCell(jobs=("llama",) * 4), random.Random(seed)
    frames = []
    for tick in range(16):
        for node in cell.nodes:
            frame = cell.frame(node, tick, FAULT if tick >= 8 else None, at=0.1)
            frames.append((frame.event_time + order.uniform(0, lateness), frame))
    return sorted(frames, key=lambda pair: pair[0])


def judged(frames: list[tuple[float, PackedFrame]]) -> tuple[list[Event], Detector]:
    detector, events = Detector(SHORT), []
    for at, frame in frames:
        events += detector.feed([frame], at)
    events += detector.tick(frames[-1][0] + 2.5)
    return sorted(events, key=lambda e: e.id), detector


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_the_order_of_frames_within_the_lateness_bound_changes_nothing(seed: int) -> None:
    expected, _ = judged(arrivals(0, 0.0))
    found, detector = judged(arrivals(seed, SHORT.lateness * 0.95))
    assert detector.counters.late == 0
    assert found == expected
    assert {e.metric for e in found if isinstance(e, Anomaly)} == {"sm_clock_hertz", "link_downed_rate"}


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.data())
def test_frames_that_come_twice_change_nothing(seed: int, data: st.DataObject) -> None:
    once = arrivals(seed, 0.5)
    again = data.draw(st.lists(st.sampled_from(range(len(once))), max_size=20))
    twice = sorted(once + [(once[i][0] + 0.3 * (i % 7), once[i][1]) for i in again], key=lambda pair: pair[0])
    expected, _ = judged(once)
    found, detector = judged(twice)
    assert found == expected
    assert detector.counters.duplicates == len(again)


def test_a_frame_of_a_judged_tick_is_counted_as_late_and_not_judged() -> None:
    run = Run(SampleCell()).go(60, without=["n5"])
    frame = run.cell.frame("n5", 50)
    assert run.detector.feed([frame], T0 + 60.0) == []
    assert run.detector.counters.late == 1
    assert run.detector.counters.duplicates == 0


def test_a_complete_tick_is_judged_at_once_and_not_at_the_end_of_the_lateness_bound() -> None:
    run = Run(SampleCell()).go(20)
    events = run.detector.feed(run.cell.tick(20), T0 + 20.15)
    assert [e.time for e in events] == [pytest.approx(T0 + 20.1)]


def test_one_silent_node_delays_a_tick_by_no_more_than_the_lateness_bound() -> None:
    run = Run(SampleCell()).go(20)
    assert run.detector.feed(run.cell.tick(20, without=["n0"]), T0 + 20.3) == []
    assert run.detector.feed(run.cell.tick(21, without=["n0"]), T0 + 21.3) == []
    judged_ticks = {int(e.time) - T0 for e in run.detector.feed(run.cell.tick(22, without=["n0"]), T0 + 22.3)}
    assert judged_ticks == {20}


def test_a_node_whose_clock_runs_ahead_is_set_aside_and_does_not_make_the_others_late() -> None:
    run = Run(SampleCell()).go(20)
    for tick in range(20, 30):
        frames = run.cell.tick(tick, without=["n0"])
        ahead = msgspec.structs.replace(run.cell.frame("n0", tick), time=T0 + tick + 600.0)
        run.take(run.detector.feed([ahead, *frames], T0 + tick + 0.3))
        run.take(run.detector.tick(T0 + tick + 0.8))
    assert run.detector.counters.future == 10
    assert run.detector.counters.late == 0
    assert run.opened() == {("node/n0", "telemetry_stale")}


@pytest.mark.parametrize(
    "spoil",
    [
        {"layout": b"not json", "layout_id": "x"},
        {"values": b"\0" * 16},
        {"shape": "another", "layout_id": "y"},
        {"layout_id": "not the id of the layout"},
    ],
)
def test_a_frame_that_cannot_be_read_is_handed_back_with_the_reason_and_stops_nothing(spoil: dict[str, object]) -> None:
    run = Run(SampleCell()).go(20)
    bad = msgspec.structs.replace(run.cell.frame("n0", 20), **spoil)
    stranger = msgspec.structs.replace(bad, cell="elsewhere", node="nobody")
    run.take(run.detector.feed([stranger, bad, *run.cell.tick(20, without=["n0"])], T0 + 20.3))
    rejected = run.detector.take_rejected()
    assert [frame for frame, _ in rejected] == [stranger, bad]
    assert all(reason for _, reason in rejected)
    assert run.detector.take_rejected() == []
    assert run.detector.counters.rejected == 2
    run.now += 1
    assert run.go(20).anomalies == []


def test_a_node_that_sends_only_unreadable_frames_counts_as_silent() -> None:
    run = Run(SampleCell()).go(20)
    for tick in range(20, 28):
        bad = msgspec.structs.replace(run.cell.frame("n0", tick), values=b"\0" * 8)
        run.take(run.detector.feed([bad, *run.cell.tick(tick, without=["n0"])], T0 + tick + 0.3))
        run.take(run.detector.tick(T0 + tick + 0.8))
    assert run.opened() == {("node/n0", "telemetry_stale")}


def test_a_backlog_read_in_one_go_gives_the_anomalies_of_the_live_run() -> None:
    live = Run(SampleCell()).go(60).go(20, FAULT)
    frames = [f for tick in range(80) for f in live.cell.tick(tick, FAULT if tick >= 60 else None)]
    detector = Detector()
    events = detector.feed(frames, T0 + 5000.0)
    events += detector.tick(T0 + 5001.0)
    assert [e for e in events if isinstance(e, Anomaly)] == live.anomalies
    assert live.anomalies


def test_a_node_that_reports_two_frames_in_one_second_is_judged_by_the_later_one() -> None:
    run = Run(SampleCell()).go(60)
    for tick in range(60, 66):
        early = run.cell.frame("n2", tick, {("n2", "gpu", "1", "sm_clock_hertz"): 1e9}, at=0.1)
        late = msgspec.structs.replace(run.cell.frame("n2", tick, at=0.2), seq=tick + 1)
        for pair in ([early, late], [late, early])[tick % 2 :]:
            run.take(run.detector.feed([*pair, *run.cell.tick(tick, without=["n2"])], T0 + tick + 0.3))
            break
    assert run.anomalies == []
