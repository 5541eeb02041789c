"""The frame on the wire: a MessagePack array whose numbers are one little-endian float64 block.

Why not JSON: a detect worker reads tens of thousands of frames a second, and 240 numbers as text cost more
than everything else it does. The layout travels in each frame, so that each can be read alone, but as a
block of bytes that a reader who has seen its id need not open. NaN stands for "not read".
"""

from __future__ import annotations

import math
import sys
from array import array
from typing import Final

import msgspec

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.frame import FrameLayout, TelemetryFrame

CONTENT_TYPE: Final = "application/vnd.gpuchaos.frame+msgpack"

_NAN: Final = math.nan


class FrameError(ValueError):
    """A frame that cannot be read; the text says what is wrong with it."""


class PackedFrame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A frame as it travels. `values` holds `layout.width` float64, group by group, metric by metric."""

    schema_version: int
    cluster: str
    cell: str
    node: str
    boot: str
    seq: int
    time: float
    clock_offset_s: float | None
    dropped: int
    absent: dict[str, str]
    layout_id: str
    shape: str
    layout: bytes
    values: bytes

    @property
    def event_time(self) -> float:
        """`time` on the broker's clock, seconds."""
        return self.time + (self.clock_offset_s or 0.0)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(PackedFrame)


class PackedLayout:
    """A layout with the ids and bytes that every frame of it repeats; make one per change, not one per frame."""

    __slots__ = ("blob", "layout", "layout_id", "shape", "width")

    def __init__(self, layout: FrameLayout) -> None:
        self.layout = layout
        self.blob = layout.model_dump_json().encode()
        self.layout_id = stable_id(self.blob)
        self.shape = layout.shape
        self.width = layout.width


def pack(frame: TelemetryFrame, layout: PackedLayout | None = None) -> bytes:
    """The frame's bytes. `layout` saves making its ids again; it must be the frame's own."""
    packed = layout if layout is not None and layout.layout == frame.layout else PackedLayout(frame.layout)
    numbers = array("d")
    for columns in frame.values:
        for column in columns:
            numbers.extend(_NAN if value is None else value for value in column)
    if sys.byteorder == "big":
        numbers.byteswap()
    return _ENCODER.encode(
        PackedFrame(
            schema_version=frame.schema_version,
            cluster=frame.cluster,
            cell=frame.cell,
            node=frame.node,
            boot=frame.boot,
            seq=frame.seq,
            time=frame.time,
            clock_offset_s=frame.clock_offset_s,
            dropped=frame.dropped,
            absent=frame.absent,
            layout_id=packed.layout_id,
            shape=packed.shape,
            layout=packed.blob,
            values=numbers.tobytes(),
        )
    )


def unpack(data: bytes) -> PackedFrame:
    """Reads the envelope of a frame and leaves its numbers and layout as bytes.

    Raises:
        FrameError: not MessagePack, not a frame, another version, or a time that is no time.
    """
    try:
        frame = _DECODER.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"not a telemetry frame: {error}") from error
    if frame.schema_version != 1:
        raise FrameError(f"frame version {frame.schema_version}; this reader knows 1")
    if len(frame.values) % 8:
        raise FrameError(f"values: {len(frame.values)} bytes are no whole number of float64")
    if not (math.isfinite(frame.time) and frame.time >= 0 and math.isfinite(frame.clock_offset_s or 0.0)):
        raise FrameError(f"time {frame.time!r} with offset {frame.clock_offset_s!r} is no time")
    if not (frame.node and frame.cell and frame.cluster):
        raise FrameError("node, cell and cluster must not be empty")
    return frame


def read_layout(frame: PackedFrame) -> FrameLayout:
    """Opens the layout block and checks that the numbers fill it.

    Raises:
        FrameError: the block is no layout, or its width is not that of the values.
    """
    try:
        layout = FrameLayout.model_validate_json(frame.layout)
    except ValueError as error:
        raise FrameError(f"layout: {error}") from error
    if layout.width * 8 != len(frame.values):
        raise FrameError(f"layout of {layout.width} numbers, values of {len(frame.values) // 8}")
    if stable_id(frame.layout) != frame.layout_id or layout.shape != frame.shape:
        raise FrameError("layout_id or shape is not the one of the layout")
    return layout


def unpack_full(data: bytes) -> TelemetryFrame:
    """The whole frame as its model: for tools and tests, not for the hot path.

    Raises:
        FrameError: see `unpack` and `read_layout`.
    """
    packed = unpack(data)
    layout = read_layout(packed)
    numbers = array("d")
    numbers.frombytes(packed.values)
    if sys.byteorder == "big":
        numbers.byteswap()
    at = 0
    groups: list[tuple[tuple[float | None, ...], ...]] = []
    for group in layout.groups:
        width = len(group.ids)
        columns: list[tuple[float | None, ...]] = []
        for _ in group.metrics:
            columns.append(tuple(None if math.isnan(v) else v for v in numbers[at : at + width]))
            at += width
        groups.append(tuple(columns))
    return TelemetryFrame(
        cluster=packed.cluster,
        cell=packed.cell,
        node=packed.node,
        boot=packed.boot,
        seq=packed.seq,
        time=packed.time,
        clock_offset_s=packed.clock_offset_s,
        dropped=packed.dropped,
        absent=packed.absent,
        layout=layout,
        values=tuple(groups),
    )
