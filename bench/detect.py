"""Detect: what it costs beside decoding alone, and how good it is on a synthetic cluster.

python bench/detect.py                     frames/s of decode + detect beside decode alone, as ratios, and how the
                                           cost of a frame changes with the size of a cell
python bench/detect.py --quality           false alarms per node-day, recall, average precision beside random
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.detect.summary import Summary
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyPhase
from gpuchaos_stream.events.codec import PackedFrame, PackedLayout, unpack
from gpuchaos_stream.events.frame import FrameLayout, GroupLayout, Kind
from gpuchaos_stream.events.metrics import METRICS
from gpuchaos_stream.loop.detection import BATCH

START: Final = 1_700_000_000
#: Ticks until every baseline is known.
WARM: Final = 70
#: How long an injected fault lasts, and how far apart two of them begin, ticks.
LASTS: Final = 30
GAP: Final = 40
DEVICES: Final[dict[Kind, int]] = {"node": 1, "gpu": 8, "rdma": 8, "numa": 2, "process": 8}

#: Healthy values of a busy device: (level, relative noise). What is not here is zero.
HEALTHY: Final[dict[tuple[str, str], tuple[float, float]]] = {
    ("node", "cpu_busy_ratio"): (0.4, 0.05),
    ("node", "memory_available_ratio"): (0.5, 0.01),
    ("node", "load1"): (60, 0.05),
    ("node", "pressure_memory_ratio"): (0.01, 0.3),
    ("gpu", "utilization_ratio"): (0.95, 0.02),
    ("gpu", "memory_used_bytes"): (7e10, 0.01),
    ("gpu", "memory_total_bytes"): (8e10, 0.0),
    ("gpu", "temperature_celsius"): (62, 0.015),
    ("gpu", "power_watts"): (620, 0.03),
    ("gpu", "sm_clock_hertz"): (1.9e9, 0.01),
    ("gpu", "nvlink_tx_bytes_rate"): (1.5e11, 0.03),
    ("rdma", "port_active"): (1, 0.0),
    ("rdma", "rate_bits"): (4e11, 0.0),
    ("rdma", "rx_bytes_rate"): (3e10, 0.04),
    ("rdma", "tx_bytes_rate"): (3e10, 0.04),
    ("rdma", "out_of_sequence_rate"): (2, 0.5),
    ("rdma", "cnp_handled_rate"): (100, 0.3),
    ("numa", "memory_free_bytes"): (2e11, 0.01),
    ("numa", "local_rate"): (5e5, 0.05),
    ("numa", "remote_rate"): (2e3, 0.3),
    ("process", "steps_rate"): (1.0, 0.02),
    ("process", "step_time_seconds"): (1.0, 0.02),
    ("process", "progress_age_seconds"): (0.5, 0.3),
    ("process", "running"): (1, 0.0),
}

#: What is injected in the quality run: (kind, metric, factor or None for zero); each on one device.
INJECTED: Final[tuple[tuple[str, str, float], ...]] = (
    ("gpu", "utilization_ratio", 0.6),
    ("gpu", "power_watts", 0.7),
    ("gpu", "sm_clock_hertz", 0.75),
    ("gpu", "temperature_celsius", 1.3),
    ("rdma", "tx_bytes_rate", 0.5),
    ("rdma", "port_active", 0.0),
    ("process", "step_time_seconds", 1.15),
    ("process", "step_time_seconds", 1.5),
    ("process", "running", 0.0),
)


@dataclass(frozen=True)
class Column:
    """Where one metric's devices lie in a frame."""

    kind: str
    name: str
    start: int
    stop: int


class Cluster:
    """A healthy cluster with noise, drift and jobs; `frame_bytes` are made without the detector's help."""

    def __init__(self, nodes: int, per_cell: int, seed: int, tails: str = "normal") -> None:
        self.tails = tails
        self.rng = np.random.default_rng(seed)
        self.names = [f"n{i:04}" for i in range(nodes)]
        self.cells = [f"c{i // per_cell:03}" for i in range(nodes)]
        self.layouts: list[PackedLayout] = []
        for i in range(nodes):
            job = f"job{i // per_cell}-{i % 2}"
            groups = tuple(
                GroupLayout(
                    kind=kind,
                    ids=tuple(f"{1000 * i + d}" if kind == "process" else str(d) for d in range(devices)),
                    metrics=tuple(name for k, name in METRICS if k == kind),
                    labels={} if kind in {"node", "numa"} else {"job": (job,) * devices},
                )
                for kind, devices in DEVICES.items()
            )
            self.layouts.append(PackedLayout(FrameLayout(groups=groups)))
        self.columns: list[Column] = []
        at = 0
        for group in self.layouts[0].layout.groups:
            for name in group.metrics:
                self.columns.append(Column(group.kind, name, at, at + len(group.ids)))
                at += len(group.ids)
        self.width = at
        self.level, self.noise = np.zeros(at), np.zeros(at)
        for c in self.columns:
            level, noise = HEALTHY.get((c.kind, c.name), (0.0, 0.0))
            self.level[c.start : c.stop], self.noise[c.start : c.stop] = level, noise
        # No two devices are alike: half a per cent of lasting difference.
        self.own = 1 + 0.005 * self.rng.standard_normal((nodes, at)) * (self.noise > 0)

    def values(self, tick: int) -> NDArray[np.float64]:
        """One tick of all nodes, (nodes, width): noise, and 2 % of drift over a day."""
        drift = 1 + 0.02 * np.sin(2 * np.pi * tick / 86_400) * (self.noise > 0)
        size = (len(self.names), self.width)
        # Student's t with 3 degrees of freedom, scaled to the same deviation: real noise has outliers.
        wild = self.rng.standard_normal(size) if self.tails == "normal" else self.rng.standard_t(3, size) / 3**0.5
        noise = 1 + self.noise * wild
        values: NDArray[np.float64] = np.maximum(self.level * self.own * drift * noise, 0.0)
        return values

    def frames(self, tick: int, values: NDArray[np.float64]) -> list[PackedFrame]:
        """The frames of `values` at `tick`."""
        return [
            PackedFrame(
                schema_version=1,
                cluster="bench",
                cell=self.cells[i],
                node=name,
                boot="b",
                seq=tick,
                time=START + tick + 0.1,
                clock_offset_s=0.001,
                dropped=0,
                absent={},
                layout_id=self.layouts[i].layout_id,
                shape=self.layouts[i].shape,
                layout=self.layouts[i].blob,
                values=values[i].astype("<f8").tobytes(),
            )
            for i, name in enumerate(self.names)
        ]


def throughput(nodes: int, per_cell: int, ticks: int, fetch: int, rounds: int = 3) -> float:
    """Prints frames/s of decode, and of decode + detect + the encoding of what is said, over the same bytes: CPU
    time, the best of `rounds`. Returns the latter as microseconds a frame.
    """
    cluster = Cluster(nodes, per_cell, seed=1)
    encoder = msgspec.msgpack.Encoder()
    warm = [cluster.frames(tick, cluster.values(tick)) for tick in range(WARM)]
    records = [
        encoder.encode(frame)
        for tick in range(WARM, WARM + ticks)
        for frame in cluster.frames(tick, cluster.values(tick))
    ]
    now = START + WARM + ticks + 5.0
    batches = [records[at : at + fetch] for at in range(0, len(records), fetch)]
    alone, both, detector = [], [], Detector()
    for _ in range(rounds):
        begin = time.process_time()
        for batch in batches:
            _ = [unpack(record) for record in batch]
        alone.append(time.process_time() - begin)
        detector = Detector()
        for tick, frames in enumerate(warm):
            detector.feed(frames, START + tick + 0.2)
        detector.feed([], now)
        gc.collect()
        begin = time.process_time()
        for batch in batches:
            for event in detector.feed_packed([unpack(record) for record in batch], now):
                _ = event.encode() if isinstance(event, Summary) else event.model_dump_json()
        both.append(time.process_time() - begin)
    count = len(records)
    decode, detect = min(alone) / count * 1e6, min(both) / count * 1e6
    print(
        f"{nodes} nodes, {per_cell:3} a cell, {fetch:4} a fetch, {cluster.width} numbers a frame: decode alone "
        f"{1e6 / decode:7.0f} frames/s, decode + detect {1e6 / detect:6.0f} frames/s, ratio {decode / detect:.2f} "
        f"({decode:.2f} and {detect:.2f} us a frame, {cluster.width / detect:.0f} M numbers/s)"
    )
    return detect


@dataclass(frozen=True)
class Injection:
    """One device made bad for `LASTS` ticks from `tick` on."""

    tick: int
    node: int
    device: int
    column: Column
    factor: float


def quality(nodes: int, hours: float, seed: int, tails: str) -> None:
    """Prints false alarms on a healthy run, and recall, latency and average precision on injected faults."""
    ticks = int(hours * 3600)
    healthy = Cluster(nodes, 16, seed, tails)
    alarms = [a for a in run(healthy, ticks, []) if a.phase is AnomalyPhase.OPENED]
    node_days = nodes * hours / 24
    print(
        f"healthy, {tails} noise, {nodes} nodes x {hours:g} h, seed {seed}: {len(alarms)} false alarms, "
        f"{len(alarms) / node_days:.2f} a node-day (none in {node_days:.1f} node-days bounds the rate at "
        f"{3 / node_days:.1f} a node-day with 95 % confidence)"
    )
    cluster = Cluster(nodes, 16, seed + 1, tails)
    injections = inject(cluster, ticks)
    opened = [a for a in run(cluster, ticks, injections) if a.phase is AnomalyPhase.OPENED]
    report(cluster, injections, opened, node_days)


def inject(cluster: Cluster, ticks: int) -> list[Injection]:
    """Faults of each kind in turn, on random devices, `GAP` ticks apart."""
    injections = []
    for number, tick in enumerate(range(WARM, ticks - GAP, GAP)):
        kind, name, factor = INJECTED[number % len(INJECTED)]
        column = next(c for c in cluster.columns if (c.kind, c.name) == (kind, name))
        node, device = int(cluster.rng.integers(len(cluster.names))), int(cluster.rng.integers(8))
        injections.append(Injection(tick, node, device, column, factor))
    return injections


def run(cluster: Cluster, ticks: int, injections: list[Injection]) -> list[Anomaly]:
    """All anomalies of a run."""
    detector, anomalies = Detector(), []
    for tick in range(ticks):
        values = cluster.values(tick)
        for i in injections:
            if i.tick <= tick < i.tick + LASTS:
                values[i.node, i.column.start + i.device] *= i.factor
        events = detector.feed(cluster.frames(tick, values), START + tick + 0.2)
        anomalies += [event for event in events if isinstance(event, Anomaly)]
    return anomalies


def report(cluster: Cluster, injections: list[Injection], opened: list[Anomaly], node_days: float) -> None:
    """Recall and latency a fault, then precision over all devices against a random score."""
    found: dict[tuple[str, str, float], list[float | None]] = {}
    used: set[str] = set()
    labels: list[int] = []
    scores: list[float] = []
    for i in injections:
        begin = START + i.tick
        near = [a for a in opened if begin <= a.time < begin + LASTS + 2]
        hits = [
            a for a in near if (a.entity, a.metric) == (entity(i.column.kind, cluster, i.node, i.device), i.column.name)
        ]
        used.update(a.anomaly_id for a in hits)
        which = (i.column.kind, i.column.name, i.factor)
        found.setdefault(which, []).append(min(a.time for a in hits) - begin - 0.1 if hits else None)
        best: dict[str, float] = {}
        for a in near:
            best[a.entity] = max(best.get(a.entity, 0.0), a.score)
        for node in range(len(cluster.names)):
            for device in range(8):
                labels.append(int((node, device) == (i.node, i.device)))
                scores.append(best.get(entity(i.column.kind, cluster, node, device), 0.0))
    print(f"injected, {LASTS} s each, one device of {len(cluster.names) * 8}:")
    for (kind, name, factor), latencies in found.items():
        seen = sorted(latency for latency in latencies if latency is not None)
        middle = f"median {seen[len(seen) // 2]:.0f} s, worst {seen[-1]:.0f} s" if seen else "never"
        print(f"  {kind}.{name} x {factor:<5g} recall {len(seen)}/{len(latencies)}  {middle} after the first bad frame")
    hit = sum(latency is not None for latencies in found.values() for latency in latencies)
    false = len([a for a in opened if a.anomaly_id not in used])
    random = np.random.default_rng(0).random(len(labels))
    print(
        f"  all: recall {hit / len(injections):.3f}, precision {hit / max(hit + false, 1):.3f}, "
        f"{false / node_days:.2f} false alarms a node-day\n"
        f"  average precision of (fault, device) by score: {average_precision_score(labels, scores):.3f}; "
        f"random score {average_precision_score(labels, random):.4f}; share of positives {np.mean(labels):.4f}"
    )


def entity(kind: str, cluster: Cluster, node: int, device: int) -> str:
    """The entity of a device of the cluster."""
    local = f"{1000 * node + device}" if kind == "process" else str(device)
    return f"{'port' if kind == 'rdma' else kind}/{cluster.names[node]}/{local}"


def main() -> int:
    """Parses the command line and runs what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quality", action="store_true", help="how good it is, instead of how fast")
    parser.add_argument("--nodes", type=int, help="default 512, for --quality 64")
    parser.add_argument("--hours", type=float, default=1.0, help="event time of each --quality run")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.quality:
        for tails in ("normal", "heavy-tailed"):
            quality(args.nodes or 64, args.hours, args.seed, tails)
        return 0
    costs = {per_cell: throughput(args.nodes or 512, per_cell, 60, BATCH) for per_cell in (16, 32, 64, 128)}
    print("us a frame by nodes per cell: " + ", ".join(f"{size}: {cost:.1f}" for size, cost in costs.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
