"""What an experiment's report says of anomalies: one line for each metric and kind of entity, and not many lines."""

from __future__ import annotations

from collections.abc import Iterable

from gpuchaos_stream.correlate.incidents import Unattributed
from gpuchaos_stream.events.base import entity_kind
from gpuchaos_stream.events.experiment import MOST_LINES, AnomalyLine
from gpuchaos_stream.events.incident import AttributedAnomaly


def lines(anomalies: Iterable[AttributedAnomaly | Unattributed], since: float) -> tuple[AnomalyLine, ...]:
    """The lines of a report, by the time of their first anomaly; `since` is event time, seconds.

    Of more than `MOST_LINES` the worst are kept, and of equally bad ones the first. The answer depends on the set
    alone.
    """
    groups: dict[tuple[str, str], list[AttributedAnomaly | Unattributed]] = {}
    for each in sorted(anomalies, key=lambda each: (each.start, each.anomaly_id)):
        groups.setdefault((each.metric, entity_kind(each.entity)), []).append(each)
    found = [_line(group, since) for group in groups.values()]
    worst = sorted(found, key=lambda line: -line.severity.rank)[:MOST_LINES]  # stable: the first ones stay first
    return tuple(sorted(worst, key=lambda line: (line.after_s, line.metric, line.entity)))


def _line(group: list[AttributedAnomaly | Unattributed], since: float) -> AnomalyLine:
    first = group[0]
    why = first.evidence if isinstance(first, AttributedAnomaly) else first
    return AnomalyLine(
        metric=first.metric,
        entity=first.entity,
        after_s=round(first.start - since, 3),
        count=len(group),
        entities=len({each.entity for each in group}),
        severity=max((each.severity for each in group), key=lambda severity: severity.rank),
        score=why.score,
        sentence=why.sentence,
    )
