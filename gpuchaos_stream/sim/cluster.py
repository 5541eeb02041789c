"""A cluster to try things on: `step(now)` gives the frames of all its nodes, as their agents would send them.

The cost of a step grows linearly with the nodes, about 7 µs of CPU each. Sending costs more than making:
`gpuchaos sim --nodes 1000` takes a tenth of one core in all, 64 nodes a sixtieth.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from gpuchaos_stream import __version__
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.codec import PackedFrame
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.events.node import GpuPlace, NodeInfo, PortPlace
from gpuchaos_stream.sim.faults import CONSEQUENCES, IMPOSSIBLE
from gpuchaos_stream.sim.spec import ClusterSpec
from gpuchaos_stream.sim.telemetry import Telemetry
from gpuchaos_stream.sim.truth import Truth
from gpuchaos_stream.sim.world import Flags, Numbers, What, World

FAULTS_POSSIBLE: Final = tuple(sorted(CONSEQUENCES))
_ENCODER: Final = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Encoded:
    """A frame ready to be sent, with what its record needs."""

    node: str
    cell: str
    time: float
    event_id: str
    value: bytes


class SimulatedCluster:
    """Nodes, jobs and their telemetry. Everything random comes from `rng`; time is an argument and only grows.

    `truth` is what really happened: for whoever judges a detector, and never sent. `run` goes into the boot ids:
    a simulation that starts again is a cluster that has booted again. `dropped` is told in every frame.
    """

    def __init__(self, spec: ClusterSpec, rng: np.random.Generator, *, run: str = "") -> None:
        jobs_rng, numbers_rng, clock_rng = rng.spawn(3)
        self.spec = spec
        self.world = World(spec, jobs_rng)
        self.truth: list[Truth] = []
        self._telemetry = Telemetry(self.world, numbers_rng)
        self._skew = (clock_rng.standard_normal(spec.nodes) * 0.004).tolist()
        self.dropped = 0
        self._run = run
        self._boots = [0] * spec.nodes
        self._boot = [self._boot_id(row) for row in range(spec.nodes)]
        self._seq = [0] * spec.nodes
        self._off: Flags = np.zeros(spec.nodes, dtype=bool)
        self._facts: list[FaultEvent] = []

    def step(self, now: float) -> list[Encoded]:
        """One tick: moves the world to `now` (epoch seconds, the broker's clock) and reads every live node."""
        self.world.advance(now)
        marks = self.world.marks
        self._count_boots(marks.node[What.OFF])
        numbers = self._telemetry.matrix(now)
        if sys.byteorder == "big":
            numbers = numbers.byteswap()
        quiet = marks.node[What.OFF] | marks.node[What.SILENT]
        return [self._frame(row, numbers[row], now) for row in np.flatnonzero(~quiet).tolist()]

    def infos(self, now: float, *, changed_only: bool = False) -> list[NodeInfo]:
        """Where each node sits and what it holds; with `changed_only`, those whose job changed since last asked."""
        rows = self.world.drain_moved()
        return [self._info(row, now) for row in (rows if changed_only else range(self.spec.nodes))]

    def observe(self, fact: FaultEvent) -> None:
        """A hard fact that a node's kernel log would show; it waits until the node can speak."""
        self._facts.append(fact)

    def facts(self) -> list[FaultEvent]:
        """The facts since the last call, of nodes that can speak."""
        spoken = [fact for fact in self._facts if self.world.reachable(self.world.places.row_of[fact.node])]
        self._facts = [fact for fact in self._facts if fact not in spoken]
        return spoken

    def offset(self, node: str) -> float:
        """What to add to the node's clock to get the broker's, seconds."""
        return -float(self._skew[self.world.places.row_of[node]])

    def _count_boots(self, off: Flags) -> None:
        for row in np.flatnonzero(self._off & ~off).tolist():
            self._boots[row] += 1
            self._boot[row] = self._boot_id(row)
            self._seq[row] = 0
        self._off = off.copy()

    def _boot_id(self, row: int) -> str:
        return stable_id("boot", self.spec.cluster, self._run, self.world.places.sites[row].name, self._boots[row])

    def _frame(self, row: int, numbers: Numbers, now: float) -> Encoded:
        site = self.world.places.sites[row]
        layout = self._telemetry.layout(row)
        seq = self._seq[row]
        self._seq[row] += 1
        skew = self._skew[row]
        frame = PackedFrame(
            schema_version=1,
            cluster=self.spec.cluster,
            cell=site.cell,
            node=site.name,
            boot=self._boot[row],
            seq=seq,
            time=now + skew,
            clock_offset_s=-skew,
            dropped=self.dropped,
            absent={},
            layout_id=layout.layout_id,
            shape=layout.shape,
            layout=layout.blob,
            values=numbers[: layout.width].tobytes(),
        )
        return Encoded(site.name, site.cell, now, f"{frame.boot}-{seq}", _ENCODER.encode(frame))

    def _info(self, row: int, now: float) -> NodeInfo:
        places, site, job = self.world.places, self.world.places.sites[row], self.world.job_at(row)
        name = job.name if job else None
        return NodeInfo(
            id=stable_id("node", self.spec.cluster, site.name, name, now),
            time=now,
            cluster=self.spec.cluster,
            node=site.name,
            cell=site.cell,
            rack=site.rack,
            nvlink_domain=site.domain,
            gpus=tuple(
                GpuPlace(
                    index=str(device),
                    uuid=places.uuid(site, device),
                    pci=places.pci(device),
                    numa_node=places.numa_of(device),
                    job=name,
                )
                for device in range(self.spec.gpus)
            ),
            ports=tuple(
                PortPlace(name=port, rail=places.rail(site, device), numa_node=places.numa_of(device))
                for device, port in enumerate(places.port_ids())
            ),
            jobs=(name,) if name else (),
            labels={"simulated": "true"},
            agent_version=f"sim-{__version__}",
            faults_possible=FAULTS_POSSIBLE,
            faults_impossible=IMPOSSIBLE,
        )
