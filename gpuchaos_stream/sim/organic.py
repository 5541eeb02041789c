"""Failures that nobody asked for, in the proportions of Llama 3's 54 days (arXiv 2407.21783, Table 5).

The counts are the table's, 419 in all; its printed percentages do not add up and are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gpuchaos_stream.errors import UserError, nearest
from gpuchaos_stream.events.base import Severity, stable_id
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin
from gpuchaos_stream.sim.cluster import SimulatedCluster
from gpuchaos_stream.sim.faults import locate
from gpuchaos_stream.sim.truth import Harm, Truth
from gpuchaos_stream.sim.world import Effect, What

#: Failures per node and day: 3.79 per 1000 node-days, 419 in 54 days on 2048 nodes.
LLAMA3_RATE: Final = 3.79e-3


@dataclass(frozen=True, slots=True)
class Cause:
    """One row of the table.

    `fault` is the name of the fact that shows it (None: nothing does, as in silent corruption), `xid` its
    number in the driver's log. `repair_s` bounds how long its effects stay; a dead rank comes back with its job.
    """

    name: str
    count: int
    device: str
    effects: tuple[tuple[What, float], ...]
    fault: str | None = None
    severity: Severity = Severity.CRITICAL
    xid: int | None = None
    origin: Origin = Origin.KERNEL
    repair_s: tuple[float, float] = (600.0, 7200.0)


_DEAD: Final = (What.DEAD, 1.0)

CAUSES: Final[tuple[Cause, ...]] = (
    Cause("faulty-gpu", 148, "gpu", ((What.LOST, 1.0),), "gpu_lost", xid=79),
    Cause("hbm3", 72, "gpu", (_DEAD, (What.ECC, 1.0)), "gpu_ecc_contained", Severity.ERROR, 94, repair_s=(1.0, 1.0)),
    Cause("software-bug", 54, "gpu", (_DEAD,), "worker_failed", Severity.ERROR, origin=Origin.APPLICATION),
    Cause("network-switch-cable", 35, "port", ((What.PORT_DOWN, 1.0),), "port_down", Severity.ERROR),
    Cause("host-maintenance", 32, "node", ((What.OFF, 1.0),)),
    Cause("gpu-sram", 19, "gpu", (_DEAD, (What.ECC, 4.0)), "gpu_ecc_uncontained", xid=95, repair_s=(1.0, 1.0)),
    Cause("gsp", 17, "gpu", ((What.LOST, 1.0),), "gpu_gsp_timeout", xid=119),
    Cause("nic", 7, "port", ((What.PORT_DOWN, 1.0),), "nic_fatal"),
    Cause("nccl-watchdog", 7, "gpu", ((What.STOPPED, 1.0),), repair_s=(60.0, 600.0)),
    Cause("silent-corruption", 6, "gpu", (_DEAD,)),
    Cause("gpu-thermal", 6, "gpu", ((What.HOT, 1.4),)),
    Cause("ssd", 3, "node", ((What.IO_STALL, 1.0),), "fs_readonly", Severity.ERROR),
    Cause("psu", 3, "node", ((What.OFF, 1.0),)),
    Cause("chassis", 2, "node", ((What.OFF, 1.0),)),
    Cause("io-board", 2, "port", ((What.PORT_DOWN, 1.0),), "pcie_aer_fatal"),
    Cause("dependency", 2, "node", ((What.SLOW, 1.3),)),
    Cause("cpu", 2, "node", ((What.OFF, 1.0),), "cpu_soft_lockup"),
    Cause("system-memory", 2, "node", ((What.OFF, 1.0),), "mem_ue"),
)
BY_NAME: Final = {cause.name: cause for cause in CAUSES}

#: Metric by which an effect shows on its device, for the ground truth.
_SHOWS: Final[dict[What, str]] = {
    What.LOST: "steps_rate",
    What.DEAD: "running",
    What.STOPPED: "running",
    What.PORT_DOWN: "port_active",
    What.OFF: "telemetry_stale",
    What.IO_STALL: "pressure_io_ratio",
    What.HOT: "throttle_hw_ratio",
    What.ECC: "ecc_uncorrected_rate",
    What.SLOW: "steps_rate",
}


class Organic:
    """Makes failures happen: by chance at `rate` per node and day, and those that are scripted."""

    def __init__(self, cluster: SimulatedCluster, rng: np.random.Generator, rate: float = LLAMA3_RATE) -> None:
        self._cluster = cluster
        self._rng = rng
        self._per_second = rate * cluster.spec.nodes / 86_400.0
        self._next: float | None = None
        self._script: list[tuple[float, Cause, str]] = []
        self._count = 0

    def schedule(self, at: float, cause: str, entity: str) -> None:
        """A failure at a given time (epoch seconds) on a given device, for demonstrations and tests.

        Raises:
            UserError: no such cause.
            NotPossibleError: no such device.
        """
        if cause not in BY_NAME:
            raise UserError("organic failure", f"unknown cause {cause!r}", nearest(cause, BY_NAME))
        locate(self._cluster.world, entity)
        self._script.append((at, BY_NAME[cause], entity))

    def tick(self, now: float) -> list[Truth]:
        """Lets happen what is due by `now`; the truths are also in the cluster's `truth`."""
        due = sorted((item for item in self._script if item[0] <= now), key=lambda item: item[0])
        self._script = [item for item in self._script if item[0] > now]
        for cause_at in self._arrivals(now):
            cause = CAUSES[int(self._rng.choice(len(CAUSES), p=_SHARES))]
            due.append((cause_at, cause, self._somewhere(cause)))
        return [self._happen(at, cause, entity) for at, cause, entity in due]

    def _arrivals(self, now: float) -> list[float]:
        if self._per_second <= 0:
            return []
        if self._next is None:
            self._next = now + float(self._rng.exponential(1.0 / self._per_second))
        times: list[float] = []
        while self._next <= now:
            times.append(self._next)
            self._next += float(self._rng.exponential(1.0 / self._per_second))
        return times

    def _somewhere(self, cause: Cause) -> str:
        places = self._cluster.world.places
        site = places.sites[int(self._rng.integers(len(places.sites)))]
        device = int(self._rng.integers(places.spec.gpus))
        local = {"gpu": places.gpu_ids(), "port": places.port_ids()}.get(cause.device)
        return f"{cause.device}/{site.name}" + (f"/{local[device]}" if local else "")

    def _happen(self, at: float, cause: Cause, entity: str) -> Truth:
        world = self._cluster.world
        row, device = locate(world, entity)
        job, node = world.job_at(row), world.places.sites[row].name
        self._count += 1
        owner = stable_id("organic", self._cluster.spec.cluster, cause.name, entity, at, self._count)
        until = at + float(self._rng.uniform(*cause.repair_s))
        effects = [
            Effect(what, row, device, at, float("inf") if what is What.DEAD else until, size, owner)
            for what, size in cause.effects
            if job is not None or what not in {What.DEAD, What.STOPPED}
        ]
        for effect in effects:
            world.add(effect)
        if cause.fault is not None:
            self._cluster.observe(self._fact(owner, at, cause, entity, node))
        harms = [Harm(entity=entity, metric=_SHOWS[effect.what], since=at) for effect in effects]
        if cause.fault is not None:
            harms.append(Harm(entity=entity, metric=cause.fault, since=at))
        if job is not None:
            harms.append(Harm(entity=f"job/{job.name}", metric="steps_rate", since=at))
        truth = Truth(
            id=owner,
            source="organic",
            fault=cause.name,
            entity=entity,
            node=node,
            job=job.name if job else None,
            began=at,
            ended=until,
            harms=tuple(harms),
        )
        self._cluster.truth.append(truth)
        return truth

    def _fact(self, owner: str, at: float, cause: Cause, entity: str, node: str) -> FaultEvent:
        evidence: dict[str, str | float | int | bool | None] = {} if cause.xid is None else {"xid": cause.xid}
        offset = self._cluster.offset(node)
        return FaultEvent(
            id=stable_id("observed", owner),
            time=at - offset,
            clock_offset_s=offset,
            cluster=self._cluster.spec.cluster,
            phase=FaultPhase.OBSERVED,
            fault=cause.fault or cause.name,
            node=node,
            entity=entity,
            severity=cause.severity,
            origin=cause.origin,
            evidence=evidence,
        )


_SHARES: Final = np.asarray([cause.count for cause in CAUSES]) / sum(cause.count for cause in CAUSES)
