"""What broke that was not a target, and along what it was reached: the dependency that the experiment found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuchaos_stream.events.base import entity_node
from gpuchaos_stream.events.experiment import ExperimentState
from gpuchaos_stream.events.incident import AttributedAnomaly, Incident
from gpuchaos_stream.report.model import Branch, Reached
from gpuchaos_stream.topology.place import Place, Through
from gpuchaos_stream.topology.topology import Topology

#: The most entities of one branch that are named.
NAMED: Final = 50
UNKNOWN: Final = "unknown"
_NO_TIE: Final = "nothing that the topology knows ties them together"

#: What two places share, by the way in which they are related.
_SHARED: Final = {
    "job": lambda a, b: a.jobs & b.jobs,
    "domain": lambda a, b: a.domains & b.domains,
    "rail": lambda a, b: a.rails & b.rails,
    "cell": lambda a, b: a.cells & b.cells,
    "rack": lambda a, b: a.racks & b.racks,
}


def branches(state: ExperimentState, incidents: Iterable[Incident], topology: Topology) -> tuple[Branch, ...]:
    """Every entity beyond the targets that the experiment hurt, by target and by what ties it to that target.

    Whom it hurt is what its blast radius says, at most 200 names; when, how badly and why say the anomalies of
    `incidents`, its own. An entity belongs to the target that is nearest to it (`topology/place.py`).
    """
    told: dict[str, list[AttributedAnomaly]] = {}
    for incident in incidents:
        for anomaly in incident.anomalies:
            told.setdefault(anomaly.entity, []).append(anomaly)
    origin = origin_of(state)
    groups: dict[tuple[str, str, str, str], list[Reached]] = {}
    targets = sorted({fault.entity for fault in state.faults})
    for entity in sorted(state.blast_radius.entities):
        key = _tie(targets, entity, topology)
        groups.setdefault(key, []).append(_reached(entity, told.get(entity, []), origin))
    found = [
        Branch(
            target=target,
            through=through,
            shared=shared,
            words=words,
            total=len(reached),
            reached=tuple(sorted(reached, key=_order)[:NAMED]),
        )
        for (target, through, shared, words), reached in groups.items()
    ]
    return tuple(sorted(found, key=lambda branch: (_order(branch.reached[0]), branch.target, branch.through)))


def origin_of(state: ExperimentState) -> float:
    """The event time that a report counts from: the first injection, else the start."""
    return min((fault.injected for fault in state.faults if fault.injected is not None), default=state.started)


def tie(branch: Branch) -> str:
    """What ties the two ends of a branch together, in words."""
    return f"{branch.words} ({branch.shared})" if branch.shared else branch.words


def _tie(targets: list[str], entity: str, topology: Topology) -> tuple[str, str, str, str]:
    """Nearest target, the way from it, the name of what the two share, and the way in words."""
    best: tuple[int, str, Through, str] | None = None
    for target in targets:
        relation = topology.relation(target, entity)
        if relation is not None and (best is None or relation.hops < best[0]):
            best = (relation.hops, target, relation.through, relation.words)
    if best is None:
        return targets[0] if targets else entity, UNKNOWN, "", _NO_TIE
    _, target, through, words = best
    return target, through, _shared(through, topology.place(target), topology.place(entity)), words


def _shared(through: Through, one: Place, other: Place) -> str:
    common = _SHARED.get(through)
    if common is not None:
        return min(common(one, other), default="")
    return one.node or entity_node(one.entity) or ""


def _reached(entity: str, anomalies: list[AttributedAnomaly], origin: float) -> Reached:
    if not anomalies:
        return Reached(entity=entity)
    ordered = sorted(anomalies, key=lambda each: (each.start, each.anomaly_id))
    return Reached(
        entity=entity,
        metrics=tuple(dict.fromkeys(each.metric for each in ordered)),
        after_s=round(ordered[0].start - origin, 3),
        anomalies=len(ordered),
        severity=max((each.severity for each in ordered), key=lambda severity: severity.rank),
        sentence=ordered[0].evidence.sentence,
    )


def _order(reached: Reached) -> tuple[float, str]:
    return (reached.after_s if reached.after_s is not None else float("inf"), reached.entity)
