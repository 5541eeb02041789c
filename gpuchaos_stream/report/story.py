"""What was said of the experiments of one cluster: the events that a report is made of.

Events of different keys may come in any order, as topics are read one by one; of one experiment or incident, in the
order in which they were sent, which is what a partition keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Self

from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.experiment import BreakerState, ExperimentState
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.topology.topology import Topology

#: Words of agents that a report has no use for: there is one every few seconds.
_TOO_MANY: Final = frozenset({FaultPhase.RENEWED, FaultPhase.OBSERVED})


class Story:
    """The events of one cluster, those of other clusters left out. A repeat changes nothing."""

    def __init__(self, cluster: str | None = None) -> None:
        self.cluster = cluster
        self._states: dict[str, dict[float, ExperimentState]] = {}
        self._incidents: dict[str, Incident] = {}
        self._faults: dict[str, dict[str, FaultEvent]] = {}
        self._nodes: dict[tuple[str, str], NodeInfo] = {}
        self._breaker: dict[tuple[float, str], BreakerState] = {}

    @classmethod
    def of(cls, events: Iterable[Event], cluster: str | None = None) -> Self:
        """The story that `events` tell."""
        story = cls(cluster)
        for event in events:
            story.feed(event)
        return story

    def feed(self, event: Event) -> None:
        """Takes one event; of an experiment and an incident the latest version counts, of one time the last one."""
        if self.cluster not in (None, event.cluster):
            return
        if isinstance(event, ExperimentState):
            self._states.setdefault(event.id, {})[event.time] = event
        elif isinstance(event, BreakerState):
            self._breaker[event.time, event.cause] = event
        elif isinstance(event, Incident):
            known = self._incidents.get(event.id)
            if known is None or known.time <= event.time:
                self._incidents[event.id] = event
        elif isinstance(event, FaultEvent) and event.experiment_id and event.phase not in _TOO_MANY:
            self._faults.setdefault(event.experiment_id, {})[event.id] = event
        elif isinstance(event, NodeInfo):
            content = event.model_dump_json(exclude={"id", "time"})
            known_info = self._nodes.get((event.node, content))
            if known_info is None or known_info.time < event.time:
                self._nodes[event.node, content] = event

    def states(self) -> list[ExperimentState]:
        """The latest state of each experiment, oldest first."""
        latest = (versions[max(versions)] for versions in self._states.values())
        return sorted(latest, key=lambda state: (state.started, state.id))

    def state(self, experiment_id: str) -> ExperimentState | None:
        """The latest state of one experiment; None for one of which nothing was said."""
        versions = self._states.get(experiment_id)
        return versions[max(versions)] if versions else None

    def versions(self, experiment_id: str) -> list[ExperimentState]:
        """Every state of one experiment that is known, by time: all of them in a recording, some of them in Kafka."""
        versions = self._states.get(experiment_id, {})
        return [versions[time] for time in sorted(versions)]

    def faults(self, experiment_id: str) -> list[FaultEvent]:
        """What agents said of an experiment's faults, by event time; renewals of leases left out."""
        events = self._faults.get(experiment_id, {}).values()
        return sorted(events, key=lambda event: (event.event_time, event.id))

    def incidents(self, experiment_id: str | None = None) -> list[Incident]:
        """The incidents of one experiment, or those of none, oldest first; superseded ones left out."""
        found = (i for i in self._incidents.values() if i.experiment_id == experiment_id and not i.superseded)
        return sorted(found, key=lambda incident: (incident.opened, incident.id))

    def breaker(self) -> list[BreakerState]:
        """States of the breaker, by time."""
        return [self._breaker[key] for key in sorted(self._breaker)]

    def topology(self, since: float) -> Topology:
        """Where things sit by the latest word of each node; jobs that left their node before `since` are gone."""
        topology = Topology()
        for info in sorted(self._nodes.values(), key=lambda info: (info.time, info.node, info.id)):
            topology.apply(info)
        topology.forget(since)
        return topology
