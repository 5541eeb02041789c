"""Events in, messages into the queue, messages out: the whole of `gpuchaos notify` but Kafka and the command line."""

from __future__ import annotations

from collections.abc import Iterable

from gpuchaos_stream.events.experiment import BreakerState, ExperimentState, Status
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.notify import metrics
from gpuchaos_stream.notify.book import Told, message, next_kind
from gpuchaos_stream.notify.conditions import Condition, of_breaker, of_experiment, of_incident
from gpuchaos_stream.notify.config import Config
from gpuchaos_stream.notify.message import Kind, Message
from gpuchaos_stream.notify.queue import Queue
from gpuchaos_stream.notify.routing import Way, ways


class Notifier:
    """Hears states and queues what is to be said about them. Call `hear` within a transaction of the queue."""

    def __init__(self, config: Config, queue: Queue) -> None:
        self._config = config
        self._queue = queue

    def hear(self, event: ExperimentState | BreakerState | Incident, now: float) -> None:
        """Takes a state, at `now`, epoch seconds. The same one again changes nothing."""
        conditions: Iterable[Condition]
        if isinstance(event, ExperimentState):
            finished = event.status is Status.FINISHED
            self._queue.keep_experiment(event.cluster, event.id, None if finished else event.model_dump_json())
            conditions = of_experiment(event)
        elif isinstance(event, BreakerState):
            conditions = of_breaker(event, self._running(event.cluster))
        else:
            conditions = of_incident(event, self._running(event.cluster))
        for condition in conditions:
            self._say(condition, now)

    def _running(self, cluster: str) -> list[ExperimentState]:
        states = self._queue.experiments().items()
        return [ExperimentState.model_validate_json(state) for (where, _), state in states if where == cluster]

    def _say(self, condition: Condition, now: float) -> None:
        told = self._queue.told(condition.key)
        kind = next_kind(told, condition, now)
        link = self._config.link_of(condition.cluster, condition.experiment_id)
        if kind is None:
            if told is not None and told.firing:
                # Not worth a message, but what is posted again to Alertmanager says how it stands.
                self._queue.tell(condition.key, told, message(condition, Kind.UPDATED, told, link), now)
            return
        said = message(condition, kind, told, link)
        found = self._ways(said, told)
        for way in found:
            new = kind is Kind.UPDATED and told is not None and way.receiver not in told.receivers
            own = said.model_copy(update={"kind": Kind.OPENED, "was": None}) if new else said
            if self._config.receivers[way.receiver].takes(own):
                self._queue.put(own, way, now)
                metrics.MESSAGES.labels(receiver=way.receiver, kind=own.kind).inc()
        receivers = {way.receiver for way in found} | set(told.receivers if told and said.firing else ())
        self._queue.tell(
            condition.key,
            Told(
                firing=said.firing,
                stage=condition.stage,
                severity=said.severity,
                count=(told.count if told else 0) + 1,
                receivers=tuple(sorted(receivers)),
                starts=said.starts,
                labels=said.labels,
            ),
            said,
            now,
        )

    def _ways(self, said: Message, told: Told | None) -> list[Way]:
        """Who is told: by the routes, and of an open alert whoever was told before. A resolve goes to those alone."""
        known = set(told.receivers) & set(self._config.receivers) if told is not None else set()
        labels = {**said.labels, "severity": str(said.severity)}
        found = {way.receiver: way for way in ways(self._config.routes, labels, said.severity)}
        if said.kind is Kind.RESOLVED:
            found = {name: way for name, way in found.items() if name in known}
        if said.kind in (Kind.UPDATED, Kind.RESOLVED):
            for name in known - set(found):
                found[name] = Way(receiver=name, group=said.key, labels={}, wait=0.0)
        return [found[name] for name in sorted(found)]
