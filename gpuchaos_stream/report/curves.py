"""What the checks of an experiment measured, from the observations of a recording, read as recovery reads them."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Final

from pydantic import ValidationError

from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.experiment import ExperimentState
from gpuchaos_stream.events.observation import CellSummary, ProbeResult
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.recovery.series import BASELINE_S, BASELINE_SAMPLES, Samples, Value, probe_value
from gpuchaos_stream.report.model import Curve
from gpuchaos_stream.report.spread import origin_of

#: The most points of one curve: more than that no picture shows.
MOST_POINTS: Final = 400
#: The most curves: checks, and cells of a job.
MOST_CURVES: Final = 8

_Points = list[tuple[float, Value]]


def curves(state: ExperimentState, observations: Iterable[Event]) -> tuple[Curve, ...]:
    """A curve for each check and source, from the start of the experiment to its end; none where its plan is broken.

    Of more points than `MOST_POINTS` the worst of each neighbourhood are kept.
    """
    try:
        plan = Plan.model_validate(state.plan)
    except ValidationError:
        return ()
    origin = origin_of(state)
    samples = Samples(plan)
    for event in observations:
        if origin - BASELINE_S <= event.time <= (state.finished or state.time) and event.cluster == state.cluster:
            _take(samples, state.id, event)
    found: dict[tuple[str, str], _Points] = {}
    for number in sorted(samples.chunks):
        for check, source, points in samples.chunk(number):
            found.setdefault((check, source), []).extend(points)
    return tuple(_curve(plan, state, key, found) for key in sorted(found)[:MOST_CURVES])


def _take(samples: Samples, experiment_id: str, event: Event) -> None:
    if isinstance(event, CellSummary):
        for series, value in list(samples.of_summary(event)):
            samples.add(series, event.time, value)
    elif isinstance(event, ProbeResult) and event.experiment_id == experiment_id and event.check in samples.probes:
        samples.add((event.check, ""), event.time, probe_value(event.state))


def _curve(plan: Plan, state: ExperimentState, key: tuple[str, str], found: dict[tuple[str, str], _Points]) -> Curve:
    origin = origin_of(state)
    asked = next((check.reading for check in plan.checks if check.name == key[0]), None)
    op, bound = (asked.op.value, asked.value) if asked is not None else (">=", 1.0)
    limit: float | None = bound
    if asked is not None and asked.relative_to is not None:
        before = [
            value
            for (check, _), points in found.items()
            if check == key[0]
            for time, value in points
            if origin - BASELINE_S <= time < origin and isinstance(value, float)
        ]
        limit = median(before) * bound if len(before) >= BASELINE_SAMPLES else None
    shown = [(time, value if isinstance(value, float) else None) for time, value in found[key] if time >= state.started]
    points = tuple((round(time - origin, 3), value) for time, value in _thinned(shown, low_is_bad=op in {">=", ">"}))
    return Curve(check=key[0], source=key[1], op=op, bound=limit, points=points)


def _thinned(points: list[tuple[float, float | None]], *, low_is_bad: bool) -> list[tuple[float, float | None]]:
    """The worst of each group of neighbours; what is unknown is worse than any number."""
    size = -(-len(points) // MOST_POINTS)
    if size <= 1:
        return points
    sign = 1.0 if low_is_bad else -1.0

    def badness(point: tuple[float, float | None]) -> float:
        return -float("inf") if point[1] is None else sign * point[1]

    return [min(points[begin : begin + size], key=badness) for begin in range(0, len(points), size)]
