"""The compact frame carries what the model says, and bad bytes are refused with a reason."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.events.codec import FrameError, pack, read_layout, unpack, unpack_full
from gpuchaos_stream.events.frame import FrameLayout, GroupLayout, TelemetryFrame

values = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=True))
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def frames(draw: st.DrawFn) -> TelemetryFrame:
    groups, columns = [], []
    for kind in draw(st.lists(st.sampled_from(["gpu", "rdma", "numa", "process"]), max_size=3)):
        ids = draw(st.lists(names, max_size=4, unique=True))
        metrics = draw(st.lists(names, max_size=4, unique=True))
        groups.append(GroupLayout(kind=kind, ids=tuple(ids), metrics=tuple(metrics), labels={"job": ("",) * len(ids)}))
        columns.append(
            tuple(tuple(draw(st.lists(values, min_size=len(ids), max_size=len(ids)))) for _ in metrics),
        )
    return TelemetryFrame(
        cluster="c",
        cell=draw(names),
        node=draw(names),
        boot="b",
        seq=draw(st.integers(0, 2**40)),
        time=draw(st.floats(0, 4e9)),
        clock_offset_s=draw(st.none() | st.floats(-10, 10)),
        dropped=draw(st.integers(0, 1000)),
        absent={"gpu": "no driver"},
        layout=FrameLayout(groups=tuple(groups)),
        values=tuple(columns),
    )


@given(frames())
def test_frame_survives_the_wire(frame: TelemetryFrame) -> None:
    assert unpack_full(pack(frame)) == frame


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_never_raised_otherwise(data: bytes) -> None:
    with pytest.raises(FrameError):
        unpack(data)


@given(frames(), st.data())
def test_cut_frame_is_refused(frame: TelemetryFrame, data: st.DataObject) -> None:
    whole = pack(frame)
    with pytest.raises(FrameError):
        read_layout(unpack(whole[: data.draw(st.integers(0, len(whole) - 1))]))


def test_values_that_do_not_fill_the_layout_are_refused() -> None:
    layout = FrameLayout(groups=(GroupLayout(kind="gpu", ids=("0",), metrics=("power_watts",)),))
    frame = TelemetryFrame(
        cluster="c", cell="c1", node="n", boot="b", seq=0, time=1.0, layout=layout, values=(((1.0,),),)
    )
    packed = unpack(pack(frame))
    broken = type(packed)(*[getattr(packed, f) for f in packed.__struct_fields__[:-1]], b"\0" * 16)
    with pytest.raises(FrameError, match="layout of 1 numbers, values of 2"):
        read_layout(broken)


@pytest.mark.parametrize("time", [math.nan, math.inf, -1.0])
def test_time_that_is_no_time_is_refused(time: float) -> None:
    frame = TelemetryFrame(
        cluster="c", cell="c1", node="n", boot="b", seq=0, time=1.0, layout=FrameLayout(groups=()), values=()
    )
    with pytest.raises(FrameError, match="no time"):
        unpack(pack(frame.model_copy(update={"time": time})))
