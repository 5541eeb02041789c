from __future__ import annotations

import math
from array import array

from detect_samples import T0, Run, SampleCell
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.detect.layout import WIDEST
from gpuchaos_stream.events.codec import PackedFrame, PackedLayout
from gpuchaos_stream.events.frame import FrameLayout, GroupLayout
from gpuchaos_stream.events.metrics import METRICS

KINDS = st.sampled_from(["node", "gpu", "rdma", "numa", "nvlink", "process"])
NAMES = st.one_of(st.sampled_from(sorted({name for _, name in METRICS})), st.text(max_size=5))
TEXT = st.text(max_size=6)


@st.composite
def layouts(draw: st.DrawFn) -> FrameLayout:
    groups = []
    for _ in range(draw(st.integers(0, 4))):
        ids = tuple(draw(st.lists(TEXT, max_size=5, unique=True)))
        labels = {name: tuple(draw(TEXT) for _ in ids) for name in draw(st.sets(st.sampled_from(["job", "role"])))}
        metrics = tuple(draw(st.lists(NAMES, max_size=5)))
        groups.append(GroupLayout(kind=draw(KINDS), ids=ids, metrics=metrics, labels=labels))
    return FrameLayout(groups=tuple(groups))


def packed(layout: FrameLayout, number: float, **changes: object) -> PackedFrame:
    made = PackedLayout(layout)
    fields = {
        "schema_version": 1,
        "cluster": "test",
        "cell": "c",
        "node": "n",
        "boot": "b",
        "seq": 0,
        "time": float(T0),
        "clock_offset_s": None,
        "dropped": 0,
        "absent": {},
        "layout_id": made.layout_id,
        "shape": made.shape,
        "layout": made.blob,
        "values": array("d", [number] * made.width).tobytes(),
        **changes,
    }
    return PackedFrame(**fields)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(layouts(), st.sampled_from(["n", "m", "o/o", " "])), min_size=1, max_size=4),
    st.lists(st.one_of(st.floats(width=64), st.just(1.0)), min_size=1, max_size=6),
)
def test_no_layout_and_no_number_stops_the_detector(made: list[tuple[FrameLayout, str]], numbers: list[float]) -> None:
    detector = Detector()
    for tick in range(14):
        frames = [
            packed(layout, numbers[tick % len(numbers)], node=node, time=float(T0 + tick)) for layout, node in made
        ]
        for event in detector.feed(frames, T0 + tick + 0.5):
            event.model_dump_json()
    detector.tick(T0 + 30.0)
    assert detector.counters.frames == 14 * len(made)
    assert detector.counters.rejected == 0


def test_frames_that_ask_for_too_much_are_refused_with_the_reason() -> None:
    run = Run(SampleCell()).go(10)
    wide = FrameLayout(
        groups=(GroupLayout(kind="gpu", ids=tuple(map(str, range(WIDEST + 1))), metrics=("power_watts",)),)
    )
    named = run.cell.layout("n0")
    frames = [packed(wide, 1.0, time=T0 + 10.0), packed(named, math.nan, cluster="x" * 101, time=T0 + 10.0)]
    assert run.detector.feed(frames, T0 + 10.2) == []
    reasons = [reason for _, reason in run.detector.take_rejected()]
    assert "at most 20000" in reasons[0]
    assert "cluster name" in reasons[1]
