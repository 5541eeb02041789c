"""What was said before → what is to be said now: each state once, and one resolve for each alert that was opened."""

from __future__ import annotations

from gpuchaos_stream.events.base import Severity, Wire, stable_id
from gpuchaos_stream.notify.conditions import Condition
from gpuchaos_stream.notify.message import TITLE, Kind, Message, clean

#: A notice of something older than this is news to nobody, seconds.
NOTICE_AGE_S = 900.0


class Told(Wire):
    """The last thing that was said about one key, and to whom."""

    firing: bool
    stage: str
    severity: Severity
    count: int
    receivers: tuple[str, ...] = ()
    starts: float = 0.0
    labels: dict[str, str] = {}


def next_kind(told: Told | None, condition: Condition, now: float) -> Kind | None:
    """What is to be said about `condition`, None: nothing. `now` in epoch seconds bounds the age of notices."""
    if condition.notice:
        fresh = now - condition.starts <= NOTICE_AGE_S
        return Kind.NOTICE if told is None and fresh else None
    firing = condition.ends is None
    if told is None or not told.firing:
        return Kind.OPENED if firing else None
    if not firing:
        return Kind.RESOLVED
    if (told.stage, told.severity) != (condition.stage, condition.severity):
        return Kind.UPDATED
    return None


def message(condition: Condition, kind: Kind, told: Told | None, link: str | None = None) -> Message:
    """The message about `condition`. An alert keeps the start and the labels that it was opened with: they are its
    identity, and by the time that it is over less may be known of it (its experiment may be finished).
    """
    count = told.count + 1 if told else 1
    lasting = told is not None and told.firing
    starts = told.starts if told is not None and lasting else condition.starts
    labels = told.labels if told is not None and lasting else condition.labels
    severity = told.severity if told is not None and kind is Kind.RESOLVED else condition.severity
    return Message(
        id=stable_id("message", condition.key, kind, condition.stage, severity, starts, count),
        key=condition.key,
        kind=kind,
        name=condition.name,
        severity=severity,
        was=told.severity if told and kind is Kind.UPDATED and told.severity is not severity else None,
        title=clean(condition.title, TITLE),
        sections=condition.sections,
        labels={name: clean(value) for name, value in labels.items()},
        cluster=condition.cluster,
        experiment_id=condition.experiment_id,
        starts=starts,
        ends=max(condition.ends, starts) if condition.ends is not None else None,
        link=link,
    )
