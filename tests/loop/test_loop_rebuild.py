"""A worker that has just been started reads one partition's past after another: those that wait are not silent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyPhase
from gpuchaos_stream.events.envelope import Record, from_value
from gpuchaos_stream.loop.detection import Detection
from gpuchaos_stream.observe import metrics
from gpuchaos_stream.sim.cluster import SimulatedCluster
from gpuchaos_stream.sim.spec import ClusterSpec

T0 = 1_796_000_000.0
CELLS = ("c0", "c1")


@dataclass(frozen=True)
class Raw:
    value: bytes
    partition: int
    timestamp: int
    topic: str = topics.TELEMETRY.name
    offset: int = 0
    key: bytes | None = b"k"
    headers: tuple[tuple[str, bytes], ...] = ()


class Stage:
    """A detect stage over two cells, each in a partition of its own; both have been heard for ten seconds."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(ClusterSpec(nodes=8, cells=2), np.random.default_rng(1), run="1")
        self.detection = Detection(source="/test")
        for second in range(10):
            self.detection.take(self.frames(T0 + second, CELLS))
            self.detection.tick(T0 + second + 0.5)

    def frames(self, at: float, cells: Iterable[str]) -> list[Raw]:
        sent = self.cluster.step(at)
        return [Raw(each.value, CELLS.index(each.cell), int(at * 1000)) for each in sent if each.cell in cells]


def silent(records: Iterable[Record]) -> set[str]:
    found = [from_value(each.topic.name, each.value) for each in records if each.topic is topics.ANOMALIES]
    return {
        each.entity
        for each in found
        if isinstance(each, Anomaly) and each.metric == "telemetry_stale" and each.phase is AnomalyPhase.OPENED
    }


def test_a_cell_whose_frames_wait_behind_another_partitions_past_is_not_silent() -> None:
    stage = Stage()
    said = []
    waiting = []
    with stage.detection.rebuilding():
        for second in range(10, 22):
            waiting += stage.frames(T0 + second, CELLS)
            said += stage.detection.tick(T0 + second + 0.5)
    said += stage.detection.tick(T0 + 22)
    said += stage.detection.take(waiting)
    said += stage.detection.tick(T0 + 22.5)
    assert silent(said) == set()


def test_a_cell_that_falls_silent_is_found_once_the_past_is_read() -> None:
    stage = Stage()
    with stage.detection.rebuilding():
        stage.detection.tick(T0 + 12)
    said = []
    for second in range(13, 25):
        said += stage.detection.take(stage.frames(T0 + second, ("c1",)))
        said += stage.detection.tick(T0 + second + 0.5)
    assert silent(said) == {"cell/c0"}


def test_a_cell_that_is_another_workers_now_leaves_no_number_behind() -> None:
    def shown() -> set[str]:
        (family,) = metrics.FRAMES_LATE.collect()
        return {sample.labels["partition"] for sample in family.samples}

    stage = Stage()
    assert {"0", "1"} <= shown()
    stage.detection.keep({0})
    assert shown() & {"0", "1"} == {"0"}
