"""When what happened: moments for the list, and what lasted for the picture. Seconds since the first injection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuchaos_stream.events.base import entity_kind
from gpuchaos_stream.events.experiment import AnomalyLine, BreakerState, ExperimentState
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.incident import AttributedAnomaly, Incident
from gpuchaos_stream.report.model import Bar, Moment
from gpuchaos_stream.report.spread import origin_of
from gpuchaos_stream.report.words import GOALS, count, seconds

_SAID = {
    FaultPhase.NOT_EFFECTIVE: "did nothing",
    FaultPhase.REFUSED: "refused",
    FaultPhase.UNDO_FAILED: "undo failed",
}


def moments(
    state: ExperimentState, faults: Iterable[FaultEvent] = (), breaker: Iterable[BreakerState] = ()
) -> tuple[Moment, ...]:
    """All moments of one experiment, by time; of one time, in the order in which one leads to the other."""
    origin = origin_of(state)
    found = [Moment(after_s=round(state.started - origin, 3), kind="experiment", text=f"accepted from {state.owner}")]
    found += [_moment(origin, *row) for row in _faults(state, faults)]
    found += [_anomaly("charged", line) for line in state.charged]
    found += [_anomaly("unexplained", line) for line in state.unexplained]
    found += [
        _moment(origin, *row) for part in (_halts(state), _recovery(state), _breaker(state, breaker)) for row in part
    ]
    if state.finished is not None:
        found.append(_moment(origin, state.finished, "experiment", f"finished: {state.verdict or 'no verdict'}"))
    return tuple(sorted(found, key=lambda moment: moment.after_s))


def _moment(origin: float, at: float, kind: str, text: str) -> Moment:
    return Moment(after_s=round(at - origin, 3), kind=kind, text=text)


def bars(state: ExperimentState, own: Iterable[Incident], others: Iterable[Incident]) -> tuple[Bar, ...]:
    """What lasted: faults, the lines of anomalies that the state names, halts. In the order of their drawing.

    `own` are the experiment's incidents, `others` those that are no experiment's: from them ends are known.
    """
    origin = origin_of(state)
    charged = [each for incident in own for each in incident.anomalies]
    rest = [each for incident in others for each in incident.anomalies]
    return (
        *(
            Bar(
                lane=f"{fault.fault} on {fault.entity}",
                kind="fault",
                start_s=round(fault.injected - origin, 3),
                end_s=None if fault.undone is None else round(fault.undone - origin, 3),
            )
            for fault in state.faults
            if fault.injected is not None
        ),
        *(
            Bar(
                lane=f"halt {halt.cause}",
                kind="halt",
                start_s=round(halt.requested - origin, 3),
                end_s=None if (end := halt.confirmed or halt.undone) is None else round(end - origin, 3),
            )
            for halt in state.halts
        ),
        *(Bar(lane=_lane(line), kind="charged", **_span(line, charged, origin)) for line in state.charged),
        *(Bar(lane=_lane(line), kind="unexplained", **_span(line, rest, origin)) for line in state.unexplained),
    )


def _lane(line: AnomalyLine) -> str:
    return f"{line.metric} on {line.entity}" + (f" and {line.entities - 1} more" if line.entities > 1 else "")


def _span(line: AnomalyLine, anomalies: Iterable[AttributedAnomaly], origin: float) -> dict[str, float | None]:
    """From the line's first anomaly to the end of the last one of its metric and kind that began no earlier."""
    kind = entity_kind(line.entity)
    ends = [
        each.end
        for each in anomalies
        if each.metric == line.metric and entity_kind(each.entity) == kind and each.start - origin > line.after_s - 0.01
    ]
    known = [end for end in ends if end is not None]
    end = round(max(known) - origin, 3) if known and len(known) == len(ends) else None
    return {"start_s": line.after_s, "end_s": end}


def _faults(state: ExperimentState, events: Iterable[FaultEvent]) -> Iterator[tuple[float, str, str]]:
    for fault in state.faults:
        what = f"{fault.fault} on {fault.entity}"
        if fault.injected is not None:
            yield fault.injected, "fault", f"{what}: injected"
        if fault.undone is not None and fault.injected is not None:
            yield fault.undone, "fault", f"{what}: undone, as its agent verified"
    for event in events:
        if event.phase in _SAID:
            reason = f": {event.reason}" if event.reason else ""
            yield event.event_time, "fault", f"{event.fault} on {event.entity}: {_SAID[event.phase]}{reason}"


def _halts(state: ExperimentState) -> Iterator[tuple[float, str, str]]:
    for halt in state.halts:
        rehearsed = " (dry run: nothing was stopped)" if halt.dry_run else ""
        yield halt.requested, "halt", f"halt {halt.cause} requested{rehearsed}: {halt.reason}"
        for name in ("acknowledged", "undone", "confirmed", "escalated"):
            at = getattr(halt, name)
            if at is not None:
                by = " by every agent" if name in {"acknowledged", "undone"} else ""
                yield at, "halt", f"halt {halt.cause} {name}{by}"


def _recovery(state: ExperimentState) -> Iterator[tuple[float, str, str]]:
    record = state.recovery
    if record.injected is None:
        return
    for name, words in GOALS.items():
        value = getattr(record, name)
        if value is not None:
            yield record.injected + value, "recovery", f"{words}: {seconds(value)}"
    if record.confirm is not None:
        yield record.injected + record.confirm, "recovery", f"recovery held for {seconds(record.hold_s)}: confirmed"


def _breaker(state: ExperimentState, breaker: Iterable[BreakerState]) -> Iterator[tuple[float, str, str]]:
    for each in breaker:
        if state.started <= each.time <= (state.finished or state.time):
            yield each.time, "breaker", f"breaker tripped: {each.cause}" if each.tripped else "breaker closed"


def _anomaly(kind: str, line: AnomalyLine) -> Moment:
    where = f" on {line.entities} entities, first {line.entity}" if line.entities > 1 else f" on {line.entity}"
    counted = f" ({count(line.count, 'anomaly', 'anomalies')})" if line.count > 1 else ""
    return Moment(after_s=line.after_s, kind=kind, text=f"{line.metric}{where}{counted}: {line.sentence}")
