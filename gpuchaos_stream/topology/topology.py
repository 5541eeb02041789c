"""The topology: where each device sits, made of what the nodes say of themselves.

Indexes of sets, so that a lookup does not grow with the cluster. The latest word of a node counts, whatever
order the words arrive in. A job that has left a node stays related to it for a while: what a fault on the node
did to the job is still its doing after the scheduler moved the work.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from gpuchaos_stream.events.base import entity_kind, entity_node
from gpuchaos_stream.events.node import GpuPlace, NodeInfo, PortPlace
from gpuchaos_stream.topology.place import EVERY, Place, Relation, Through, relation

PREFIX: Final = "topology/"
_NODE: Final = PREFIX + "node/"
_SEEN: Final = PREFIX + "seen/"

#: Levels in which an entity sits: what spans nodes sits in levels that are larger than itself, and not in each
#: NVLink domain of which it holds a part. Kinds that are not listed sit on one node and in all levels.
_LEVELS: Final[dict[str, frozenset[str]]] = {
    "job": frozenset({"cell", "rack"}),
    "domain": frozenset({"domain", "cell", "rack"}),
    "rail": frozenset({"cell"}),
    "cell": frozenset({"cell", "rack"}),
    "rack": frozenset({"rack"}),
}
_ALL_LEVELS: Final = frozenset({"domain", "cell", "rack"})


class _Stored(msgspec.Struct, array_like=True):
    """One node as it is saved under `node/`: its word (JSON) and the jobs it has lost, with when it last had them.

    When the word was last said is saved apart, under `seen/`: that changes every 30 s, and a word hardly ever.
    """

    info: str
    left: dict[str, float]


class Topology:
    """Where nodes and devices sit (Stateful, prefix `topology/`).

    `version` changes whenever an answer may have changed: whoever keeps answers compares it.
    """

    def __init__(self) -> None:
        self.version = 0
        self._clear()

    def _clear(self) -> None:
        self._infos: dict[str, NodeInfo] = {}
        self._order: dict[str, tuple[float, str]] = {}
        self._left: dict[str, dict[str, float]] = {}
        self._members: defaultdict[str, set[str]] = defaultdict(set)
        self._places: dict[tuple[str, str | None], Place] = {}
        self._dirty: set[str] = set()
        self._heard: set[str] = set()
        self.gpu_count = 0

    # -- what nodes say ------------------------------------------------------------------------------------

    def apply(self, info: NodeInfo) -> bool:
        """Takes a node's word. Returns whether anything changed; an older or equal word changes nothing."""
        known, order = self._infos.get(info.node), (info.time, info.id)
        if known is None:
            self._put(info)
        elif _content(info) == _content(known):
            if order > self._order[info.node]:
                self._order[info.node] = order
                self._heard.add(info.node)
            return False
        elif order < self._order[info.node]:
            return self._remember(info.node, _jobs(info) - _jobs(known), info.time)
        else:
            self._remember(info.node, _jobs(known) - _jobs(info), self._order[info.node][0])
            self._drop(known)
            self._put(info)
            for job in _jobs(info):
                self._left.get(info.node, {}).pop(job, None)
        self._changed(info.node)
        return True

    def _remember(self, node: str, jobs: Iterable[str], time: float) -> bool:
        left = self._left.setdefault(node, {})
        newer = [job for job in jobs if left.get(job, -1.0) < time]
        left.update(dict.fromkeys(newer, time))
        if newer:
            self._changed(node)
        return bool(newer)

    def _put(self, info: NodeInfo) -> None:
        self._infos[info.node] = info
        self._order[info.node] = (info.time, info.id)
        self._heard.add(info.node)
        self.gpu_count += len(info.gpus)
        for key in _containers(info):
            self._members[key].add(info.node)

    def _drop(self, info: NodeInfo) -> None:
        self.gpu_count -= len(info.gpus)
        for key in _containers(info):
            self._members[key].discard(info.node)
            if not self._members[key]:
                del self._members[key]

    def _changed(self, node: str) -> None:
        self.version += 1
        self._places.clear()
        self._dirty.add(node)

    def forget(self, before: float) -> None:
        """Drops the memory of jobs that left their node before `before` (event time)."""
        for node, left in self._left.items():
            gone = [job for job, time in left.items() if time < before]
            for job in gone:
                del left[job]
            if gone:
                self._changed(node)

    # -- lookups -------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Collection[str]:
        """Names of all known nodes."""
        return self._infos.keys()

    def info(self, node: str) -> NodeInfo | None:
        """The latest word of a node."""
        return self._infos.get(node)

    def heard(self, node: str) -> float:
        """Event time of a node's latest word, -inf for an unknown node."""
        return self._order[node][0] if node in self._order else -math.inf

    def cell(self, node: str) -> str | None:
        """Cell of a node, None for an unknown node."""
        info = self._infos.get(node)
        return info.cell if info else None

    def rack(self, node: str) -> str | None:
        """Rack of a node."""
        info = self._infos.get(node)
        return info.rack if info else None

    def domain(self, node: str) -> str | None:
        """NVLink domain of a node."""
        info = self._infos.get(node)
        return info.nvlink_domain if info else None

    def gpus(self, node: str) -> tuple[str, ...]:
        """GPU entities of a node."""
        info = self._infos.get(node)
        return tuple(f"gpu/{node}/{gpu.index}" for gpu in info.gpus) if info else ()

    def ports(self, node: str) -> tuple[str, ...]:
        """RDMA port entities of a node."""
        info = self._infos.get(node)
        return tuple(f"port/{node}/{port.name}" for port in info.ports) if info else ()

    def rail(self, port: str) -> str | None:
        """Rail of a port entity."""
        found = self._port(port)
        return found.rail if found else None

    def jobs(self, entity: str) -> frozenset[str]:
        """Jobs that an entity works for now.

        A GPU's own job where the node names it; otherwise, and for processes, ports and NUMA nodes, which a
        node does not tie to a job, every job of the node. A cell, rack or rail works for the jobs of its nodes.
        """
        kind, node = entity_kind(entity), entity_node(entity)
        if kind == "job":
            return frozenset({entity.removeprefix("job/")})
        if node is None:
            return frozenset().union(*(self.jobs(f"node/{member}") for member in self.nodes_of(entity)))
        info = self._infos.get(node)
        if info is None:
            return frozenset()
        if kind == "gpu" and any(gpu.job for gpu in info.gpus):
            own = _gpu(info, entity)
            return frozenset({own.job}) if own is not None and own.job else frozenset()
        return _jobs(info)

    def nodes_of(self, entity: str) -> frozenset[str]:
        """Nodes that an entity touches: the one that holds it, or the members of what spans nodes."""
        node = entity_node(entity)
        if node is not None:
            return frozenset({node})
        return frozenset(self._members.get(entity, ()))

    # -- nearness ------------------------------------------------------------------------------------------

    def place(self, entity: str, job: str | None = None) -> Place:
        """Where `entity` sits, jobs that lately left its node included. `job` is its job where that is known."""
        key = (entity, job)
        place = self._places.get(key)
        if place is None:
            place = self._place(entity)
            if job is not None:
                place = replace(place, jobs=frozenset({job}))
            self._places[key] = place
        return place

    def relation(self, one: str, other: str, through: Collection[Through] = EVERY) -> Relation | None:
        """The nearest relation between two entities, None where they are unrelated."""
        return relation(self.place(one), self.place(other), through)

    def distance(self, one: str, other: str) -> int | None:
        """Hops between two entities by `place.RELATIONS` (0: the same one), None where they are unrelated."""
        found = self.relation(one, other)
        return found.hops if found else None

    def _place(self, entity: str) -> Place:
        node = entity_node(entity)
        kind = entity_kind(entity)
        members = [self._infos[name] for name in self.nodes_of(entity) if name in self._infos]
        jobs = self.jobs(entity) if kind == "job" or node is not None else frozenset[str]()
        if node is not None:
            jobs |= self._left.get(node, {}).keys()
        levels = _LEVELS.get(kind, _ALL_LEVELS)
        return Place(
            entity=entity,
            node=node,
            jobs=jobs,
            domains=frozenset(i.nvlink_domain for i in members if i.nvlink_domain and "domain" in levels),
            rails=self._rails(entity, kind, members),
            cells=frozenset(info.cell for info in members if "cell" in levels),
            racks=frozenset(info.rack for info in members if info.rack and "rack" in levels),
        )

    def _rails(self, entity: str, kind: str, members: Iterable[NodeInfo]) -> frozenset[str]:
        """Rails of a port or a rail itself; a node is on all rails of its ports; other things are on none."""
        if kind == "rail":
            return frozenset({entity.removeprefix("rail/")})
        if kind == "port":
            own = self.rail(entity)
            return frozenset({own} if own else ())
        if kind == "node":
            return frozenset(port.rail for info in members for port in info.ports if port.rail)
        return frozenset()

    def _port(self, entity: str) -> PortPlace | None:
        node = entity_node(entity)
        info = self._infos.get(node) if node else None
        name = entity.rsplit("/", 1)[-1]
        return next((port for port in info.ports if port.name == name), None) if info else None

    # -- state ---------------------------------------------------------------------------------------------

    def dirty(self) -> dict[str, bytes | None]:
        """Nodes that changed since the last call, and when each was heard."""
        changed: dict[str, bytes | None] = {}
        for node in self._dirty:
            stored = _Stored(self._infos[node].model_dump_json(), self._left.get(node, {}))
            changed[_NODE + node] = msgspec.json.encode(stored)
        for node in self._heard:
            changed[_SEEN + node] = msgspec.json.encode(self._order[node])
        self._dirty.clear()
        self._heard.clear()
        return changed

    def load(self, items: Mapping[str, bytes]) -> None:
        """Replaces everything by the saved nodes."""
        self._clear()
        self.version += 1
        for key, value in items.items():
            if key.startswith(_NODE):
                stored = msgspec.json.decode(value, type=_Stored)
                info = NodeInfo.model_validate_json(stored.info)
                self._put(info)
                self._left[info.node] = stored.left
                if (seen := items.get(_SEEN + info.node)) is not None:
                    self._order[info.node] = msgspec.json.decode(seen, type=tuple[float, str])
        self._heard.clear()


def _jobs(info: NodeInfo) -> frozenset[str]:
    return frozenset(info.jobs).union(gpu.job for gpu in info.gpus if gpu.job)


def _gpu(info: NodeInfo, entity: str) -> GpuPlace | None:
    index = entity.rsplit("/", 1)[-1]
    return next((gpu for gpu in info.gpus if gpu.index == index), None)


def _containers(info: NodeInfo) -> set[str]:
    """Entities that the node is a member of."""
    keys = {f"cell/{info.cell}"}
    keys.update(f"job/{job}" for job in _jobs(info))
    keys.update(f"rail/{port.rail}" for port in info.ports if port.rail)
    if info.rack:
        keys.add(f"rack/{info.rack}")
    if info.nvlink_domain:
        keys.add(f"domain/{info.nvlink_domain}")
    return keys


def _content(info: NodeInfo) -> tuple[object, ...]:
    """What makes two words of a node differ: everything but when and under which id it was said."""
    return (
        info.cell,
        info.rack,
        info.nvlink_domain,
        info.gpus,
        info.ports,
        info.jobs,
        info.labels,
        info.agent_version,
        info.faults_possible,
        info.faults_impossible,
    )
