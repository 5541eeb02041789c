"""The board of one cluster: what is shown of it, and what changes from one look to the next.

`flush` publishes: it turns all that was heard since the last one into events. A snapshot is what is published, so that
a snapshot and the events after it make the next snapshot, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from gpuchaos_stream.events.experiment import BreakerState, Status
from gpuchaos_stream.web import states
from gpuchaos_stream.web.cards import experiment_card, incident_line
from gpuchaos_stream.web.cells import UNHEARD_S, VALUES, CellValues, CellWord
from gpuchaos_stream.web.known import Known, marks
from gpuchaos_stream.web.layout import Layout, lay_out
from gpuchaos_stream.web.ring import Ring
from gpuchaos_stream.web.views import ClusterLine, Freshness
from gpuchaos_stream.web.wire import Heard, SameNode, WorkerWord

#: Seconds without a word of the worker, which speaks four times a second, after which nothing shown is believed.
STALE_S: Final = 10.0
#: Finished experiments and unexplained incidents of a snapshot.
MOST_RECENT: Final = 20
MOST_INCIDENTS: Final = 50
#: Seconds between two looks for nodes and cells that went quiet, and between two words about values of cells.
_SWEEP_S: Final = 2.0

_encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode


class ClusterBoard:
    """What is shown of one cluster. Times in epoch seconds. `watched` False: silence of the worker means nothing.

    `whole` False: what Kafka keeps has not been read to its end, so a trip or an experiment may be missing.
    """

    def __init__(self, cluster: str, now: float, *, watched: bool = True, whole: bool = True) -> None:
        self.cluster = cluster
        self.whole = whole
        self.known = Known(cluster)
        self.ring = Ring()
        self.layout = Layout()
        self._began = now
        self._watched = watched
        self._worker: float | None = None
        self._swept = -math.inf
        self._cells: dict[str, CellValues] = {}
        self._unheard: set[str] = set()
        self._state: list[int] = []
        self._marks: dict[int, dict[str, Sequence[str]]] = {}
        self._values: list[Mapping[str, float | None]] = []
        self._cards: dict[str, tuple[bool, float, msgspec.Raw]] = {}
        self._incidents: dict[str, tuple[float, msgspec.Raw]] = {}
        self._breaker = BreakerState(id="breaker", time=0.0, cluster=cluster)

    # -- what is heard -------------------------------------------------------------------------------------------

    def hear(self, heard: Heard, now: float, at: float) -> None:
        """Takes what was heard `now`; `at` is when it reached Kafka."""
        if isinstance(heard, CellWord):
            self._worker = now
            self._hear_cell(heard, now)
        elif isinstance(heard, WorkerWord):
            self._worker = now
        elif isinstance(heard, SameNode):
            self.known.same_node(heard.node, (heard.time, heard.id), at)
        else:
            self.known.hear(heard, at)

    def _hear_cell(self, word: CellWord, now: float) -> None:
        before = self._cells.get(word.cell)
        was_stale = before.stale if before is not None else frozenset()
        # One that its detector has forgotten has not come back.
        stale = word.stale | (was_stale - word.nodes)
        self._cells[word.cell] = CellValues(word, stale, now)
        self.known.set_silent(stale - was_stale, stale=True)
        self.known.set_silent(was_stale - stale, stale=False)
        again = self._unheard & word.nodes
        if again:
            self._unheard -= again
            self.known.set_silent(again, unheard=False)

    def _sweep(self, now: float) -> None:
        """A node of which no fresh summary tells is silent: unknown is unsafe."""
        self.known.forget(now)
        if now - self._began <= UNHEARD_S:
            return
        told: set[str] = set()
        for cell in self._cells.values():
            if now - cell.heard <= UNHEARD_S:
                told |= cell.word.nodes
        unheard = self.known.nodes.keys() - told
        self.known.set_silent(unheard - self._unheard, unheard=True)
        self.known.set_silent(self._unheard - unheard, unheard=False)
        self._unheard = unheard

    # -- what is published ---------------------------------------------------------------------------------------

    def flush(self, now: float) -> int:
        """Publishes what changed; how many events that were."""
        before = self.ring.sequence
        swept = now - self._swept >= _SWEEP_S
        if swept and self._watched:
            self._sweep(now)
        changed = self.known.take_changed()
        if changed.topology:
            self._lay_out()
        elif changed.nodes:
            self._judge(changed.nodes)
        for experiment in sorted(changed.experiments):
            self._card(experiment)
        if changed.breaker and self.known.breaker is not None:
            self._breaker = self.known.breaker
            self.ring.add("breaker", self._breaker.model_dump_json().encode())
        for incident in sorted(changed.incidents):
            self._incident(incident)
        if swept:
            self._swept = now
            self._tell_values()
        return self.ring.sequence - before

    def _lay_out(self) -> None:
        places = {name: node.where for name, node in self.known.nodes.items()}
        self.layout = lay_out(places, self.layout.version + 1)
        self._state = [states.OK] * len(self.layout.nodes)
        self._marks = {}
        for number, name in enumerate(self.layout.nodes):
            self._judge_one(number, name)
        self._values = [self._values_of(cell.name) for cell in self.layout.cells]
        self.ring.add("topology", _encode({"version": self.layout.version, "nodes": len(self.layout.nodes)}))

    def _judge(self, nodes: Iterable[str]) -> None:
        changes = []
        for name in nodes:
            number = self.layout.index.get(name)
            if number is not None and self._judge_one(number, name):
                changes.append((number, self._state[number], self._marks.get(number)))
        if changes:
            changes.sort(key=lambda change: change[0])
            self.ring.add("nodes", _encode({"version": self.layout.version, "changes": changes}))

    def _judge_one(self, number: int, name: str) -> bool:
        """Judges a node anew; whether it is shown otherwise than before."""
        node = self.known.nodes[name]
        state = states.state_of(node.facts)
        rails, gpus = marks(node)
        marked: dict[str, Sequence[str]] | None = {"rails": rails, "gpus": gpus} if rails or gpus else None
        if state == self._state[number] and marked == self._marks.get(number):
            return False
        self._state[number] = state
        if marked is None:
            self._marks.pop(number, None)
        else:
            self._marks[number] = marked
        return True

    def _card(self, experiment: str) -> None:
        state = self.known.experiments.get(experiment)
        if state is None:
            self._cards.pop(experiment, None)
            return
        own = [i for i in self.known.incidents.values() if i.experiment_id == experiment and not i.superseded]
        card = experiment_card(state, own, self.known.open_unexplained())
        data = card.model_dump_json().encode()
        running = state.status is not Status.FINISHED
        self._cards[experiment] = (
            running,
            state.started if running else state.finished or state.time,
            msgspec.Raw(data),
        )
        self.ring.add("experiment", data)

    def _incident(self, incident_id: str) -> None:
        incident = self.known.incidents.get(incident_id)
        if incident is None:
            self._incidents.pop(incident_id, None)
            return
        data = incident_line(incident).model_dump_json().encode()
        if incident.attributed or incident.superseded or incident.closed is not None:
            if self._incidents.pop(incident_id, None) is None:
                return
        else:
            self._incidents[incident_id] = (incident.opened, msgspec.Raw(data))
        self.ring.add("incident", data)

    def _tell_values(self) -> None:
        changes = []
        for number, cell in enumerate(self.layout.cells):
            values = self._values_of(cell.name)
            if values != self._values[number]:
                self._values[number] = values
                changes.append((number, values))
        if changes:
            self.ring.add("cells", _encode({"version": self.layout.version, "changes": changes}))

    def _values_of(self, cell: str) -> Mapping[str, float | None]:
        known = self._cells.get(cell)
        return known.word.values if known is not None else {}

    # -- what is shown -------------------------------------------------------------------------------------------

    def freshness(self, now: float) -> Freshness:
        """How old what is shown is."""
        if not self._watched:
            return Freshness(time=now, stale=False, stale_s=0.0, words="live")
        if self._worker is None:
            words = f"no worker has spoken of this cluster in the {max(0.0, now - self._began):.0f} s of listening"
            return Freshness(time=now, stale=True, stale_s=None, words=words)
        age = max(0.0, now - self._worker)
        stale = age > STALE_S or not self.whole
        words = "live"
        if age > STALE_S:
            words = f"no word from the worker for {age:.0f} s"
        elif stale:
            words = "still reading what Kafka keeps: something may be missing"
        return Freshness(time=now, stale=stale, stale_s=round(age, 1), words=words)

    def line(self, now: float) -> ClusterLine:
        """The cluster in a list of clusters."""
        return ClusterLine(
            cluster=self.cluster,
            nodes=len(self.layout.nodes),
            running=sum(running for running, _, _ in self._cards.values()),
            tripped=self._breaker.tripped,
            unexplained=len(self._incidents),
            freshness=self.freshness(now),
        )

    def snapshot(self, now: float, **more: Any) -> bytes:
        """The JSON of `views.Snapshot` as of the last flush; `more` are the fields that are the server's."""
        cards = sorted(self._cards.items(), key=lambda item: (item[1][1], item[0]), reverse=True)
        running = [raw for _, (lives, _, raw) in cards if lives]
        finished = [raw for _, (lives, _, raw) in cards if not lives]
        newest = sorted(self._incidents.items(), key=lambda item: (item[1][0], item[0]), reverse=True)
        fresh = self.freshness(now)
        layout = self.layout
        return _encode(
            {
                "cluster": self.cluster,
                "time": now,
                "sequence": self.ring.sequence,
                "freshness": msgspec.Raw(fresh.model_dump_json().encode()),
                "stale_s": fresh.stale_s,
                "breaker": msgspec.Raw(self._breaker.model_dump_json().encode()),
                "experiments": running + finished[:MOST_RECENT],
                "map": {
                    "version": layout.version,
                    "states": states.NAMES,
                    "state_words": [state.words for state in states.STATES],
                    "value_names": {name: words for name, (_, words) in VALUES.items()},
                    "cells": [
                        {
                            "name": cell.name,
                            "rack": cell.rack,
                            "values": values,
                            "nodes": (cell.start, cell.end),
                            **({"racks": cell.racks} if cell.racks else {}),
                        }
                        for cell, values in zip(layout.cells, self._values, strict=True)
                    ],
                    "nodes": layout.nodes,
                    "state": self._state,
                    "rails": layout.rails,
                    "ports": layout.ports,
                    "marks": self._marks,
                },
                "incidents": [raw for _, (_, raw) in newest[:MOST_INCIDENTS]],
                "incident_count": len(newest),
                **more,
            }
        )
