"""The correlate stage: faults and anomalies in, incidents and blast radius out.

What is kept are facts that merge in any order (`records`); attribution, incidents and blast radius are worked
out of them, so the same events in any order, once or twice, give the same conclusions. Observed faults arrive
as signal anomalies (`detect/signals.py`); their fault events are not needed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from gpuchaos_stream.correlate import blast, incidents
from gpuchaos_stream.correlate.attribution import Attribution
from gpuchaos_stream.correlate.book import Book
from gpuchaos_stream.correlate.freshness import Freshness
from gpuchaos_stream.correlate.incidents import Unattributed
from gpuchaos_stream.correlate.records import AnomalyRecord, ExperimentRecord, FaultRecord, anomaly_record, fault_record
from gpuchaos_stream.correlate.score import Config
from gpuchaos_stream.correlate.shelf import Shelf
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.incident import AttributedAnomaly, BlastRadius, Incident
from gpuchaos_stream.topology.topology import Topology

PREFIX: Final = "correlate/"

#: An open anomaly is updated every 5 s by the detect stage; this long without a word it is over.
LAPSE_S: Final = 30.0
_LAPSE_EVERY_S: Final = 5.0
#: A node heard within this many seconds is heard now.
_FRESH_S: Final = 5.0
#: States that are told once and last until they are closed.
_STAYS: Final = frozenset({"device_missing"})


class Correlator:
    """Attribution, incidents and blast radius of one cluster (Stateful, prefix `correlate/`)."""

    def __init__(self, topology: Topology, config: Config | None = None) -> None:
        self.config = config or Config()
        self._topology = topology
        #: Events that came after what they belong to had been forgotten.
        self.late = 0
        self._clear()

    def _clear(self) -> None:
        self._attribution = Attribution(self._topology, self.config)
        self._experiments: dict[str, ExperimentRecord] = {}
        self._horizon = -math.inf
        self._lapsed_at = -math.inf
        self._dirty: set[str] = set()
        self._shelf = Shelf()
        self._book = Book()
        self._groups: dict[str, tuple[str, ...]] = {}
        self._radii: dict[str, tuple[blast.Levels, blast.Radius]] = {}
        self._total: blast.Radius | None = None
        self._version = self._topology.version

    # -- events in -----------------------------------------------------------------------------------------

    def declare(self, experiment_id: str, targets: Sequence[str]) -> None:
        """An experiment and the entities it declares as its targets. Without it the entities of its faults count."""
        known = self._experiments.get(experiment_id)
        record = ExperimentRecord(experiment_id, tuple(targets), known.ended if known else None)
        if record != known:
            self._put_experiment(record)

    def end(self, experiment_id: str, now: float) -> None:
        """The experiment is over at `now` (event time): it leaves the total, and may be forgotten later."""
        known = self._experiments.get(experiment_id) or ExperimentRecord(experiment_id, ())
        if known.ended is None:
            self._put_experiment(msgspec.structs.replace(known, ended=now))

    def _put_experiment(self, record: ExperimentRecord) -> None:
        self._experiments[record.experiment_id] = record
        self._dirty.add(f"experiment/{record.experiment_id}")
        self._radii.pop(record.experiment_id, None)

    def feed(self, event: FaultEvent | Anomaly) -> None:
        """Takes one event. A repeated one, or one that says nothing new, changes nothing."""
        if isinstance(event, Anomaly):
            self._feed_anomaly(event)
        elif event.phase is not FaultPhase.OBSERVED:
            self._feed_fault(event)

    def _feed_fault(self, event: FaultEvent) -> None:
        faults = self._attribution.faults
        known = faults.get(event.fault_id or "")
        if known is None and event.event_time < self._horizon:
            self.late += 1
            return
        record = fault_record(event, known)
        if record is not None:
            self._attribution.put_fault(record)
            self._book.causes.add(record.fault_id)
            self._radii.pop(record.experiment_id, None)
            self._dirty.add(f"fault/{record.fault_id}")

    def _feed_anomaly(self, event: Anomaly) -> None:
        known = self._attribution.anomalies.get(event.anomaly_id)
        if known is None and event.time < self._horizon:
            self.late += 1
            return
        record = anomaly_record(event, known)
        if record is not None:
            self._attribution.put_anomaly(record)
            self._dirty.add(f"anomaly/{record.anomaly_id}")

    def lapse(self, now: float, freshness: Freshness) -> None:
        """Ends, at their last word, anomalies that nobody closes: their detect worker is gone. Call it on ticks.

        One lapses when nothing was said of it for `LAPSE_S` although telemetry of its nodes comes in at `now`.
        While a node is silent nothing lapses: missing data is not health. A later word opens it again.
        """
        if now < self._lapsed_at + _LAPSE_EVERY_S:
            return
        self._lapsed_at = now
        self._settle()
        for anomaly_id in sorted(self._book.open):
            record = self._attribution.anomalies[anomaly_id]
            nodes = {record.node} if record.node else self._topology.nodes_of(record.entity)
            heard = any(freshness.age(node, now) < _FRESH_S for node in nodes)
            if heard and now - record.last > LAPSE_S and record.name not in _STAYS:
                self._attribution.put_anomaly(msgspec.structs.replace(record, lapsed=record.last))
                self._dirty.add(f"anomaly/{anomaly_id}")

    # -- settling ------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        if self._version != self._topology.version:
            self._version = self._topology.version
            self._radii.clear()
            self._book.regroup = True
        for anomaly_id in self._attribution.settle():
            self._book.file(self._attribution.anomalies[anomaly_id], self._attribution.verdicts[anomaly_id])
        for experiment_id in self._book.experiments:
            self._radii.pop(experiment_id, None)
        self._book.experiments.clear()

    # -- incidents out -------------------------------------------------------------------------------------

    def changed(self) -> list[Incident]:
        """Incidents that are new or different since the last call, and those superseded, in order of opening."""
        self._settle()
        book, found = self._book, dict[str, Incident | None]()
        for cause in book.causes:
            members = book.by_cause.get(cause)
            found[cause] = self._build(cause, members) if members else None
        book.causes.clear()
        if book.regroup:
            found |= self._regroup(book.unexplained_touched)
            book.unexplained_touched.clear()
            book.regroup = False
        return sorted(self._shelf.put(found), key=lambda incident: (incident.opened, incident.id))

    def incidents(self) -> tuple[Incident, ...]:
        """All incidents that hold now, in order of opening: a function of the events fed, whatever their order."""
        self._settle()
        found = [self._build(cause, ids) for cause, ids in self._book.by_cause.items()]
        found += [self._build(cause, ids) for cause, ids in self._group().items()]
        return tuple(sorted(found, key=lambda incident: (incident.opened, incident.id)))

    def _build(self, cause: str, ids: Iterable[str]) -> Incident:
        judged = [(self._attribution.anomalies[each], self._attribution.verdicts[each]) for each in ids]
        return incidents.build(cause, judged, self._attribution.faults.get(cause), self._topology)

    def _group(self) -> dict[str, tuple[str, ...]]:
        records = (self._attribution.anomalies[each] for each in self._book.unexplained)
        return {
            incidents.UNATTRIBUTED_PREFIX + group[0].anomaly_id: tuple(each.anomaly_id for each in group)
            for group in incidents.gather(records, self._topology, self.config)
        }

    def _regroup(self, touched: set[str]) -> dict[str, Incident | None]:
        """Groups that are new, have other members or hold a touched anomaly; None for a group that is no more."""
        groups = self._group()
        found: dict[str, Incident | None] = dict.fromkeys(self._groups.keys() - groups.keys())
        for cause, ids in groups.items():
            if self._groups.get(cause) != ids or not touched.isdisjoint(ids):
                found[cause] = self._build(cause, ids)
        self._groups = groups
        return found

    # -- questions about experiments -----------------------------------------------------------------------

    def attributed(self, experiment_id: str) -> tuple[AttributedAnomaly, ...]:
        """Anomalies charged to an experiment, in order of their start."""
        return tuple(
            incidents.attributed(record, self._attribution.verdicts[record.anomaly_id])
            for record in self._records(experiment_id)
        )

    def open_for(self, experiment_id: str, now: float) -> tuple[AttributedAnomaly, ...]:
        """Those of them that last at `now`."""
        return tuple(
            incidents.attributed(record, self._attribution.verdicts[record.anomaly_id])
            for record in self._records(experiment_id)
            if record.open_at(now)
        )

    def first_detection(self, experiment_id: str) -> float | None:
        """Event time at which the first anomaly charged to the experiment was told, None while there is none."""
        return min((record.detected for record in self._records(experiment_id)), default=None)

    def _records(self, experiment_id: str) -> list[AnomalyRecord]:
        self._settle()
        records = (self._attribution.anomalies[each] for each in self._book.by_experiment.get(experiment_id, ()))
        return sorted(records, key=lambda record: record.key)

    def unattributed(self, since: float, until: float = math.inf) -> tuple[Unattributed, ...]:
        """Anomalies that began in `[since, until)` and that no experiment explains, in order of their start."""
        self._settle()
        ids = self._attribution.started(since, until)
        return tuple(self._as_unattributed(each) for each in ids if not self._book.charged(each))

    def critical_unattributed(self, now: float, since: float = 0.0) -> tuple[Unattributed, ...]:
        """Critical ones of them that began at `since` or later and last at `now`, with their node and jobs."""
        self._settle()
        records = (self._attribution.anomalies[each] for each in self._book.critical)
        found = sorted(record.key for record in records if record.start >= since and record.open_at(now))
        return tuple(self._as_unattributed(anomaly_id) for _, anomaly_id in found)

    def _as_unattributed(self, anomaly_id: str) -> Unattributed:
        record, verdict = self._attribution.anomalies[anomaly_id], self._attribution.verdicts[anomaly_id]
        return incidents.unattributed(record, verdict, self._topology)

    # -- blast radius --------------------------------------------------------------------------------------

    def blast_radius(self, experiment_id: str, now: float) -> BlastRadius:
        """What the experiment's faults hurt beyond its targets, at `now`; `blast` says what counts."""
        levels, radius = self._radius(experiment_id)
        return radius.at(now, len(self._silent_among(levels.nodes | radius.nodes(), now)))

    def total(self, now: float) -> BlastRadius:
        """The same over all experiments that are not over, as a union: what two of them hurt is counted once."""
        self._settle()
        parts = [self._radius(each) for each in sorted(self._running())]
        harms = tuple(each for _, radius in parts for each in radius.harms)
        if self._total is None or self._total.harms != harms:
            self._total = self._make_radius(harms)
        nodes = frozenset[str]().union(*(levels.nodes | radius.nodes() for levels, radius in parts))
        return self._total.at(now, len(self._silent_among(nodes, now)))

    def _running(self) -> frozenset[str]:
        """Experiments not over; of those never declared, the ones with a fault that is still there."""
        open_faults = {f.experiment_id for f in self._attribution.faults.values() if f.undone is None and not f.void}
        over = {name for name, record in self._experiments.items() if record.ended is not None}
        return frozenset(open_faults | self._experiments.keys()) - over

    def _radius(self, experiment_id: str) -> tuple[blast.Levels, blast.Radius]:
        self._settle()
        known = self._radii.get(experiment_id)
        if known is None:
            targets = blast.target_levels(self._targets(experiment_id), self._topology)
            harms = (blast.harm(record, targets, self._topology) for record in self._records(experiment_id))
            known = (targets, self._make_radius(tuple(each for each in harms if each is not None)))
            self._radii[experiment_id] = known
        return known

    def _make_radius(self, harms: tuple[blast.Harm, ...]) -> blast.Radius:
        nodes = frozenset().union(*(each.levels.nodes for each in harms))
        limit = {node: len(self._topology.gpus(node)) for node in nodes if self._topology.info(node) is not None}
        return blast.Radius(harms, limit)

    def _targets(self, experiment_id: str) -> Sequence[str]:
        declared = self._experiments.get(experiment_id)
        if declared is not None and declared.targets:
            return declared.targets
        return sorted({f.entity for f in self._attribution.faults.values() if f.experiment_id == experiment_id})

    def _silent_among(self, nodes: Iterable[str], now: float) -> list[str]:
        """Nodes that are silent at `now`, or whose whole cell is."""
        anomalies, silent = self._attribution.anomalies, self._book.silent
        quiet = {entity for entity, ids in silent.items() if any(anomalies[each].open_at(now) for each in ids)}
        return [node for node in nodes if f"node/{node}" in quiet or f"cell/{self._topology.cell(node)}" in quiet]

    # -- bounded state -------------------------------------------------------------------------------------

    def forget(self, before: float) -> None:
        """Drops what was over before `before` (event time). Callers keep an hour: twice the slowest watchdog.

        An incident goes as a whole, once nothing of it lasts and its experiment has ended. What comes later and
        is older than `before` is not taken any more, but counted in `late`.
        """
        self._settle()
        self._horizon = max(self._horizon, before)
        self._dirty.add("horizon")
        for cause, ids in [*self._book.by_cause.items(), *self._group().items()]:
            records = [self._attribution.anomalies[each] for each in ids]
            if all(_is_over(record, before) for record in records) and self._fault_is_over(cause, before):
                for record in records:
                    self._drop_anomaly(record)
                self._shelf.forget(cause)
                self._book.causes.discard(cause)
                self._groups.pop(cause, None)
        for fault_id in [*self._attribution.faults]:
            if self._fault_is_over(fault_id, before) and fault_id not in self._book.by_cause:
                self._attribution.drop_fault(fault_id)
                self._dirty.add(f"fault/{fault_id}")
        left = {record.experiment_id for record in self._attribution.faults.values()}
        for name, experiment in [*self._experiments.items()]:
            if experiment.ended is not None and experiment.ended < before and name not in left:
                del self._experiments[name]
                self._radii.pop(name, None)
                self._dirty.add(f"experiment/{name}")
        for cause in self._shelf.superseded_before(before):
            self._shelf.forget(cause)

    def _drop_anomaly(self, record: AnomalyRecord) -> None:
        self._book.remove(record)
        self._book.unexplained_touched.discard(record.anomaly_id)
        self._attribution.drop_anomaly(record.anomaly_id)
        self._dirty.add(f"anomaly/{record.anomaly_id}")

    def _fault_is_over(self, cause: str, before: float) -> bool:
        """Whether an injected fault may be forgotten; what is no injected fault may."""
        fault = self._attribution.faults.get(cause)
        if fault is None:
            return True
        experiment = self._experiments.get(fault.experiment_id)
        if experiment is not None and (experiment.ended is None or experiment.ended >= before):
            return False
        stuck = fault.undo_failed and fault.undone is None
        return fault.last < before and not stuck

    def dirty(self) -> dict[str, bytes | None]:
        """What changed since the last call, as key → JSON, None for what is gone."""
        kept: Mapping[str, Mapping[str, msgspec.Struct]] = {
            "fault": self._attribution.faults,
            "anomaly": self._attribution.anomalies,
            "experiment": self._experiments,
        }
        changed: dict[str, bytes | None] = {}
        for key in self._dirty:
            kind, _, name = key.partition("/")
            value = self._horizon if kind == "horizon" else kept[kind].get(name)
            changed[PREFIX + key] = None if value is None else msgspec.json.encode(value)
        changed |= {PREFIX + key: value for key, value in self._shelf.dirty().items()}
        self._dirty.clear()
        return changed

    def load(self, items: Mapping[str, bytes]) -> None:
        """Replaces everything by the saved facts, and draws the conclusions from them anew."""
        self._clear()
        for key, value in items.items():
            kind, _, name = key.removeprefix(PREFIX).partition("/")
            if not key.startswith(PREFIX):
                continue
            if kind == "fault":
                self._attribution.put_fault(msgspec.json.decode(value, type=FaultRecord))
            elif kind == "anomaly":
                self._attribution.put_anomaly(msgspec.json.decode(value, type=AnomalyRecord))
            elif kind == "experiment":
                self._experiments[name] = msgspec.json.decode(value, type=ExperimentRecord)
            elif kind == "incident":
                self._shelf.load(name, value)
            elif kind == "horizon":
                self._horizon = msgspec.json.decode(value, type=float)
        # What was told and does not hold any more is taken back by the next `changed()`.
        self._groups = {c: () for c in self._shelf.causes if c.startswith(incidents.UNATTRIBUTED_PREFIX)}
        self._book.causes |= self._shelf.causes - self._groups.keys()
        self._book.regroup = True


def _is_over(record: AnomalyRecord, before: float) -> bool:
    """Whether it ended before `before`, or has not been heard of since and is open only because nobody closed it."""
    return record.last < before and (record.until < before or math.isinf(record.until))
