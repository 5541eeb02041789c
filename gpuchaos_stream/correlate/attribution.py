"""Which fault explains which anomaly: a function of the facts alone, worked out again only where facts changed.

Injected faults are causes. So are hard facts that no injected fault explains (a GPU off the bus): a real failure
is told apart from an experiment together with what follows from it. Facts are judged in the order of their
starts, and only an earlier fact can explain a later one; so there is one answer, whatever the order of arrival.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gpuchaos_stream.correlate import signatures
from gpuchaos_stream.correlate.expectation import Signature
from gpuchaos_stream.correlate.nearby import Nearby
from gpuchaos_stream.correlate.records import AnomalyRecord, FaultRecord
from gpuchaos_stream.correlate.score import Cause, Config, Score, score
from gpuchaos_stream.events.anomaly import AnomalyKind
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.events.incident import Evidence
from gpuchaos_stream.topology.place import Place
from gpuchaos_stream.topology.topology import Topology

OBSERVED_PREFIX: Final = "observed:"

_CERTAIN: Final = Score(1.0, 1.0, 1.0, None, "")
_NOTHING: Final = Score(0.0, 0.0, 0.0, None, "no fault was there")
_EVER: Final = (float("inf"), "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What explains an anomaly. `cause` None: nothing does, and `score` and `nearest` are of the best that failed."""

    cause: str | None
    experiment_id: str | None
    score: Score
    sentence: str

    def evidence(self) -> Evidence:
        """The verdict as it travels."""
        parts = self.score
        return Evidence(
            fault_id=self.cause,
            score=round(parts.total, 4),
            time=round(parts.time, 4),
            distance=round(parts.distance, 4),
            signature=round(parts.signature, 4),
            sentence=self.sentence,
        )


class Attribution:
    """Facts in, verdicts out. `settle()` brings the verdicts up to date and returns whose anomalies' changed."""

    def __init__(self, topology: Topology, config: Config) -> None:
        self._topology = topology
        self._config = config
        self._version = topology.version
        self.faults: dict[str, FaultRecord] = {}
        self.anomalies: dict[str, AnomalyRecord] = {}
        self.verdicts: dict[str, Verdict] = {}
        self._causes: dict[str, Cause] = {}
        self._roots: dict[str, Cause] = {}
        self._near_anomalies = Nearby()
        self._near_roots = Nearby()
        self._keys: list[tuple[float, str]] = []
        self._todo: set[str] = set()
        self._touched: set[str] = set()

    # -- facts ---------------------------------------------------------------------------------------------

    def put_fault(self, record: FaultRecord) -> None:
        """A new or changed injected fault."""
        known = self.faults.get(record.fault_id)
        self.faults[record.fault_id] = record
        if known is None or (known.node, known.experiment_id) != (record.node, record.experiment_id):
            self._todo.update(each.anomaly_id for each in self.anomalies.values() if each.says == record.fault_id)
        self._set_cause(record.fault_id, self._cause_of(record))

    def put_anomaly(self, record: AnomalyRecord) -> None:
        """A new or changed anomaly. That it was only heard of again changes no verdict."""
        known = self.anomalies.get(record.anomaly_id)
        if known is not None and known.end == record.end and replace(record, last=known.last) == known:
            self.anomalies[record.anomaly_id] = record
            return
        if known is None or known.key != record.key:
            if known is not None:
                self._unkey(known)
            insort(self._keys, record.key)
        self.anomalies[record.anomaly_id] = record
        self._near_anomalies.put(record.anomaly_id, self._place(record))
        self._touched.add(record.anomaly_id)
        self._todo.add(record.anomaly_id)

    def drop_fault(self, fault_id: str) -> None:
        """Forgets a fault."""
        del self.faults[fault_id]
        self._set_cause(fault_id, None)

    def drop_anomaly(self, anomaly_id: str) -> None:
        """Forgets an anomaly, without judging anew what it explained: that is forgotten with it."""
        self._unkey(self.anomalies.pop(anomaly_id))
        self.verdicts.pop(anomaly_id, None)
        self._roots.pop(anomaly_id, None)
        self._near_anomalies.drop(anomaly_id)
        self._near_roots.drop(anomaly_id)
        self._todo.discard(anomaly_id)
        self._touched.discard(anomaly_id)

    def _unkey(self, record: AnomalyRecord) -> None:
        del self._keys[bisect_left(self._keys, record.key)]

    # -- what has to be judged anew ------------------------------------------------------------------------

    def _cause_of(self, record: FaultRecord) -> Cause | None:
        if record.injected is None or record.void:
            return None
        signature = signatures.injected(record.fault, record.form)
        return Cause(
            fault_id=record.fault_id,
            name=record.fault,
            entity=record.entity,
            place=self._topology.place(record.entity, record.job),
            since=record.injected,
            gone=record.undone,
            experiment_id=record.experiment_id,
            signature=signature,
            window=self._window(record.injected, signature),
        )

    def _set_cause(self, fault_id: str, cause: Cause | None) -> None:
        old = self._causes.get(fault_id)
        if cause == old:
            return
        if cause is None:
            del self._causes[fault_id]
        else:
            self._causes[fault_id] = cause
        for each in (old, cause):
            if each is not None:
                self._todo.update(self._within(each))

    def _within(self, cause: Cause) -> list[str]:
        """Anomalies in the window of a cause."""
        first = bisect_left(self._keys, (cause.window[0], ""))
        last = bisect_right(self._keys, (cause.window[1], _LAST_ID))
        return [anomaly_id for _, anomaly_id in self._keys[first:last]]

    def _reach(self, cause: Cause) -> list[AnomalyRecord]:
        """Of those the ones that sit where the cause gets to."""
        near = self._near_anomalies.find(cause.place, cause.signature.through)
        return [record for each in near if cause.holds((record := self.anomalies[each]).start)]

    def _window(self, since: float, signature: Signature) -> tuple[float, float]:
        """First and last start that a cause could explain. Outside of it the cause is not even mentioned."""
        return since - self._config.slack_s - signature.lead_s, since + signature.latest_s

    def _place(self, record: AnomalyRecord) -> Place:
        return self._topology.place(record.entity, record.job)

    def started(self, since: float, until: float) -> list[str]:
        """Anomalies that start in `[since, until)`, in order."""
        first, last = bisect_left(self._keys, (since, "")), bisect_left(self._keys, (until, ""))
        return [anomaly_id for _, anomaly_id in self._keys[first:last]]

    # -- verdicts ------------------------------------------------------------------------------------------

    def settle(self) -> set[str]:
        """Judges what has to be judged, facts first. Returns the anomalies that changed, or whose verdict did."""
        if self._version != self._topology.version:
            self._version = self._topology.version
            self._replace()
        if self._todo:
            self._settle_facts()
            for anomaly_id in self._todo:
                record = self.anomalies[anomaly_id]
                self._conclude(record, self._judge(record, _EVER))
            self._todo.clear()
        touched, self._touched = self._touched, set()
        return touched

    def _replace(self) -> None:
        """After a change of the topology: judges anew what sits elsewhere now, or whose causes do."""
        for fault_id, fault in self.faults.items():
            self._set_cause(fault_id, self._cause_of(fault))
        for anomaly_id, record in self.anomalies.items():
            if self._near_anomalies.put(anomaly_id, self._place(record)):
                self._todo.add(anomaly_id)
                self._touched.add(anomaly_id)

    def _settle_facts(self) -> None:
        """Facts in order of their start. One that becomes a cause, or is none any more, brings back later ones."""
        heap: list[tuple[float, str]] = []
        for anomaly_id in list(self._todo):
            if self._is_fact(self.anomalies[anomaly_id]):
                heap.append(self.anomalies[anomaly_id].key)
            else:
                self._set_root(anomaly_id, None, heap)
        heapq.heapify(heap)
        done: tuple[float, str] | None = None
        while heap:
            key = heapq.heappop(heap)
            if key == done:
                continue
            done = key
            record = self.anomalies[key[1]]
            self._todo.discard(record.anomaly_id)
            verdict = self._judge(record, key)
            root = self._root_of(record) if verdict.cause is None else None
            self._set_root(record.anomaly_id, root, heap)
            if root is not None:
                sentence = f"{record.name} on {record.entity} is a failure of its own: no experiment causes it"
                verdict = Verdict(root.fault_id, None, _CERTAIN, sentence)
            self._conclude(record, verdict)

    def _is_fact(self, record: AnomalyRecord) -> bool:
        """Whether it could be a cause by itself: a hard fact, bad enough, said by the machine, nobody's mark on it."""
        return (
            record.kind is AnomalyKind.SIGNAL
            and record.name in signatures.OBSERVED
            and record.severity.rank >= Severity.ERROR.rank
            and record.origin not in {Origin.PROCESS, Origin.APPLICATION}
            and not record.marked
        )

    def _root_of(self, record: AnomalyRecord) -> Cause:
        signature = signatures.OBSERVED[record.name]
        return Cause(
            fault_id=observed_id(record),
            name=record.name,
            entity=record.entity,
            place=self._place(record),
            since=record.start,
            gone=record.closed,
            experiment_id=None,
            signature=signature,
            window=self._window(record.start, signature),
        )

    def _set_root(self, anomaly_id: str, cause: Cause | None, heap: list[tuple[float, str]]) -> None:
        old = self._roots.get(anomaly_id)
        if cause == old:
            return
        if cause is None:
            del self._roots[anomaly_id]
            self._near_roots.drop(anomaly_id)
        else:
            self._roots[anomaly_id] = cause
            self._near_roots.put(anomaly_id, cause.place, cause.signature.through)
        key = self.anomalies[anomaly_id].key
        for each in (old, cause):
            for record in self._reach(each) if each is not None else ():
                if not self._is_fact(record):
                    self._todo.add(record.anomaly_id)
                elif record.key > key:
                    heapq.heappush(heap, record.key)

    def _judge(self, record: AnomalyRecord, before: tuple[float, str]) -> Verdict:
        """What explains `record` among the causes older than `before`."""
        if record.spoof:
            why = f"{record.name} on {record.entity} was written by a process: it is not hardware speaking"
            return Verdict(None, None, _NOTHING, why)
        if record.says is not None:
            return self._judge_marked(record, record.says)
        place = self._place(record)
        causes = self._candidates(record, place, before)
        found = [(score(record, place, cause, self._config), cause) for cause in causes]
        if not found:
            return Verdict(None, None, _NOTHING, _unexplained(record))
        best, cause = max(found, key=_rank)
        if best.total < self._config.threshold:
            return Verdict(None, None, best, _unexplained(record, best, cause))
        return Verdict(cause.fault_id, cause.experiment_id, best, _explained(record, best, cause))

    def _judge_marked(self, record: AnomalyRecord, says: str) -> Verdict:
        """A record that names its fault. It is believed on the fault's own node: a name is easily copied."""
        fault = self.faults.get(says)
        what = f"{record.name} on {record.entity} is marked as injected by fault {says}"
        if fault is not None and fault.node == record.node:
            return Verdict(says, fault.experiment_id, _CERTAIN, what)
        why = "which is not known" if fault is None else f"which is on node {fault.node}"
        return Verdict(None, None, _NOTHING, f"{what}, {why}")

    def _candidates(self, record: AnomalyRecord, place: Place, before: tuple[float, str]) -> Iterable[Cause]:
        """Causes whose window holds the anomaly: every injected fault, for people ask whether it was one of those,
        and of facts the ones near `place` that are older than `before`.
        """
        for cause in self._causes.values():
            if cause.holds(record.start):
                yield cause
        for anomaly_id in self._near_roots.find(place):
            cause = self._roots[anomaly_id]
            if cause.holds(record.start) and (cause.since, anomaly_id) < before:
                yield cause

    def _conclude(self, record: AnomalyRecord, verdict: Verdict) -> None:
        if self.verdicts.get(record.anomaly_id) != verdict:
            self.verdicts[record.anomaly_id] = verdict
            self._touched.add(record.anomaly_id)


def observed_id(record: AnomalyRecord) -> str:
    """The id of an observed fault as a cause: `observed:` and the id of its fault event."""
    return OBSERVED_PREFIX + (record.fact or record.anomaly_id)


#: Sorts after every id.
_LAST_ID: Final = "\U0010ffff"


def _rank(pair: tuple[Score, Cause]) -> tuple[float, float, float, str]:
    """Best score first; of equal ones the one with better parts, then the later cause. Total, so never a toss-up."""
    found, cause = pair
    return (found.total, found.time + found.distance + found.signature, cause.since, cause.fault_id)


def _explained(record: AnomalyRecord, found: Score, cause: Cause) -> str:
    delay = record.start - cause.since
    when = f"{delay:.1f} s after" if delay >= 0 else f"{-delay:.1f} s before (within the clocks' slack)"
    where = found.relation.words if found.relation else "related"
    return f"{record.name} on {record.entity}, {when} {cause.name} on {cause.entity}, {where}: {found.why}"


def _unexplained(record: AnomalyRecord, found: Score = _NOTHING, cause: Cause | None = None) -> str:
    what = f"no fault explains {record.name} on {record.entity}"
    if cause is None:
        return what
    return f"{what}; nearest is {cause.name} on {cause.entity} (score {found.total:.2f}): {found.why}"
