"""What is known of one cluster: the latest word of each node, experiment and incident, and of each node what follows.

Events may come twice and, of different keys, in any order; the latest version of each counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gpuchaos_stream.correlate.incidents import SHOWN
from gpuchaos_stream.events.base import Event, entity_kind, entity_node
from gpuchaos_stream.events.experiment import BreakerState, ExperimentState, InjectedFault, Status
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.experiments.run import SETTLED
from gpuchaos_stream.web.layout import Where, column, natural
from gpuchaos_stream.web.states import Facts, Harm

#: Finished experiments and closed incidents that are kept, the newest.
MOST_FINISHED: Final = 1000
MOST_CLOSED: Final = 500
#: How often more than that many may be there before the oldest are dropped.
_SLACK: Final = 100
#: Seconds after which a node that has told nothing of itself is no longer drawn: it was taken away.
FORGET_S: Final = 24 * 3600.0


@dataclass(slots=True)
class KnownNode:
    """One node. `content` is its last word as JSON, without id and time; `heard` when it said it, epoch seconds."""

    content: str
    order: tuple[float, str]
    heard: float
    where: Where
    facts: Facts = field(default_factory=Facts)


@dataclass(slots=True)
class Changed:
    """What changed since it was last asked."""

    nodes: set[str] = field(default_factory=set)
    experiments: set[str] = field(default_factory=set)
    topology: bool = False
    breaker: bool = False
    incidents: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        """Whether anything did."""
        return bool(self.nodes or self.experiments or self.topology or self.breaker or self.incidents)


class Known:
    """All that the board knows of one cluster."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.nodes: dict[str, KnownNode] = {}
        self.experiments: dict[str, ExperimentState] = {}
        #: A state for each status that an experiment was seen in, for the way to its verdict.
        self.versions: dict[str, dict[Status, ExperimentState]] = {}
        self.incidents: dict[str, Incident] = {}
        self.breaker: BreakerState | None = None
        self.changed = Changed()
        #: Facts of nodes that have not told their place yet: topics are read in any order.
        self._early: dict[str, Facts] = {}

    def take_changed(self) -> Changed:
        """What changed since the last call."""
        changed, self.changed = self.changed, Changed()
        return changed

    def running(self) -> list[ExperimentState]:
        """Experiments that are not finished, the newest first."""
        return _newest(state for state in self.experiments.values() if state.status is not Status.FINISHED)

    def finished(self) -> list[ExperimentState]:
        """The others, those that ended last first."""
        done = [state for state in self.experiments.values() if state.status is Status.FINISHED]
        return sorted(done, key=lambda state: (state.finished or state.time, state.id), reverse=True)

    def open_unexplained(self) -> list[Incident]:
        """Open incidents that no experiment explains, the newest first."""
        found = (i for i in self.incidents.values() if not i.attributed and i.closed is None and not i.superseded)
        return sorted(found, key=lambda incident: (incident.opened, incident.id), reverse=True)

    def facts(self, node: str) -> Facts:
        """What is known of a node besides its place."""
        known = self.nodes.get(node)
        if known is not None:
            return known.facts
        return self._early.setdefault(node, Facts())

    def hear(self, event: Event, at: float) -> None:
        """Takes one event, which reached Kafka `at`, epoch seconds."""
        if isinstance(event, NodeInfo):
            self._hear_node(event, at)
        elif isinstance(event, ExperimentState):
            self._hear_experiment(event)
        elif isinstance(event, Incident):
            self._hear_incident(event)
        elif isinstance(event, BreakerState) and (self.breaker is None or event.time >= self.breaker.time):
            self.changed.breaker = self.changed.breaker or event != self.breaker
            self.breaker = event

    def set_silent(self, nodes: Iterable[str], *, stale: bool | None = None, unheard: bool | None = None) -> None:
        """Says of each node whether its telemetry has stopped, and whether nobody tells of it; None: as it was."""
        for node in nodes:
            facts = self.facts(node)
            before = (facts.stale, facts.unheard)
            facts.stale = facts.stale if stale is None else stale
            facts.unheard = facts.unheard if unheard is None else unheard
            if before != (facts.stale, facts.unheard):
                self.changed.nodes.add(node)

    def same_node(self, node: str, order: tuple[float, str], at: float) -> None:
        """A node has said again what it said before."""
        known = self.nodes.get(node)
        if known is not None and order >= known.order:
            known.order, known.heard = order, max(at, known.heard)

    def forget(self, now: float) -> None:
        """Drops nodes that have been gone for `FORGET_S`."""
        gone = [name for name, node in self.nodes.items() if now - node.heard > FORGET_S]
        for name in gone:
            del self.nodes[name]
        self.changed.topology = self.changed.topology or bool(gone)

    def _hear_node(self, info: NodeInfo, at: float) -> None:
        order, known = (info.time, info.id), self.nodes.get(info.node)
        if known is not None and order < known.order:
            return
        content = info.model_dump_json(exclude={"id", "time"})
        if known is not None and known.content == content:
            known.order, known.heard = order, max(at, known.heard)
            return
        where = Where(
            cell=sys.intern(info.cell),
            rack=sys.intern(info.rack or ""),
            rails={sys.intern(port.name): sys.intern(port.rail) for port in info.ports if port.rail},
        )
        if known is None:
            facts = self._early.pop(info.node, None) or Facts()
            self.nodes[info.node] = KnownNode(content, order, at, where, facts)
            self.changed.topology = True
            return
        self.changed.topology = self.changed.topology or known.where != where
        known.content, known.order, known.heard, known.where = content, order, max(at, known.heard), where

    def _hear_experiment(self, state: ExperimentState) -> None:
        before = self.experiments.get(state.id)
        if before is not None and (before.time > state.time or before == state):
            return
        self.experiments[state.id] = state
        self.versions.setdefault(state.id, {})[state.status] = state
        self.changed.experiments.add(state.id)
        for fault in before.faults if before is not None else ():
            self._fault(fault, state, there=False, runs=False)
        for fault in state.faults:
            runs = state.status is not Status.FINISHED
            self._fault(fault, state, there=fault.phase not in SETTLED, runs=runs)
        if len(self.experiments) > MOST_FINISHED + _SLACK:
            for old in self.finished()[MOST_FINISHED:]:
                if all(fault.phase in SETTLED for fault in old.faults):
                    del self.experiments[old.id], self.versions[old.id]
                    self.changed.experiments.add(old.id)

    def _fault(self, fault: InjectedFault, state: ExperimentState, *, there: bool, runs: bool) -> None:
        node, key = fault.node or entity_node(fault.entity), (state.id, fault.fault_id)
        if node is None:
            return
        facts = self.facts(node)
        if there:
            facts.faults[key] = fault.entity
        else:
            facts.faults.pop(key, None)
        if runs:
            facts.own.add(state.id)
        else:
            facts.own.discard(state.id)
        self.changed.nodes.add(node)

    def _hear_incident(self, incident: Incident) -> None:
        before = self.incidents.get(incident.id)
        if before is not None and (before.time > incident.time or before == incident):
            return
        self.incidents[incident.id] = incident
        if not incident.attributed or (before is not None and not before.attributed):
            self.changed.incidents.add(incident.id)
        if incident.experiment_id is not None:
            self.changed.experiments.add(incident.experiment_id)
        if before is not None:
            for node, key, _ in _harms(before):
                self.facts(node).harms.pop(key, None)
                self.changed.nodes.add(node)
        for node, key, harm in _harms(incident):
            self.facts(node).harms[key] = harm
            self.changed.nodes.add(node)
        if len(self.incidents) > MOST_CLOSED + _SLACK:
            self._drop_closed()

    def _drop_closed(self) -> None:
        closed = [i for i in self.incidents.values() if i.closed is not None or i.superseded]
        closed.sort(key=lambda incident: (incident.time, incident.id), reverse=True)
        for old in closed[MOST_CLOSED:]:
            del self.incidents[old.id]


def marks(node: KnownNode) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Columns of the rails and local ids of the GPUs of a node that have an open anomaly."""
    if not node.facts.harms:
        return (), ()
    rails, gpus = set(), set()
    for harm in node.facts.harms.values():
        kind, local = entity_kind(harm.entity), harm.entity.rsplit("/", 1)[-1]
        if kind == "gpu":
            gpus.add(local)
        elif kind == "port" and local in node.where.rails:
            rails.add(column(node.where.rails[local], node.where.cell))
    return tuple(sorted(rails, key=natural)), tuple(sorted(gpus, key=natural))


def _newest(states: Iterable[ExperimentState]) -> list[ExperimentState]:
    return sorted(states, key=lambda state: (state.started, state.id), reverse=True)


def _harms(incident: Incident) -> Iterable[tuple[str, tuple[str, str], Harm]]:
    """The open anomalies of an incident by node. Nodes of a full list's rest are hurt as a whole."""
    if incident.superseded or incident.closed is not None:
        return
    named = set()
    for each in incident.anomalies:
        node = entity_node(each.entity)
        if node is None:
            continue
        named.add(node)
        if each.end is None:
            yield (
                node,
                (incident.id, each.anomaly_id),
                Harm(
                    each.entity,
                    each.metric,
                    incident.experiment_id,
                    each.start,
                    each.severity,
                    each.evidence.sentence,
                    incident.id,
                ),
            )
    if len(incident.anomalies) >= SHOWN:
        for node in incident.nodes:
            if node not in named:
                words = "one of more anomalies than its incident lists"
                harm = Harm(
                    f"node/{node}",
                    "not_listed",
                    incident.experiment_id,
                    incident.opened,
                    incident.severity,
                    words,
                    incident.id,
                )
                yield node, (incident.id, ""), harm
