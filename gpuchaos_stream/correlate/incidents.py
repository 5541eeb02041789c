"""Incidents: the anomalies that one cause explains, and those that nothing explains, gathered by closeness."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuchaos_stream.correlate.attribution import OBSERVED_PREFIX, Verdict, observed_id
from gpuchaos_stream.correlate.records import AnomalyRecord, FaultRecord
from gpuchaos_stream.correlate.score import Config
from gpuchaos_stream.events.base import Severity, stable_id
from gpuchaos_stream.events.incident import AttributedAnomaly, Incident
from gpuchaos_stream.topology.topology import Topology

UNATTRIBUTED_PREFIX: Final = "unattributed:"

#: The most anomalies that one incident carries, the earliest ones; the summary counts them all.
SHOWN: Final = 500

Judged = tuple[AnomalyRecord, Verdict]


@dataclass(frozen=True, slots=True)
class Unattributed:
    """An anomaly that no experiment explains. `cause` names the observed fault that does, or is None.

    `score` (0..1) and `sentence` are of that cause, or of the nearest one that failed.
    """

    anomaly_id: str
    entity: str
    metric: str
    node: str | None
    jobs: tuple[str, ...]
    start: float
    end: float | None
    severity: Severity
    cause: str | None
    score: float
    sentence: str


def attributed(record: AnomalyRecord, verdict: Verdict) -> AttributedAnomaly:
    """An anomaly with its attribution, as it travels."""
    return AttributedAnomaly(
        anomaly_id=record.anomaly_id,
        entity=record.entity,
        metric=record.metric,
        start=record.start,
        end=None if math.isinf(record.until) else record.until,
        severity=record.weight,
        evidence=verdict.evidence(),
    )


def unattributed(record: AnomalyRecord, verdict: Verdict, topology: Topology) -> Unattributed:
    """An anomaly that no experiment explains; its jobs are its own, or those that its entity works for."""
    jobs = {record.job} if record.job else topology.jobs(record.entity)
    return Unattributed(
        anomaly_id=record.anomaly_id,
        entity=record.entity,
        metric=record.metric,
        node=record.node,
        jobs=tuple(sorted(jobs)),
        start=record.start,
        end=None if math.isinf(record.until) else record.until,
        severity=record.weight,
        cause=verdict.cause,
        score=round(verdict.score.total, 4),
        sentence=verdict.sentence,
    )


def build(cause: str, judged: Iterable[Judged], fault: FaultRecord | None, topology: Topology) -> Incident:
    """The incident of one cause; `judged` is not empty, `fault` is the injected fault that caused it, or None.

    Its jobs are those of its anomalies, or where they name none those that their entities work for.
    """
    members = sorted(judged, key=lambda pair: pair[0].key)
    records = [record for record, _ in members]
    ends = [record.until for record in records]
    times = [record.detected for record in records] + [end for end in ends if not math.isinf(end)]
    if fault is not None:
        times += [time for time in (fault.injected, fault.undone) if time is not None]
    gone = fault is None or fault.undone is not None or fault.void
    jobs = frozenset[str]().union(*(topology.place(record.entity, record.job).jobs for record in records))
    return Incident(
        id=stable_id("incident", records[0].cluster, cause),
        time=max(times),
        cluster=records[0].cluster,
        cause=cause,
        experiment_id=fault.experiment_id if fault else None,
        fault_id=fault.fault_id if fault else None,
        attributed=fault is not None,
        opened=records[0].start,
        closed=max(ends) if gone and not math.isinf(max(ends)) else None,
        severity=max((record.weight for record in records), key=lambda severity: severity.rank),
        anomalies=tuple(attributed(record, verdict) for record, verdict in members[:SHOWN]),
        nodes=tuple(sorted({record.node for record in records if record.node})),
        jobs=tuple(sorted(jobs)),
        summary=_summary(cause, records, fault),
    )


def gather(records: Iterable[AnomalyRecord], topology: Topology, config: Config) -> list[list[AnomalyRecord]]:
    """Groups of unexplained anomalies: each starts within `group_s` of another one of the same node, job or domain.

    A group spans at most `span_s`, so that something that flaps for ever does not grow one for ever. The answer
    depends on the set alone: it is walked in the order of starts.
    """
    ordered = sorted(records, key=lambda each: each.key)
    parent = list(range(len(ordered)))

    def first(index: int) -> int:
        """The earliest member of the group that holds `index`."""
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    newest: dict[str, int] = {}
    for index, record in enumerate(ordered):
        for key in _keys(record, topology):
            other = newest.get(key)
            newest[key] = index
            if other is None or record.start - ordered[other].start > config.group_s:
                continue
            if record.start - ordered[first(other)].start <= config.span_s:
                one, two = sorted((first(index), first(other)))
                parent[two] = one
    groups: dict[int, list[AnomalyRecord]] = {}
    for index, record in enumerate(ordered):
        groups.setdefault(first(index), []).append(record)
    return list(groups.values())


def _keys(record: AnomalyRecord, topology: Topology) -> Iterable[str]:
    """What two anomalies may share to be near each other: their node, a job, an NVLink domain."""
    place = topology.place(record.entity, record.job)
    if record.node is not None:
        yield f"node/{record.node}"
    yield from (f"job/{job}" for job in place.jobs)
    yield from (f"domain/{domain}" for domain in place.domains)


def _summary(cause: str, records: Sequence[AnomalyRecord], fault: FaultRecord | None) -> str:
    count = f"{len(records)} anomal{'y' if len(records) == 1 else 'ies'}"
    nodes = {record.node for record in records if record.node}
    where = f" on {len(nodes)} node{'' if len(nodes) == 1 else 's'}" if nodes else ""
    if fault is not None:
        return f"{fault.fault} on {fault.entity} (experiment {fault.experiment_id}) explains {count}{where}"
    if cause.startswith(OBSERVED_PREFIX):
        root = next(record for record in records if observed_id(record) == cause)
        return f"{root.name} on {root.entity}, a failure of its own, explains {count}{where}"
    return f"no fault explains {count}{where}, the first is {records[0].name} on {records[0].entity}"
