"""A small cell whose every number is known: what tests feed to the detector."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyPhase
from gpuchaos_stream.events.codec import PackedFrame, pack, unpack
from gpuchaos_stream.events.frame import FrameLayout, GroupLayout, TelemetryFrame
from gpuchaos_stream.events.observation import CellSummary

T0 = 1_700_000_000

HEALTHY: dict[str, dict[str, float]] = {
    "node": {"cpu_busy_ratio": 0.4, "pressure_memory_ratio": 0.01},
    "gpu": {
        "utilization_ratio": 0.95,
        "temperature_celsius": 60.0,
        "power_watts": 600.0,
        "sm_clock_hertz": 1.9e9,
        "ecc_uncorrected_rate": 0.0,
    },
    "rdma": {"port_active": 1.0, "tx_bytes_rate": 2e10, "link_downed_rate": 0.0},
    "process": {"steps_rate": 1.0, "step_time_seconds": 1.0, "progress_age_seconds": 0.5, "running": 1.0},
}
IDLE: dict[str, float] = {"utilization_ratio": 0.0, "power_watts": 75.0, "temperature_celsius": 35.0}

_MADE: dict[object, PackedFrame] = {}

#: (node, kind, device id, metric); None as node or device id means all of them.
Where = tuple[str | None, str, str | None, str]


@dataclass
class SampleCell:
    """Nodes `n0`… with 4 GPUs and 4 ports each; `jobs[i]` is node i's job, empty where it is idle."""

    jobs: tuple[str, ...] = ("llama",) * 6
    cell: str = "c1"
    seed: int = 7
    noise: float = 0.01
    gone: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    unused_port: str | None = None

    def __post_init__(self) -> None:
        self.nodes = tuple(f"n{i}" for i in range(len(self.jobs)))

    def layout(self, node: str) -> FrameLayout:
        index = self.nodes.index(node)
        job = self.jobs[index]
        gone = self.gone.get(node, set())
        groups = []
        for kind, metrics in HEALTHY.items():
            ids = {"node": ["0"], "process": [f"{100 * index + d}" for d in range(4)] if job else []}.get(
                kind, ["0", "1", "2", "3"]
            )
            ids = [i for i in ids if (kind, i) not in gone]
            labels = {} if kind == "node" else {"job": (job,) * len(ids)}
            groups.append(GroupLayout(kind=kind, ids=tuple(ids), metrics=tuple(metrics), labels=labels))
        return FrameLayout(groups=tuple(groups))

    def frame(
        self, node: str, tick: int, changes: Mapping[Where, float | None] | None = None, *, at: float = 0.1
    ) -> PackedFrame:
        """The frame of `node` at `T0 + tick + at`; equal arguments make equal frames."""
        gone = tuple(sorted((n, tuple(sorted(what))) for n, what in self.gone.items()))
        shape = (self.jobs, self.cell, self.seed, self.noise, gone, self.unused_port)
        key = (shape, node, tick, at, tuple((changes or {}).items()))
        if key not in _MADE:
            _MADE[key] = self._frame(node, tick, changes, at)
        return _MADE[key]

    def _frame(self, node: str, tick: int, changes: Mapping[Where, float | None] | None, at: float) -> PackedFrame:
        noise = random.Random(f"{self.seed}/{self.cell}/{node}/{tick}")
        layout = self.layout(node)
        groups = []
        for group in layout.groups:
            columns = []
            for metric in group.metrics:
                column = []
                for device in group.ids:
                    level = HEALTHY[group.kind][metric]
                    if group.kind == "gpu" and not self.jobs[self.nodes.index(node)]:
                        level = IDLE.get(metric, level)
                    if self.unused_port == device and group.kind == "rdma":
                        level = 0.0
                    spread = 0.0 if metric in {"port_active", "running"} else self.noise
                    value: float | None = level * (1 + spread * noise.gauss(0, 1))
                    for (n, k, d, m), new in (changes or {}).items():
                        if (n in {None, node}) and k == group.kind and (d in {None, device}) and m == metric:
                            value = None if new is None else new
                    column.append(value)
                columns.append(tuple(column))
            groups.append(tuple(columns))
        return unpack(
            pack(
                TelemetryFrame(
                    cluster="test",
                    cell=self.cell,
                    node=node,
                    boot="b1",
                    seq=tick,
                    time=T0 + tick + at,
                    layout=layout,
                    values=tuple(groups),
                )
            )
        )

    def tick(
        self,
        tick: int,
        changes: Mapping[Where, float | None] | None = None,
        *,
        without: Iterable[str] = (),
    ) -> list[PackedFrame]:
        """All nodes' frames of one tick."""
        return [self.frame(node, tick, changes) for node in self.nodes if node not in set(without)]


class Run:
    """A detector fed second by second, and all that it said."""

    def __init__(self, cell: SampleCell, detector: Detector | None = None) -> None:
        self.cell = cell
        self.detector = detector or Detector()
        self.now = 0
        self.anomalies: list[Anomaly] = []
        self.summaries: list[CellSummary] = []

    def take(self, events: Iterable[object]) -> None:
        for event in events:
            if isinstance(event, Anomaly):
                self.anomalies.append(event)
            else:
                assert isinstance(event, CellSummary)
                self.summaries.append(event)

    def go(
        self, ticks: int, changes: Mapping[Where, float | None] | None = None, *, without: Iterable[str] = ()
    ) -> Run:
        without = tuple(without)
        for _ in range(ticks):
            frames = self.cell.tick(self.now, changes, without=without)
            self.take(self.detector.feed(frames, T0 + self.now + 0.3))
            self.take(self.detector.tick(T0 + self.now + 0.8))
            self.now += 1
        return self

    def opened(self) -> set[tuple[str, str]]:
        return {(a.entity, a.metric) for a in self.anomalies if a.phase is AnomalyPhase.OPENED}

    def of(self, entity: str, metric: str) -> list[Anomaly]:
        return [a for a in self.anomalies if (a.entity, a.metric) == (entity, metric)]
