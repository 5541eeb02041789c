"""The telemetry frame: one node, one tick, a column per metric over the devices of a kind.

This model defines the frame. `codec.py` is its compact form on the wire; both carry the same numbers.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from gpuchaos_stream.events.base import Timestamp, Wire, stable_id

Kind = Literal["node", "gpu", "rdma", "numa", "nvlink", "process"]


class GroupLayout(Wire):
    """Devices of one kind on one node and what is measured on each: the part of a frame that seldom changes.

    `labels` are per device and name what it belongs to (`job`, `rail`, `pci`…), one value for each of `ids`
    (an empty string where it belongs to nothing). `job` decides whom the device is compared with.
    """

    kind: Kind
    ids: tuple[str, ...] = Field(description="local ids, unique in the group: GPU index, port name, NUMA node, pid")
    metrics: tuple[str, ...] = Field(description="names from events/metrics.py")
    labels: dict[str, tuple[str, ...]] = {}

    @model_validator(mode="after")
    def _labels_fit(self) -> Self:
        if len(set(self.ids)) != len(self.ids):
            raise ValueError(f"{self.kind}: ids are not unique")
        for name, values in self.labels.items():
            if len(values) != len(self.ids):
                raise ValueError(f"{self.kind}: label {name!r} has {len(values)} values for {len(self.ids)} ids")
        return self


class FrameLayout(Wire):
    """All groups of a frame, in the order in which their values are packed."""

    groups: tuple[GroupLayout, ...]

    @property
    def width(self) -> int:
        """How many numbers a frame of this layout holds."""
        return sum(len(group.ids) * len(group.metrics) for group in self.groups)

    @property
    def shape(self) -> str:
        """Id of the shape alone (kinds, metrics, how many devices): frames of equal shape stack into a matrix."""
        return stable_id(*((g.kind, len(g.ids), g.metrics) for g in self.groups))


class TelemetryFrame(Wire):
    """What one node says of itself in one tick.

    `values[g][m][d]` is metric `m` of device `d` in group `g` of the layout; None where it could not be
    read, which is never zero. `absent` says in words why a whole kind is missing (`gpu: driver not loaded`).
    `clock_offset_s` is what to add to this node's clock to get the broker's, None until measured;
    `time` is the node's own clock, so `time + (clock_offset_s or 0)` is event time.
    """

    schema_version: Literal[1] = 1
    cluster: str
    cell: str
    node: str
    boot: str = Field(description="id of this run of the agent; seq starts at 0 with it")
    seq: int = Field(ge=0)
    time: Timestamp
    clock_offset_s: float | None = None
    dropped: int = Field(default=0, ge=0, description="frames dropped since `boot` because the broker was away")
    absent: dict[str, str] = {}
    layout: FrameLayout
    values: tuple[tuple[tuple[float | None, ...], ...], ...]

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        if len(self.values) != len(self.layout.groups):
            raise ValueError(f"{len(self.values)} groups of values for {len(self.layout.groups)} groups in the layout")
        for group, columns in zip(self.layout.groups, self.values, strict=True):
            if len(columns) != len(group.metrics):
                raise ValueError(f"{group.kind}: {len(columns)} columns for {len(group.metrics)} metrics")
            for metric, column in zip(group.metrics, columns, strict=True):
                if len(column) != len(group.ids):
                    raise ValueError(f"{group.kind}.{metric}: {len(column)} values for {len(group.ids)} ids")
        return self

    @property
    def event_time(self) -> float:
        """`time` on the broker's clock, seconds."""
        return self.time + (self.clock_offset_s or 0.0)
