"""Numbers of several ticks are read at once, and summaries are written without their model: neither may show."""

from __future__ import annotations

import json
from itertools import pairwise

from detect_samples import T0, Run, SampleCell, Where
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuchaos_stream.detect.config import DetectConfig
from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.detect.summary import Summary
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyKind, AnomalyPhase
from gpuchaos_stream.events.base import Event, Severity
from gpuchaos_stream.events.codec import PackedFrame
from gpuchaos_stream.events.observation import CellSummary, NodeSeen

Changes = dict[Where, float | None]

SHORT = DetectConfig(grace=2, warmup=6, update_every=3.0)
TICKS = 44
SLOW_GPU: Changes = {("n2", "gpu", "1", "sm_clock_hertz"): 1.2e9}
SLOW_JOB: Changes = {(None, "process", None, "step_time_seconds"): 2.0}
UNREAD: Changes = {("n1", "gpu", None, "power_watts"): None}


def story() -> list[PackedFrame]:
    """Two cells in the order of time: a slow GPU, numbers not read, a node that changes its job, a slow job."""
    still = SampleCell(jobs=("llama",) * 5, cell="c2")
    before = SampleCell(jobs=("llama", "llama", "llama", "llama", "qwen"))
    after = SampleCell(jobs=("llama", "llama", "llama", "llama", "llama"))
    frames = []
    for tick in range(TICKS):
        cell = before if tick < 20 else after
        changes: Changes = {**(SLOW_GPU if 14 <= tick < 26 else {}), **(UNREAD if tick == 18 else {})}
        frames += cell.tick(tick, changes)
        frames += still.tick(tick, SLOW_JOB if 27 <= tick < 35 else None)
    return frames


def known(entity: str, metric: str) -> Anomaly:
    """An anomaly that another worker opened a while ago."""
    return Anomaly(
        id=f"old {entity}",
        time=T0 - 20.0,
        cluster="test",
        anomaly_id=f"old {entity}",
        phase=AnomalyPhase.OPENED,
        kind=AnomalyKind.PEER,
        metric=metric,
        entity=entity,
        node=entity.split("/")[1],
        cell="c1",
        job=None,
        start=T0 - 20.0,
        severity=Severity.WARNING,
        score=9.0,
    )


def said(cuts: list[int]) -> list[Event]:
    """All events of the story, fed in pieces that end at `cuts`."""
    frames, detector, events = story(), Detector(SHORT), []
    detector.adopt([known("gpu/n2/1", "sm_clock_hertz"), known("gpu/n4/0", "power_watts")])
    for start, stop in pairwise([0, *cuts, len(frames)]):
        if start < stop:
            events += detector.feed(frames[start:stop], frames[stop - 1].event_time + 0.2)
    events += detector.tick(frames[-1].event_time + 2.5)
    return sorted(events, key=lambda event: event.id)


@example([])
@example([137])
@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 10 * TICKS - 1), max_size=12, unique=True).map(sorted))
def test_how_many_ticks_come_at_once_changes_nothing(cuts: list[int]) -> None:
    one_by_one = said(list(range(10, 10 * TICKS, 10)))
    assert said(cuts) == one_by_one


def test_the_story_has_in_it_what_could_go_wrong() -> None:
    anomalies = [event for event in said([]) if isinstance(event, Anomaly)]
    phases = {(a.metric, a.phase.value) for a in anomalies}
    assert {("sm_clock_hertz", "updated"), ("sm_clock_hertz", "closed"), ("step_time_seconds", "opened")} <= phases
    assert ("power_watts", "closed") in phases  # adopted and not found again
    assert "not_found_after_restart" in {a.detail.get("closed_because") for a in anomalies}


def test_summaries_of_a_cell_are_told_in_the_order_of_time() -> None:
    frames = story()
    summaries = [e for e in Detector(SHORT).feed(frames, frames[-1].event_time) if isinstance(e, CellSummary)]
    for cell in ("c1", "c2"):
        times = [summary.time for summary in summaries if summary.cell == cell]
        assert times == sorted(times)
        assert len(times) == len(set(times)) > TICKS - 5


def test_a_packed_summary_has_the_fields_and_defaults_of_its_model() -> None:
    assert tuple(Summary.__struct_fields__) == tuple(CellSummary.model_fields)
    assert Summary.__struct_defaults__ is not None
    run = Run(SampleCell(jobs=("llama", "", "qwen", "llama"))).go(12, UNREAD).go(4, without=["n3"])
    events = run.detector.feed_packed(run.cell.tick(run.now), T0 + run.now + 2.5)
    packed = [event for event in events if isinstance(event, Summary)]
    assert packed
    for summary in packed:
        model = summary.event()
        assert json.loads(model.model_dump_json()) == json.loads(summary.encode())
        assert set(json.loads(summary.encode())["nodes"]["n0"]) == set(NodeSeen.model_fields)
