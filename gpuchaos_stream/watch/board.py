"""The model of `gpuchaos watch`: what was heard of one cluster, as rows, and which of them changed. Pure.

Time is an argument: `now` is the broker's clock, epoch seconds, as far as the caller knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from gpuchaos_stream.events.experiment import BreakerState, ExperimentState, Status
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.events.observation import Tick
from gpuchaos_stream.watch.rows import (
    BreakerRow,
    ControlRow,
    ExperimentRow,
    IncidentRow,
    Row,
    experiment_row,
    incident_row,
)

#: A worker ticks four times a second; after so many seconds without a tick what is shown is called old.
SILENT_S: Final = 5.0
#: A finished experiment stays in view so long, seconds.
KEEP_S: Final = 60.0

#: What of a row moves by itself, and is no change of it.
_MOVING: Final = {"time_left_s", "silent_s", "says"}
Key = Callable[[Row], object]


def told(row: Row) -> object:
    """All that a row says but for what moves with the clock. That a first worker is heard is a change."""
    said = row.model_dump(exclude=_MOVING)
    return (said, row.silent_s is not None) if isinstance(row, ControlRow) else said


class Board:
    """One cluster as it was last heard of. `only` is the one experiment that is looked at; None: all that run."""

    def __init__(self, cluster: str, began: float, *, only: str | None = None) -> None:
        self.cluster = cluster
        self._only = only
        self._began = began
        self._ticked: float | None = None
        self._states: dict[str, ExperimentState] = {}
        self._over: dict[str, float] = {}
        self._incidents: dict[str, Incident] = {}
        self._breaker: BreakerState | None = None
        self._told: dict[str, object] = {}

    def feed(self, event: Any, now: float) -> None:
        """Takes an event; those of other clusters and other kinds are passed by, and older ones than what is known."""
        if getattr(event, "cluster", None) != self.cluster:
            return
        if isinstance(event, Tick):
            self._ticked = now
        elif isinstance(event, BreakerState):
            self._breaker = event
        elif isinstance(event, ExperimentState):
            self._experiment(event, now)
        elif isinstance(event, Incident):
            self._incident(event)

    def forget_finished(self) -> None:
        """Leaves out what was over before the watch began: called once, after what was kept in Kafka was fed."""
        if self._only is None:
            self._states = {key: s for key, s in self._states.items() if s.status is not Status.FINISHED}
        self._over.clear()
        self._incidents = {key: each for key, each in self._incidents.items() if each.closed is None}

    def state(self, experiment_id: str) -> ExperimentState | None:
        """The last state of an experiment."""
        return self._states.get(experiment_id)

    def rows(self, now: float) -> list[Row]:
        """Everything in view at `now`: the control plane, the breaker, experiments by their start, open incidents."""
        return [self._control(now), self._breaker_row(), *self._experiments(now), *self._open_incidents()]

    def changes(self, now: float, key: Key = told) -> list[Row]:
        """The rows that are new or say something else than at the last call, by `key`. A closed incident comes once."""
        found = []
        closed = {key for key, each in self._incidents.items() if each.closed is not None}
        for row in [*self.rows(now), *(incident_row(self._incidents[key]) for key in sorted(closed))]:
            said = key(row)
            if self._told.get(_name(row)) != said:
                self._told[_name(row)] = said
                found.append(row)
        for each in closed:
            del self._incidents[each]
        return found

    def _experiment(self, state: ExperimentState, now: float) -> None:
        if self._only not in (None, state.id):
            return
        known = self._states.get(state.id)
        if known is not None and known.time > state.time:
            return
        self._states[state.id] = state
        if state.status is Status.FINISHED:
            self._over.setdefault(state.id, now)

    def _incident(self, incident: Incident) -> None:
        if incident.attributed or incident.superseded:
            self._incidents.pop(incident.id, None)
        elif incident.closed is None or incident.id in self._incidents:
            self._incidents[incident.id] = incident

    def _experiments(self, now: float) -> Iterator[ExperimentRow]:
        for state in sorted(self._states.values(), key=lambda each: (each.started, each.id)):
            if self._only is not None or now < self._over.get(state.id, now) + KEEP_S:
                yield experiment_row(state, now)

    def _open_incidents(self) -> Iterator[IncidentRow]:
        for incident in sorted(self._incidents.values(), key=lambda each: (each.opened, each.id)):
            if incident.closed is None:
                yield incident_row(incident)

    def _breaker_row(self) -> BreakerRow:
        state = self._breaker or BreakerState(id="breaker", time=0.0, cluster=self.cluster)
        return BreakerRow(
            cluster=self.cluster,
            tripped=state.tripped,
            since=state.since,
            cause=state.cause,
            frozen_until=state.frozen_until,
            reset_by=state.reset_by,
            reset_reason=state.reset_reason,
        )

    def _control(self, now: float) -> ControlRow:
        age = max(0.0, now - (self._began if self._ticked is None else self._ticked))
        silent = age > SILENT_S
        if self._ticked is None:
            says = (
                f"no worker has been heard in {age:.0f} s: is one running? what is shown is the last that was said"
                if silent
                else "no worker has been heard yet"
            )
        else:
            says = (
                f"no worker has been heard for {age:.0f} s: what is shown is old; is one running?"
                if silent
                else "a worker is at work"
            )
        heard = None if self._ticked is None else round(age, 1)
        return ControlRow(cluster=self.cluster, silent=silent, silent_s=heard, says=says)


def _name(row: Row) -> str:
    if isinstance(row, ExperimentRow):
        return f"experiment/{row.experiment}"
    return f"incident/{row.incident}" if isinstance(row, IncidentRow) else row.kind
