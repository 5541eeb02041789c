"""Blast radius: whom an experiment's faults hurt beyond its declared targets, level by level.

What counts as the target, and is therefore not counted:

- the declared entities, the nodes that hold them, and every device on those nodes: a node fails as one;
- the jobs that run on a target (a GPU's own job; for other targets every job of the node), but not the other
  nodes and GPUs of those jobs: what they suffer is the spread;
- the cell, rack, NVLink domain and rails in which the targets sit: a level is left when another one is hurt;
- of a declared job, cell, rack, rail or domain: all of its nodes.

What counts as hurt, by an anomaly of severity warning or worse that is charged to the experiment:

- a GPU: that GPU, its node and job, and the cell, rack and NVLink domain of the node;
- a process: its node and job, and one GPU. Which one is not known, so a node's hurt GPUs are the larger of its
  hurt GPUs and its hurt processes, at most as many as it has;
- a node: the node and its jobs; all of its GPUs if the anomaly is an error or worse (silent, powered off);
- a port: its node and rail; a NUMA node: its node;
- a job, cell, rack, rail or domain: that one. A slow job does not by itself hurt each of its GPUs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Final

from gpuchaos_stream.correlate.records import AnomalyRecord
from gpuchaos_stream.events.base import Severity, entity_kind, entity_node
from gpuchaos_stream.events.incident import MOST_ENTITIES, BlastRadius
from gpuchaos_stream.topology.topology import Topology

#: Levels that are plain sets of names. GPUs are counted apart, for processes stand for some of them.
_SETS: Final = ("nodes", "cells", "racks", "rails", "nvlink_domains", "jobs")


@dataclass(frozen=True, slots=True)
class Levels:
    """Names per level."""

    nodes: frozenset[str] = frozenset()
    cells: frozenset[str] = frozenset()
    racks: frozenset[str] = frozenset()
    rails: frozenset[str] = frozenset()
    nvlink_domains: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()

    def without(self, other: Levels) -> Levels:
        """What is here and not in `other`."""
        return Levels(*(getattr(self, level) - getattr(other, level) for level in _SETS))


@dataclass(frozen=True, slots=True)
class Harm:
    """One anomaly's harm beyond the targets: `[start, until)`, levels, GPUs, and the process that stands for one."""

    entity: str
    start: float
    until: float
    levels: Levels
    gpus: frozenset[str] = frozenset()
    process: str | None = None


def target_levels(targets: Iterable[str], topology: Topology) -> Levels:
    """The levels that count as the target itself."""
    found: dict[str, set[str]] = {level: set() for level in _SETS}
    for target in targets:
        own = topology.place(target)
        nodes = [topology.place(f"node/{node}") for node in topology.nodes_of(target)]
        found["nodes"].update(each.node for each in nodes if each.node)
        found["jobs"] |= own.jobs.union(*(each.jobs for each in nodes if own.node is None))
        found["rails"] |= own.rails or frozenset[str]().union(*(each.rails for each in nodes))
        for place in (own, *nodes):
            found["cells"] |= place.cells
            found["racks"] |= place.racks
            found["nvlink_domains"] |= place.domains
    return Levels(**{level: frozenset(names) for level, names in found.items()})


def harm(record: AnomalyRecord, targets: Levels, topology: Topology) -> Harm | None:
    """What `record` hurts beyond `targets`, None where that is nothing."""
    if record.weight.rank < Severity.WARNING.rank:
        return None
    levels = _hurt(record, topology).without(targets)
    node = record.node or entity_node(record.entity)
    beyond = node is not None and node not in targets.nodes
    kind = record.entity_kind
    gpus: frozenset[str] = frozenset()
    process: str | None = None
    if beyond and node is not None:
        if kind == "gpu":
            gpus = frozenset({record.entity})
        elif kind == "node" and record.weight.rank >= Severity.ERROR.rank:
            gpus = frozenset(topology.gpus(node))
        elif kind == "process":
            process = record.entity
    if not (gpus or process or any(getattr(levels, level) for level in _SETS)):
        return None
    return Harm(record.entity, record.start, record.until, levels, gpus, process)


def _hurt(record: AnomalyRecord, topology: Topology) -> Levels:
    entity, kind = record.entity, record.entity_kind
    name = entity.removeprefix(f"{kind}/")
    if kind in _CONTAINER_LEVEL:
        return Levels(**{_CONTAINER_LEVEL[kind]: frozenset({name})})
    place = topology.place(entity)
    jobs = frozenset({record.job}) if record.job else topology.jobs(entity)
    return Levels(
        nodes=frozenset({place.node} if place.node else ()),
        cells=place.cells,
        racks=place.racks,
        rails=place.rails if kind == "port" else frozenset(),
        nvlink_domains=place.domains,
        jobs=jobs,
    )


_CONTAINER_LEVEL: Final = {
    "job": "jobs",
    "cell": "cells",
    "rack": "racks",
    "rail": "rails",
    "domain": "nvlink_domains",
}


class Radius:
    """The harms of one experiment, or of several together: sets unite, nobody is counted twice.

    `gpu_limit` is how many GPUs a node has; one that is not known has as many as it has processes. Between two
    beginnings or ends of harms only the GPU-seconds change, so the rest is worked out once for each such stretch.
    """

    def __init__(self, harms: tuple[Harm, ...], gpu_limit: Mapping[str, int]) -> None:
        self.harms = harms
        self._gpu_limit = gpu_limit
        self._nodes = frozenset[str]().union(*(each.levels.nodes for each in harms))
        self._moments = sorted({moment for each in harms for moment in (each.start, each.until)})
        self._stretch: tuple[int, BlastRadius] | None = None
        self._steps = self._count_gpus()
        widths = (count * (end - time) for (time, count), (end, _) in pairwise(self._steps))
        self._sums = [0.0, *accumulate(widths)]

    def at(self, now: float, unknown_nodes: int = 0) -> BlastRadius:
        """The blast radius at `now`, event time. Harm that begins later is not counted yet."""
        stretch = bisect_right(self._moments, now)
        if self._stretch is None or self._stretch[0] != stretch:
            self._stretch = (stretch, self._counts(now))
        seconds = round(self._gpu_seconds(now), 3)
        return self._stretch[1].model_copy(update={"gpu_seconds": seconds, "unknown_nodes": unknown_nodes})

    def _counts(self, now: float) -> BlastRadius:
        """All but the GPU-seconds and what is unknown."""
        ever = [each for each in self.harms if each.start <= now]
        present = [each for each in ever if now < each.until]
        sets = {level: frozenset().union(*(getattr(each.levels, level) for each in ever)) for level in _SETS}
        return BlastRadius(
            gpus=self._gpus(ever),
            gpus_now=self._gpus(present),
            nodes_now=len(frozenset().union(*(each.levels.nodes for each in present))),
            jobs_now=len(frozenset().union(*(each.levels.jobs for each in present))),
            entities=tuple(sorted({each.entity for each in ever})[:MOST_ENTITIES]),
            **{level: len(names) for level, names in sets.items()},
        )

    def nodes(self) -> frozenset[str]:
        """All nodes hurt."""
        return self._nodes

    def _gpus(self, harms: Iterable[Harm]) -> int:
        gpus: defaultdict[str, set[str]] = defaultdict(set)
        processes: defaultdict[str, set[str]] = defaultdict(set)
        for each in harms:
            for gpu in each.gpus:
                gpus[gpu.split("/")[1]].add(gpu)
            if each.process:
                processes[each.process.split("/")[1]].add(each.process)
        return sum(self._on_node(node, len(gpus[node]), len(processes[node])) for node in {*gpus, *processes})

    def _on_node(self, node: str, gpus: int, processes: int) -> int:
        return max(gpus, min(processes, self._gpu_limit.get(node, processes)))

    def _count_gpus(self) -> list[tuple[float, int]]:
        """Hurt GPUs over time, as (time, GPUs from then on): a sweep over the beginnings and ends of all harms."""
        moments: list[tuple[float, int, Harm]] = []
        for each in self.harms:
            if each.gpus or each.process:
                moments += [(each.start, 1, each), (each.until, -1, each)]
        moments.sort(key=lambda moment: moment[0])
        open_on: defaultdict[str, int] = defaultdict(int)
        gpus: defaultdict[str, int] = defaultdict(int)
        processes: defaultdict[str, int] = defaultdict(int)
        total, steps = 0, list[tuple[float, int]]()
        for time, sign, each in moments:
            for device in (*each.gpus, *((each.process,) if each.process else ())):
                node = device.split("/")[1]
                count = processes if entity_kind(device) == "process" else gpus
                before = open_on[device]
                open_on[device] += sign
                if (before > 0) == (open_on[device] > 0):
                    continue
                total -= self._on_node(node, gpus[node], processes[node])
                count[node] += sign
                total += self._on_node(node, gpus[node], processes[node])
            if steps and steps[-1][0] == time:
                steps[-1] = (time, total)
            else:
                steps.append((time, total))
        return steps

    def _gpu_seconds(self, now: float) -> float:
        step = bisect_right(self._steps, now, key=itemgetter(0)) - 1
        if step < 0:
            return 0.0
        time, count = self._steps[step]
        return self._sums[step] + count * (now - time)
