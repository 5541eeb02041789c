"""The state of the simulated machines: which effects are on them, and what the jobs do about it.

Effects are facts with a beginning and an end. Each step derives the whole state from those that are active,
so that taking one away needs no memory of what it had changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuchaos_stream.sim.spec import ClusterSpec, Places

Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]


class What(StrEnum):
    """What can be wrong with a machine: the primitives that every fault is made of."""

    STOPPED = "stopped"  # a rank in state T: its GPU idles, its memory stays
    DEAD = "dead"  # a rank is gone until its job restarts
    LOST = "lost"  # a GPU off the bus: nothing of it can be read
    HOT = "hot"  # a GPU whose clocks the hardware holds down; size = slow-down factor
    MISALIGNED = "misaligned"  # a rank on the wrong CPUs; size = slow-down factor
    SLOW = "slow"  # a node whose jobs wait for a service; size = slow-down factor
    PORT_DOWN = "port_down"
    IO_STALL = "io_stall"  # the node's storage path is gone: the next checkpoint blocks
    SILENT = "silent"  # no IP network: no telemetry, no commands
    OFF = "off"  # no power
    ECC = "ecc"  # uncorrected memory errors counted, size per second


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect on one device (`device` None: the node). Times in epoch seconds; `owner` is its fault's id."""

    what: What
    row: int
    device: int | None
    since: float
    until: float = math.inf
    size: float = 1.0
    owner: str = ""


class Phase(IntEnum):
    """What a job does."""

    RUNNING = 0
    STALLED = 1  # in a collective that does not end: kernels spin
    RESUMING = 2  # nothing holds it any more; the first step is on its way
    DOWN = 3  # killed by its launcher; waits for its restart


@dataclass(slots=True)
class Job:
    """A gang: all of its ranks step together or not at all."""

    name: str
    rows: list[int]
    phase: Phase = Phase.RUNNING
    since: float = 0.0
    ready: float = 0.0
    steps: float = 0.0
    slow: float = 1.0
    restarts: int = 0
    last_progress: float = 0.0


#: Seconds after which a job feels these: at its next checkpoint, at its rendezvous' keep-alive.
GRACE: Final[dict[What, float]] = {What.IO_STALL: 10.0, What.SILENT: 20.0}
#: Effects after which a rank is lost: its launcher kills the gang and restarts it from the checkpoint.
FATAL: Final = frozenset({What.DEAD, What.LOST, What.OFF})
#: Effects that hold a gang in its collective for as long as they last.
HOLDING: Final = frozenset({What.STOPPED, What.PORT_DOWN, What.IO_STALL, What.SILENT})
#: Effects that make every step of a gang as slow as its slowest rank.
SLOWING: Final = frozenset({What.HOT, What.MISALIGNED, What.SLOW})
#: Effects for which a node is given back and a spare one taken.
UNUSABLE: Final = frozenset({What.LOST, What.OFF, What.SILENT})


@dataclass(slots=True)
class Marks:
    """The effects that are active now, as arrays: nodes × devices, or nodes."""

    device: dict[What, Flags]
    node: dict[What, Flags]
    slow: Numbers
    ecc: Numbers
    holds: Flags = field(repr=False)
    fatal: Flags = field(repr=False)


class World:
    """Machines, effects and jobs. `advance(now)` moves all of it to `now`; time never goes back."""

    def __init__(self, spec: ClusterSpec, rng: np.random.Generator) -> None:
        self.spec = spec
        self.places = Places(spec)
        self.effects: list[Effect] = []
        self.jobs = [Job(name, list(rows)) for name, rows in self.places.jobs]
        self.job_of = np.full(spec.nodes, -1, dtype=np.int64)
        for number, job in enumerate(self.jobs):
            self.job_of[job.rows] = number
        self.now = 0.0
        self.moved: set[int] = set(range(spec.nodes))
        self._rng = rng
        self.marks = self._mark(0.0)

    def add(self, effect: Effect) -> None:
        """Puts an effect on a machine, from its `since` on."""
        self.effects.append(effect)

    def remove(self, owner: str) -> None:
        """Takes away every effect of one fault, but not the dead ranks it left: a restart does that."""
        self.effects = [e for e in self.effects if e.owner != owner or e.what is What.DEAD]

    def active(self, row: int, what: What, device: int | None = None) -> bool:
        """Whether an effect is on a machine at the last `advance`."""
        return any(
            e.what is what and e.row == row and (device is None or e.device == device) and e.since <= self.now < e.until
            for e in self.effects
        )

    def reachable(self, row: int) -> bool:
        """Whether the node's agent can speak and be spoken to."""
        return not (self.active(row, What.SILENT) or self.active(row, What.OFF))

    def job_at(self, row: int) -> Job | None:
        """The job on a node, or None."""
        number = int(self.job_of[row])
        return self.jobs[number] if number >= 0 else None

    def advance(self, now: float) -> None:
        """Moves effects and jobs to `now`, epoch seconds."""
        elapsed = max(0.0, now - self.now) if self.now else 0.0
        self.now = max(now, self.now)
        self.effects = [e for e in self.effects if e.until > now]
        self.marks = self._mark(now)
        for job in self.jobs:
            if job.phase is Phase.RUNNING:
                job.steps += elapsed / (self.spec.step_s * job.slow)
            self._move(job, now)

    def drain_moved(self) -> list[int]:
        """Rows whose place in the cluster changed since the last call (at first: all)."""
        rows, self.moved = sorted(self.moved), set()
        return rows

    def _mark(self, now: float) -> Marks:
        shape = (self.spec.nodes, self.spec.gpus)
        device = {what: np.zeros(shape, dtype=bool) for what in What}
        node = {what: np.zeros(self.spec.nodes, dtype=bool) for what in What}
        slow, ecc = np.ones(shape), np.zeros(shape)
        holds, fatal = np.zeros(shape[0], dtype=bool), np.zeros(shape[0], dtype=bool)
        for effect in self.effects:
            if not effect.since <= now < effect.until:
                continue
            where = effect.device if effect.device is not None else slice(None)
            device[effect.what][effect.row, where] = True
            node[effect.what][effect.row] = True
            if effect.what in SLOWING:
                slow[effect.row, where] = np.maximum(slow[effect.row, where], effect.size)
            if effect.what is What.ECC:
                ecc[effect.row, where] = effect.size
            if effect.what in FATAL:
                fatal[effect.row] = True
            elif effect.what in HOLDING and now >= effect.since + GRACE.get(effect.what, 0.0):
                holds[effect.row] = True
        return Marks(device, node, slow, ecc, holds, fatal)

    def _move(self, job: Job, now: float) -> None:
        """The life of a job: one transition at most per step."""
        holds = bool(self.marks.holds[job.rows].any())
        fatal = bool(self.marks.fatal[job.rows].any())
        job.slow = float(self.marks.slow[job.rows].max())
        if job.phase is Phase.RUNNING:
            job.last_progress = now
            if holds or fatal:
                self._enter(job, Phase.STALLED, now, self._rng.uniform(*self.spec.watchdog_s))
        elif job.phase is Phase.STALLED:
            if (fatal and now >= job.ready) or now >= job.since + self.spec.collective_timeout_s:
                self._enter(job, Phase.DOWN, now, self._rng.uniform(*self.spec.restart_s))
            elif not fatal and not holds:
                self._enter(job, Phase.RESUMING, now, self._rng.uniform(*self.spec.resume_s))
        elif job.phase is Phase.RESUMING:
            if holds or fatal:
                self._enter(job, Phase.STALLED, now, self._rng.uniform(*self.spec.watchdog_s))
            elif now >= job.ready:
                self._enter(job, Phase.RUNNING, now, 0.0)
        elif now >= job.ready:
            self._restart(job, now)

    @staticmethod
    def _enter(job: Job, phase: Phase, now: float, delay: float) -> None:
        job.phase, job.since, job.ready = phase, now, now + delay

    def _restart(self, job: Job, now: float) -> None:
        """Gives back what is broken, takes spare nodes (of the same cell first), starts where all is well."""
        unusable = np.zeros(self.spec.nodes, dtype=bool)
        for what in UNUSABLE:
            unusable |= self.marks.node[what]
        mine = set(job.rows)
        for at, row in enumerate(job.rows):
            spare = self._spare(row, unusable) if unusable[row] else None
            if spare is not None:
                job.rows[at] = spare
                self.job_of[spare], self.job_of[row] = self.job_of[row], -1
                self.moved |= {row, spare}
        self.effects = [e for e in self.effects if e.what is not What.DEAD or e.row not in mine or e.since > now]
        self.marks = self._mark(now)
        if not (self.marks.holds[job.rows].any() or self.marks.fatal[job.rows].any()):
            job.restarts += 1
            self._enter(job, Phase.RUNNING, now, 0.0)

    def _spare(self, row: int, unusable: Flags) -> int | None:
        sites = self.places.sites
        free = np.flatnonzero((self.job_of < 0) & ~unusable).tolist()
        here = sites[row]
        return min(free, key=lambda r: (sites[r].cell != here.cell, sites[r].rack != here.rack, r), default=None)
