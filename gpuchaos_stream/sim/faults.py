"""What each injected fault does to the simulated machines, and whom it hurts along the topology: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuchaos_stream.events.base import Severity, entity_kind
from gpuchaos_stream.sim.truth import Harm, Truth
from gpuchaos_stream.sim.world import GRACE, Effect, What, World

Params = Mapping[str, str | float | int | bool | None]


class NotPossibleError(ValueError):
    """A fault that cannot be had on this target of this cluster; the text is the reason that the agent reports."""


@dataclass(frozen=True, slots=True)
class Aim:
    """One fault on one target. `row` and `device` are where the target sits in the simulation's arrays."""

    world: World
    entity: str
    row: int
    device: int | None
    params: Params
    owner: str
    now: float

    def number(self, name: str, default: float) -> float:
        """A parameter as a number.

        Raises:
            NotPossibleError: it is none.
        """
        value = self.params.get(name, default)
        try:
            return float(default if value is None else value)
        except ValueError as error:
            raise NotPossibleError(f"parameter {name}={value!r} is not a number") from error

    def effect(self, what: What, *, size: float = 1.0, until: float = float("inf")) -> Effect:
        """The effect on the target itself, from now on."""
        return Effect(what, self.row, self.device, self.now, until, size, self.owner)


@dataclass(frozen=True, slots=True)
class Signal:
    """What the kernel of the target's node logs: a fault name, and whether the record names itself an injection."""

    fault: str
    severity: Severity
    marked: bool
    evidence: dict[str, str | float | int | bool | None]


@dataclass(frozen=True, slots=True)
class Consequence:
    """One row of the table. `shows` are metrics of the target that change, `job_shows` those of its job."""

    kind: str
    effects: Callable[[Aim], list[Effect]]
    shows: tuple[str, ...]
    job_shows: Callable[[Aim], tuple[str, ...]]
    signal: Callable[[Aim], Signal | None] = lambda _: None
    delay_s: float = 0.0
    evidence: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """A fault that has begun: what to put on the machines, what the kernel says, and the truth about it."""

    effects: list[Effect]
    signal: Signal | None
    truth: Truth
    evidence: dict[str, str | float | int | bool | None]


#: Fault name and severity of the Xid that a memory-corruption writes (names: NVIDIA's Xid catalogue).
_XIDS: Final[dict[int, tuple[str, Severity]]] = {
    48: ("gpu_ecc_dbe", Severity.CRITICAL),
    63: ("gpu_row_remap_pending", Severity.WARNING),
    64: ("gpu_row_remap_failure", Severity.CRITICAL),
    94: ("gpu_ecc_contained", Severity.ERROR),
    95: ("gpu_ecc_uncontained", Severity.CRITICAL),
}


def _corruption_signal(aim: Aim) -> Signal:
    xid = int(aim.number("xid", 94))
    if xid not in _XIDS:
        raise NotPossibleError(f"xid {xid} is no memory error; known are {', '.join(map(str, _XIDS))}")
    fault, severity = _XIDS[xid]
    pci = aim.world.places.pci(aim.device or 0)
    return Signal(fault, severity, marked=True, evidence={"xid": xid, "pci": pci, "fault_id": aim.owner})


def _corruption_effects(aim: Aim) -> list[Effect]:
    """None: the record is all. With `remediate: true` the cluster's automation believes it, and ends the rank."""
    if not aim.params.get("remediate", False) or aim.world.job_at(aim.row) is None:
        return []
    return [aim.effect(What.DEAD)]


def _corruption_harm(aim: Aim) -> tuple[str, ...]:
    return ("steps_rate",) if aim.params.get("remediate", False) else ()


def _stalls(aim: Aim) -> tuple[str, ...]:
    return () if aim.world.job_at(aim.row) is None else ("steps_rate",)


def _port_signal(aim: Aim) -> Signal:
    return Signal("port_down", Severity.ERROR, marked=False, evidence={"port": aim.entity.rsplit("/", 1)[-1]})


#: Fault → its consequence. What is missing here is refused with the reason in `IMPOSSIBLE`.
CONSEQUENCES: Final[dict[str, Consequence]] = {
    "process-stop": Consequence(
        "process",
        lambda aim: [aim.effect(What.STOPPED)],
        shows=("running",),
        job_shows=_stalls,
        evidence="state T",
    ),
    "memory-corruption": Consequence(
        "gpu",
        _corruption_effects,
        shows=(),
        job_shows=_corruption_harm,
        signal=_corruption_signal,
        evidence="record read back from the kernel log",
    ),
    "rdma-link": Consequence(
        "port",
        lambda aim: [aim.effect(What.PORT_DOWN)],
        shows=("port_active", "link_downed_rate"),
        job_shows=_stalls,
        signal=_port_signal,
        evidence="port state DOWN",
    ),
    "numa-misalignment": Consequence(
        "process",
        lambda aim: [aim.effect(What.MISALIGNED, size=aim.number("slowdown", 1.3))],
        shows=("numa_misaligned_ratio", "step_time_seconds"),
        job_shows=_stalls,
        evidence="affinity on the other socket",
    ),
    "network-partition": Consequence(
        "node",
        lambda aim: [aim.effect(What.SILENT)],
        shows=("telemetry_stale",),
        job_shows=_stalls,
        delay_s=GRACE[What.SILENT],
        evidence="packets dropped",
    ),
    "power-cycle": Consequence(
        "node",
        lambda aim: [aim.effect(What.OFF)],
        shows=("telemetry_stale",),
        job_shows=_stalls,
        evidence="chassis power off",
    ),
    "storage-disconnect": Consequence(
        "node",
        lambda aim: [aim.effect(What.IO_STALL)],
        shows=(),
        job_shows=_stalls,
        delay_s=GRACE[What.IO_STALL],
        evidence="mount does not answer",
    ),
    "service-latency": Consequence(
        "node",
        lambda aim: [aim.effect(What.SLOW, size=aim.number("slowdown", 1.15))],
        shows=(),
        job_shows=_stalls,
        evidence="latency measured on the path",
    ),
}

#: Faults that this cluster cannot have, with the reason: refused, never faked.
IMPOSSIBLE: Final[dict[str, str]] = {
    "database-outage": "no database is simulated",
    "certificate-expiry": "no server with a certificate is simulated",
}


def begin(
    world: World, fault: str, entity: str, params: Params, *, owner: str, experiment_id: str, now: float
) -> Begun:
    """Works out what `fault` on `entity` does from `now` on; changes nothing.

    With the parameter `spread: n` the injection goes wrong: after `spread_every_s` seconds (1) each, it
    reaches n further nodes, those of the target's job first, then its NVLink domain, rack, cell.

    Raises:
        NotPossibleError: no such fault or target here, or the target is already so.
    """
    if fault not in CONSEQUENCES:
        reason = IMPOSSIBLE.get(fault, f"unknown fault; known are {', '.join(sorted(CONSEQUENCES))}")
        raise NotPossibleError(f"{fault}: {reason}")
    row_of = CONSEQUENCES[fault]
    row, device = locate(world, entity)
    if entity_kind(entity) != row_of.kind:
        raise NotPossibleError(f"{fault} is for a {row_of.kind}, not for {entity}")
    job = world.job_at(row)
    if row_of.kind == "process" and job is None:
        raise NotPossibleError(f"{entity}: no such process, the node is idle")
    aim = Aim(world, entity, row, device, params, owner, now)
    every = aim.number("spread_every_s", 1.0)
    aims = [aim]
    for count, victim in enumerate(
        victims(world, row, int(aim.number("spread", 0)), jobs_only=row_of.kind == "process")
    ):
        site = world.places.sites[victim]
        hit = _entity_at(entity, site.name)
        aims.append(Aim(world, hit, victim, device, params, owner, now + every * (count + 1)))
    effects = [effect for each in aims for effect in row_of.effects(each)]
    signal = row_of.signal(aim)
    return Begun(
        effects=effects,
        signal=signal,
        truth=Truth(
            id=owner,
            source="injected",
            fault=fault,
            entity=entity,
            node=world.places.sites[row].name,
            job=job.name if job else None,
            experiment_id=experiment_id,
            began=now,
            harms=_harms(aims, row_of, signal),
        ),
        evidence={"moved": row_of.evidence, "simulated": True},
    )


def locate(world: World, entity: str) -> tuple[int, int | None]:
    """Row and device of an entity.

    Raises:
        NotPossibleError: the cluster has no such node or device.
    """
    kind, node, *local = entity.split("/")
    row = world.places.row_of.get(node)
    if row is None:
        raise NotPossibleError(f"{entity}: no such node")
    ids = {"gpu": world.places.gpu_ids, "port": world.places.port_ids, "process": world.places.pids}
    if kind == "node" and not local:
        return row, None
    if kind not in ids or not local or local[0] not in ids[kind]():
        raise NotPossibleError(f"{entity}: no such device")
    return row, ids[kind]().index(local[0])


def victims(world: World, row: int, count: int, *, jobs_only: bool) -> list[int]:
    """The `count` rows nearest to `row`: its job's first, then its NVLink domain's, rack's, cell's, the rest."""
    sites, here = world.places.sites, world.places.sites[row]

    def distance(other: int) -> tuple[bool, bool, bool, bool, int]:
        site = sites[other]
        return (
            world.job_of[other] != world.job_of[row] or world.job_of[row] < 0,
            site.domain != here.domain,
            site.rack != here.rack,
            site.cell != here.cell,
            abs(other - row),
        )

    rows = (r for r in range(world.spec.nodes) if r != row and not (jobs_only and world.job_of[r] < 0))
    return sorted(rows, key=distance)[:count]


def _entity_at(entity: str, node: str) -> str:
    kind, _, *local = entity.split("/")
    return "/".join((kind, node, *local))


def _harms(aims: list[Aim], consequence: Consequence, signal: Signal | None) -> tuple[Harm, ...]:
    harms = [Harm(entity=aim.entity, metric=metric, since=aim.now) for aim in aims for metric in consequence.shows]
    if signal is not None:
        harms.append(Harm(entity=aims[0].entity, metric=signal.fault, since=aims[0].now))
    seen: set[str] = set()
    for aim in aims:
        job = aim.world.job_at(aim.row)
        if job is None or job.name in seen:
            continue
        seen.add(job.name)
        since = aim.now + consequence.delay_s
        harms.extend(
            Harm(entity=f"job/{job.name}", metric=metric, since=since) for metric in consequence.job_shows(aim)
        )
    return tuple(harms)
