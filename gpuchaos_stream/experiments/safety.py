"""What may not be hit, whatever a plan says: protected nodes, the control plane's own, a domain that is hit already.

Asked for every experiment that has not begun to inject: when it is started, and again until its first injection.
All that the answer depends on travelled through Kafka or stands in the rules, so that a replay refuses alike.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final, Protocol

from pydantic import Field

from gpuchaos_stream.events.base import Authored, entity_node
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.events.observation import Tick
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.experiments.run import agent_of

#: A node with this label, `true`, is never a target.
PROTECTED_LABEL: Final = "gpuchaos.protected"
#: A worker that has said nothing for so long does not run where it ran any more, seconds.
HOST_S: Final = 600.0
#: When a host was last heard is saved this often, seconds.
_SAVE_EVERY_S: Final = 60.0

_KEY: Final = "safety/hosts"


class MostFaults(Authored):
    """The most faults of different experiments at once in one failure domain.

    One experiment alone may have as many targets there as it declares. As soon as two meet, all of their faults
    count until they are gone: nobody could tell whose harm is whose, or what is left of the domain.
    """

    node: int = Field(default=1, ge=1)
    nvlink_domain: int = Field(default=1, ge=1)
    rail: int = Field(default=1, ge=1)
    rack: int = Field(default=1, ge=1)


class SafetyRules(Authored):
    """The `safety` part of a rule file. `protected` are names of nodes or entities; `*` stands for anything."""

    protected: tuple[str, ...] = ()
    most_faults: MostFaults = MostFaults()


class Place(Protocol):
    """Where an entity sits; `topology.place.Place` is one."""

    @property
    def node(self) -> str | None:
        """The node that holds it."""

    @property
    def domains(self) -> Collection[str]:
        """NVLink domains."""

    @property
    def rails(self) -> Collection[str]:
        """Rails (leaf switches)."""

    @property
    def racks(self) -> Collection[str]:
        """Racks."""


class Places(Protocol):
    """What is known of the cluster; `topology.Topology` is one."""

    def info(self, node: str) -> NodeInfo | None:
        """The latest word of a node."""

    def place(self, entity: str) -> Place:
        """Where an entity sits."""


class Gate:
    """Says which experiments may not begin. State: `safety/hosts`, where the control plane runs."""

    def __init__(self, rules: SafetyRules, places: Places) -> None:
        self._rules = rules
        self._places = places
        self._hosts: dict[str, float] = {}
        self._saved: dict[str, float] = {}

    def feed(self, tick: Tick) -> None:
        """Learns where a worker runs."""
        if tick.host:
            self._hosts[tick.host] = max(tick.time, self._hosts.get(tick.host, 0.0))

    def refusal(self, plan: Plan, others: Collection[tuple[str, str]], now: float) -> str:
        """Why the experiment may not begin at `now`, empty if it may. `others`: experiment and target of what is on."""
        for reason in (*self._protected(plan), *self._own(plan, now), *self._impossible(plan)):
            return f"refused: {reason}"
        return next((f"refused: {reason}" for reason in self._crowded(plan, others)), "")

    def _protected(self, plan: Plan) -> Iterator[str]:
        for entity in plan.targets.entities:
            node = entity_node(entity) or ""
            info = self._places.info(node)
            if info is not None and info.labels.get(PROTECTED_LABEL, "").lower() == "true":
                yield f"{entity}: node {node} has the label {PROTECTED_LABEL}"
            for pattern in self._rules.protected:
                if fnmatchcase(node, pattern) or fnmatchcase(entity, pattern):
                    yield f"{entity} is protected by the rules ({pattern})"

    def _own(self, plan: Plan, now: float) -> Iterator[str]:
        if plan.safety.force:
            return
        for entity in plan.targets.entities:
            node = entity_node(entity) or ""
            if now - self._hosts.get(node, -HOST_S) < HOST_S:
                yield f"{entity}: the control plane itself runs on node {node}; safety.force: true allows it"

    def _impossible(self, plan: Plan) -> Iterator[str]:
        for entity in plan.targets.entities:
            info = self._places.info(agent_of(plan, entity) or "")
            reason = info.faults_impossible.get(plan.fault.name) if info is not None else None
            if reason:
                yield f"{entity}: its agent cannot do {plan.fault.name}: {reason}"

    def _crowded(self, plan: Plan, others: Collection[tuple[str, str]]) -> Iterator[str]:
        mine = Counter(domain for entity in plan.targets.entities for domain in self._domains(entity))
        theirs = Counter[tuple[str, str]]()
        whose: dict[tuple[str, str], str] = {}
        for experiment_id, entity in others:
            for domain in self._domains(entity):
                theirs[domain] += 1
                whose.setdefault(domain, experiment_id)
        for domain in (each for each in mine if each in theirs):  # in order: a replay must say the same
            level, name = domain
            count, most = mine[domain] + theirs[domain], getattr(self._rules.most_faults, level)
            if count > most:
                words = level.replace("_", " ").replace("nvlink", "NVLink")
                yield f"{count} faults at once in {words} {name}, with {whose[domain]}; at most {most} may be"

    def _domains(self, entity: str) -> Iterable[tuple[str, str]]:
        place = self._places.place(entity)
        node = place.node or entity_node(entity)
        yield from [("node", node)] if node else []
        for level, names in (("nvlink_domain", place.domains), ("rail", place.rails), ("rack", place.racks)):
            for name in sorted(names):
                yield level, name

    def dirty(self) -> dict[str, bytes | None]:
        """See `stage.Stateful`."""
        if all(time < self._saved.get(host, -HOST_S) + _SAVE_EVERY_S for host, time in self._hosts.items()):
            return {}
        latest = max(self._hosts.values())
        self._hosts = {host: time for host, time in self._hosts.items() if latest - time < HOST_S}
        self._saved = dict(self._hosts)
        return {_KEY: json.dumps(self._saved).encode()}

    def load(self, items: Mapping[str, bytes]) -> None:
        """See `stage.Stateful`."""
        self._hosts = json.loads(items[_KEY]) if _KEY in items else {}
        self._saved = dict(self._hosts)
