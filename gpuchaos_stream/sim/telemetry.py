"""The numbers that the simulated machines show: one matrix for all nodes, a row a node, a block a metric.

A step lasts about as long as a tick, so a frame shows averages over compute and communicate phases, with a
beat of a few per cent where a phase falls into one tick or the next. The noise is 2 % and the whole
cluster drifts by 1.5 % over a day (Llama 3, arXiv 2407.21783 §3.3.4: 1-2 % diurnal throughput), which no
detector may take for a fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuchaos_stream.events.codec import PackedLayout
from gpuchaos_stream.events.frame import FrameLayout, GroupLayout, Kind
from gpuchaos_stream.sim.spec import NUMA_NODES, Places
from gpuchaos_stream.sim.world import Flags, Marks, Numbers, Phase, What, World

#: Relative noise of what fluctuates.
NOISE: Final = 0.02
#: Relative amplitude of the diurnal drift.
DRIFT: Final = 0.015
#: Weight of one second in a GPU's temperature: heat sinks settle in about 20 s.
THERMAL_WEIGHT: Final = 0.05


class State(IntEnum):
    """What a GPU and its rank do. The order is the order of the columns of `BY_STATE`."""

    IDLE = 0  # no job
    TRAINING = 1
    SPINNING = 2  # an NCCL kernel waits for a peer: full utilisation, little power, no bytes
    HELD = 3  # the rank is stopped or has not launched a kernel: memory held, nothing runs
    DOWN = 4  # the rank is gone


#: Value by state. H100 SXM: 700 W limit, 80 GB, 1.98 GHz boost and about 1.75 GHz under tensor load.
BY_STATE: Final[dict[str, tuple[float, float, float, float, float]]] = {
    # metric               idle    training spinning held    down
    "utilization_ratio": (0.00, 0.95, 1.00, 0.00, 0.00),
    "memory_used_bytes": (0.6e9, 68e9, 68e9, 68e9, 0.6e9),
    "power_watts": (75.0, 620.0, 260.0, 118.0, 75.0),
    "sm_clock_hertz": (0.345e9, 1.755e9, 1.98e9, 1.98e9, 0.345e9),
    "nvlink_tx_bytes_rate": (0.0, 120e9, 0.0, 0.0, 0.0),
    "rdma_bytes_rate": (0.0, 20e9, 0.0, 0.0, 0.0),
}


@dataclass(slots=True)
class View:
    """One tick as the columns see it. Arrays are nodes × devices unless said otherwise."""

    world: World
    marks: Marks
    code: NDArray[np.int64]
    pace: Numbers  # steps per second of each rank's job
    beat: Numbers  # the job's rhythm, around 0
    own: Numbers  # each rank's own slow-down factor
    age: Numbers  # seconds since the job's last step
    temperature: Numbers
    silicon: Numbers  # each GPU's own power, around 1
    drift: float
    rng: np.random.Generator

    def about(self, values: Numbers | float, spread: float = NOISE, beat: float = 0.0) -> Numbers:
        """`values` with relative noise, and the job's rhythm with amplitude `beat`."""
        noise = self.rng.standard_normal(self.code.shape) * spread
        return np.asarray(values * (1.0 + noise + beat * self.beat), dtype=np.float64)

    def by_state(self, name: str) -> Numbers:
        """The table's value for what each GPU does now."""
        return np.asarray(BY_STATE[name], dtype=np.float64)[self.code]

    def per_node(self, mean: float, spread: float) -> Numbers:
        """Noise around `mean`, one value a node, never negative."""
        return np.maximum(0.0, mean + self.rng.standard_normal((self.code.shape[0], 1)) * spread)

    def per_numa(self, mean: float, spread: float) -> Numbers:
        """The same, one value a NUMA node."""
        return np.maximum(0.0, mean + self.rng.standard_normal((self.code.shape[0], len(NUMA_NODES))) * spread)


def _flag(what: What) -> Callable[[View], Numbers]:
    return lambda view: view.marks.device[what].astype(np.float64)


def _zero(view: View) -> Numbers:
    return np.zeros(view.code.shape)


def _running(view: View) -> Numbers:
    gone = (view.code == State.HELD) | (view.code == State.DOWN)
    return np.where(gone, 0.0, 1.0)


def _port_up(view: View) -> Flags:
    return ~view.marks.device[What.PORT_DOWN]


def _bytes(view: View) -> Numbers:
    sent = view.by_state("rdma_bytes_rate") * view.pace * view.world.spec.step_s
    return view.about(sent, beat=0.02) * _port_up(view)


def _power(view: View) -> Numbers:
    watts = view.about(view.by_state("power_watts") * view.silicon, beat=0.01)
    return np.where(view.marks.device[What.HOT], np.minimum(watts, 380.0), watts)


def _clock(view: View) -> Numbers:
    clock = view.about(view.by_state("sm_clock_hertz"), 0.002)
    return np.where(view.marks.device[What.HOT], np.minimum(clock, 1.1e9), clock)


def _busy(view: View) -> Numbers:
    training = (view.code == State.TRAINING).any(axis=1, keepdims=True)
    return np.where(training, view.per_node(0.22, 0.01), view.per_node(0.02, 0.003))


def _pressure(what: What, usual: float) -> Callable[[View], Numbers]:
    return lambda view: np.where(view.marks.node[what][:, None], 0.85, view.per_node(usual, usual / 4))


def _misaligned_pages(view: View) -> Numbers:
    wrong = view.marks.device[What.MISALIGNED].any(axis=1, keepdims=True)
    return view.per_numa(900.0, 120.0) + np.where(wrong, 60_000.0, 0.0)


def _fresh(view: View, what: What) -> Numbers:
    """Devices on which an effect began within the last second: what a counter shows as one increment."""
    fresh = np.zeros(view.code.shape)
    for effect in view.world.effects:
        if effect.what is what and 0 <= view.world.now - effect.since < 1.0 and effect.device is not None:
            fresh[effect.row, effect.device] = 1.0
    return fresh


def _timeouts(view: View) -> Numbers:
    """Retransmissions on the rail of a dead port, at the ranks of the job that wait for it."""
    down = view.marks.device[What.PORT_DOWN]
    shown = np.zeros(view.code.shape)
    if down.any():
        for job in view.world.jobs:
            rails = down[job.rows].any(axis=0)
            shown[np.ix_(np.asarray(job.rows), np.flatnonzero(rails))] = 4.0
    return shown * ~down


#: Every column of a frame, in its order. The process group comes last: a node without a job has none.
COLUMNS: Final[tuple[tuple[Kind, str, Callable[[View], Numbers]], ...]] = (
    ("node", "cpu_busy_ratio", _busy),
    ("node", "memory_available_ratio", lambda v: v.per_node(0.61, 0.004)),
    ("node", "load1", lambda v: _busy(v) * 96),
    ("node", "pressure_cpu_ratio", lambda v: v.per_node(0.01, 0.002)),
    ("node", "pressure_memory_ratio", lambda v: v.per_node(0.002, 0.0005)),
    ("node", "pressure_io_ratio", _pressure(What.IO_STALL, 0.02)),
    ("gpu", "utilization_ratio", lambda v: np.minimum(1.0, v.about(v.by_state("utilization_ratio"), 0.01, 0.01))),
    ("gpu", "memory_used_bytes", lambda v: v.about(v.by_state("memory_used_bytes"), 0.002)),
    ("gpu", "memory_total_bytes", lambda v: np.full(v.code.shape, 85.52e9)),
    ("gpu", "temperature_celsius", lambda v: v.temperature + v.rng.standard_normal(v.code.shape) * 0.4),
    ("gpu", "power_watts", _power),
    ("gpu", "sm_clock_hertz", _clock),
    ("gpu", "ecc_corrected_rate", _zero),
    ("gpu", "ecc_uncorrected_rate", lambda v: v.marks.ecc),
    ("gpu", "pcie_replay_rate", _zero),
    ("gpu", "throttle_hw_ratio", _flag(What.HOT)),
    ("gpu", "nvlink_tx_bytes_rate", lambda v: v.about(v.by_state("nvlink_tx_bytes_rate") * v.pace, beat=0.02)),
    ("gpu", "remapped_rows_pending", _zero),
    ("rdma", "port_active", lambda v: _port_up(v).astype(np.float64)),
    ("rdma", "rate_bits", lambda v: np.where(_port_up(v), 400e9, np.nan)),
    ("rdma", "rx_bytes_rate", _bytes),
    ("rdma", "tx_bytes_rate", _bytes),
    ("rdma", "link_downed_rate", lambda v: _fresh(v, What.PORT_DOWN)),
    ("rdma", "symbol_error_rate", _zero),
    ("rdma", "rcv_errors_rate", _zero),
    ("rdma", "out_of_sequence_rate", lambda v: v.rng.poisson(0.3, v.code.shape) * (v.code == State.TRAINING)),
    ("rdma", "ack_timeout_rate", _timeouts),
    ("rdma", "cnp_handled_rate", lambda v: v.about(180.0 * (v.code == State.TRAINING), 0.15)),
    ("numa", "memory_free_bytes", lambda v: v.per_numa(410e9, 1e9)),
    ("numa", "local_rate", lambda v: v.per_numa(52_000.0, 1_500.0)),
    ("numa", "remote_rate", _misaligned_pages),
    ("process", "steps_rate", lambda v: v.about(v.pace) * _running(v)),
    ("process", "step_time_seconds", lambda v: v.about(v.world.spec.step_s * v.own / v.drift)),
    ("process", "progress_age_seconds", lambda v: v.age + v.rng.uniform(0.0, v.world.spec.step_s, v.code.shape)),
    ("process", "running", _running),
    ("process", "numa_misaligned_ratio", _flag(What.MISALIGNED)),
)


class Telemetry:
    """Makes the matrix of a tick and knows the layout of each node's row."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self._world = world
        self._rng = rng
        shape = (world.spec.nodes, world.spec.gpus)
        self._silicon = 1.0 + rng.standard_normal(shape) * 0.01
        self._temperature = np.full(shape, 36.0)
        self._settled = False
        self._layouts: dict[tuple[int, str], PackedLayout] = {}
        widths = {"node": 1, "gpu": shape[1], "rdma": shape[1], "numa": len(NUMA_NODES), "process": shape[1]}
        self._slices: list[slice] = []
        at = 0
        for kind, _, _ in COLUMNS:
            self._slices.append(slice(at, at + widths[kind]))
            at += widths[kind]
        self.width = at
        self.idle_width = next(
            s.start for s, column in zip(self._slices, COLUMNS, strict=True) if column[0] == "process"
        )

    def matrix(self, now: float) -> Numbers:
        """Nodes × numbers at `now`, NaN where a value could not be read; after `World.advance(now)`."""
        view = self._view(now)
        numbers = np.empty((self._world.spec.nodes, self.width))
        lost = self._world.marks.device[What.LOST]
        for where, (kind, _, column) in zip(self._slices, COLUMNS, strict=True):
            values = np.asarray(column(view), dtype=np.float64)
            numbers[:, where] = np.where(lost, np.nan, values) if kind == "gpu" else values
        return numbers

    def layout(self, row: int) -> PackedLayout:
        """The layout of a node's frames for as long as its job stays the same."""
        job = self._world.job_at(row)
        key = (row, job.name if job else "")
        if key not in self._layouts:
            self._layouts[key] = PackedLayout(_layout(self._world.places, row, key[1]))
        return self._layouts[key]

    def _view(self, now: float) -> View:
        world = self._world
        shape = (world.spec.nodes, world.spec.gpus)
        code = np.full(shape, int(State.IDLE))
        pace, beat, age = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        drift = 1.0 + DRIFT * math.sin(2 * math.pi * now / 86_400.0)
        for job in world.jobs:
            code[job.rows] = _JOB_STATE[job.phase]
            if job.phase is Phase.RUNNING:
                pace[job.rows] = drift / (world.spec.step_s * job.slow)
            beat[job.rows] = math.sin(2 * math.pi * job.steps * 0.618)
            age[job.rows] = max(0.0, now - job.last_progress)
        marks = world.marks
        ranks = code != State.IDLE
        code[ranks & marks.device[What.STOPPED]] = State.HELD
        code[ranks & (marks.device[What.DEAD] | marks.device[What.LOST])] = State.DOWN
        power = np.asarray(BY_STATE["power_watts"])[code] * self._silicon
        target = 32.0 + 0.052 * power + np.where(marks.device[What.HOT], 26.0, 0.0)
        self._temperature += (target - self._temperature) * (THERMAL_WEIGHT if self._settled else 1.0)
        self._settled = True
        own = np.where(ranks, marks.slow, 1.0)
        return View(
            world=world,
            marks=marks,
            code=code,
            pace=pace,
            beat=beat,
            own=own,
            age=age,
            temperature=self._temperature,
            silicon=self._silicon,
            drift=drift,
            rng=self._rng,
        )


_JOB_STATE: Final = {
    Phase.RUNNING: State.TRAINING,
    Phase.STALLED: State.SPINNING,
    Phase.RESUMING: State.SPINNING,
    Phase.DOWN: State.DOWN,
}


def _layout(places: Places, row: int, job: str) -> FrameLayout:
    site = places.sites[row]
    devices = range(places.spec.gpus)
    jobs = (job,) * places.spec.gpus
    rails = tuple(places.rail(site, device) for device in devices)
    ids: dict[Kind, tuple[str, ...]] = {
        "node": (site.name,),
        "gpu": places.gpu_ids(),
        "rdma": places.port_ids(),
        "numa": NUMA_NODES,
        "process": places.pids(),
    }
    labels: dict[Kind, dict[str, tuple[str, ...]]] = {
        "gpu": {"job": jobs, "pci": tuple(places.pci(device) for device in devices)},
        "rdma": {"job": jobs, "rail": rails},
        "process": {"job": jobs, "gpu": places.gpu_ids()},
    }
    return FrameLayout(
        groups=tuple(
            GroupLayout(
                kind=kind,
                ids=names,
                metrics=tuple(metric for of, metric, _ in COLUMNS if of == kind),
                labels=labels.get(kind, {}),
            )
            for kind, names in ids.items()
            if job or kind != "process"
        )
    )
