"""The samples of one experiment's checks, those of the steady state and of recovery, and what they say.

A check has a series per source: a job that spans cells has one per cell, since each detect worker sees its own.
Samples are a set keyed by time, so that repeats and any order of arrival come to the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Final, Literal

from gpuchaos_stream.events.base import entity_kind
from gpuchaos_stream.events.observation import CellSummary, CheckState
from gpuchaos_stream.experiments.plan import Op, Plan, SteadyCheck, TelemetryCheck
from gpuchaos_stream.recovery.intervals import Interval, Runs, both, either

#: A gap between samples of one series that ends a window, seconds: telemetry comes once a second, and one lost
#: frame must not cost a recovery, two must.
MAX_GAP_S: Final = 2.5
#: A latest sample older than this answers nothing, seconds: a second between samples, up to two until the detect
#: stage has judged a tick that a silent node holds up, and one for the way.
FRESH_S: Final = 4.0
#: The baseline is the median of this many seconds before injection…
BASELINE_S: Final = 60.0
#: …and needs this many samples.
BASELINE_SAMPLES: Final = 3

#: Samples are kept and saved in chunks of so many seconds, so that a tick rewrites one chunk and not the history.
CHUNK_S: Final = 30.0

#: What a sample says: a number; None where it could not be known; "absent" where a cell no longer has the job.
Value = float | Literal["absent"] | None
Series = tuple[str, str]

#: Of two samples with one time (two workers during a rebalance) the worse counts, so that their order does not.
_WORSE: Final = {Op.GE: min, Op.GT: min, Op.LE: max, Op.LT: max}


class Samples:
    """All series of one experiment."""

    def __init__(self, plan: Plan) -> None:
        self._checks: Final = {check.name: check for check in plan.checks}
        self._recovered_by: Final = plan.recovered_by
        self._chunks: dict[int, dict[Series, dict[float, Value]]] = {}
        self._latest: dict[Series, tuple[float, Value]] = {}
        self._tracks: dict[Series, _Track] = {}
        self._baselines: dict[tuple[str, float], float | None] = {}

    @property
    def probes(self) -> frozenset[str]:
        """Names of the checks that ask outside."""
        return frozenset(name for name, check in self._checks.items() if check.reading is None)

    @property
    def chunks(self) -> frozenset[int]:
        """Numbers of the chunks that hold samples; chunk n begins at n · `CHUNK_S`."""
        return frozenset(self._chunks)

    def add(self, series: Series, time: float, value: Value) -> bool:
        """Adds a sample; True when it changed the set."""
        points = self._chunks.setdefault(chunk_of(time), {}).setdefault(series, {})
        if time in points:
            value = self._worse(series[0], points[time], value)
            if value == points[time]:
                return False
        latest = self._latest.get(series)
        if latest is None or time > latest[0]:
            if (track := self._tracks.get(series)) is not None:
                track.add(time, value)
        else:
            self._tracks.pop(series, None)
        if latest is None or time >= latest[0]:
            self._latest[series] = (time, value)
        points[time] = value
        if any(time < before for _, before in self._baselines):
            self._baselines.clear()
        return True

    def of_summary(self, summary: CellSummary) -> Iterator[tuple[Series, Value]]:
        """What the summary says to each telemetry check; nothing where it does not concern it."""
        for name, check in self._checks.items():
            asked = check.reading
            if asked is None:
                continue
            series = (name, summary.cell)
            if entity_kind(asked.of) == "job":
                job = asked.of.split("/", 1)[1]
                if job in summary.jobs:
                    yield series, _finite(summary.jobs[job].get(asked.metric))
                elif series in self._latest:
                    yield series, "absent"
            elif (node := asked.of.split("/", 1)[1]) in summary.order or node in summary.nodes:
                yield (name, ""), _node_value(summary, node, asked.metric)

    def drop(self, chunk: int) -> None:
        """Forgets the samples of a chunk."""
        self._chunks.pop(chunk, None)
        self._tracks.clear()

    def chunk(self, number: int) -> list[tuple[str, str, list[tuple[float, Value]]]]:
        """The samples of a chunk, for saving: check, source, points by time."""
        return [(*series, sorted(points.items())) for series, points in self._chunks[number].items()]

    def restore(self, saved: Iterable[tuple[str, str, list[tuple[float, Value]]]]) -> None:
        """Adds what `chunk` gave."""
        for check, source, points in saved:
            for time, value in points:
                self.add((check, source), time, value)

    def now(self, now: float, injected: float | None) -> dict[str, CheckState]:
        """The state of each check at `now`, epoch seconds, from the latest sample of each of its series."""
        return {name: self._check_now(check, now, injected) for name, check in self._checks.items()}

    def in_tolerance(self, injected: float) -> list[Interval]:
        """The intervals in which every check that says recovered was in tolerance, without a gap."""
        return self._joint(injected, known=False, tail=0.0)

    def known(self, injected: float) -> list[Interval]:
        """The intervals in which every such check had an answer, good or bad; a last sample counts `MAX_GAP_S` more."""
        return self._joint(injected, known=True, tail=MAX_GAP_S)

    def _joint(self, injected: float, *, known: bool, tail: float) -> list[Interval]:
        whole: list[Interval] = [(-math.inf, math.inf)]
        for name, check in self._checks.items():
            if name in self._recovered_by:
                whole = both(whole, self._check_intervals(check, injected, known=known, tail=tail))
        return whole

    def _check_intervals(self, check: SteadyCheck, injected: float, *, known: bool, tail: float) -> list[Interval]:
        """A check holds where each of its series does, or has not yet begun, and at least one is not absent."""
        base = self._baseline(check, injected)
        everywhere: list[Interval] = [(-math.inf, math.inf)]
        somewhere: list[list[Interval]] = []
        for series in self._latest:
            if series[0] != check.name or (track := self._track(series, check, base)).first is None:
                continue
            fine, here = (track.known, track.known_here) if known else (track.fine, track.fine_here)
            held, begins = fine.stretched(tail), track.first
            if not held or held[0][0] > begins:
                begins = math.nextafter(begins, -math.inf)
            everywhere = both(everywhere, either([[(-math.inf, begins)], held]))
            somewhere.append(here.stretched(tail))
        return both(everywhere, either(somewhere))

    def _track(self, series: Series, check: SteadyCheck, base: float | None) -> _Track:
        track = self._tracks.get(series)
        if track is None or track.base != base:
            track = self._tracks[series] = _Track(check, base)
            for number in sorted(self._chunks):
                for time, value in sorted(self._chunks[number].get(series, {}).items()):
                    track.add(time, value)
        return track

    def _check_now(self, check: SteadyCheck, now: float, injected: float | None) -> CheckState:
        base = self._baseline(check, now if injected is None else injected, final=injected is not None)
        relative = (asked := check.reading) is not None and asked.relative_to is not None
        states: set[CheckState] = set()
        for series, (latest, value) in self._latest.items():
            if series[0] != check.name:
                continue
            if latest < now - FRESH_S or value is None or (relative and base is None):
                states.add(CheckState.UNKNOWN)
            elif value != "absent":
                states.add(CheckState.OK if _good(check, value, base) else CheckState.BAD)
        for state in (CheckState.BAD, CheckState.UNKNOWN, CheckState.OK):
            if state in states:
                return state
        return CheckState.UNKNOWN

    def _baseline(self, check: SteadyCheck, before: float, *, final: bool = True) -> float | None:
        """Median over the check's series and the minute before `before`; None where that is too little to go by.

        `final`: `before` is the injection and will be asked for again.
        """
        if (asked := check.reading) is None or asked.relative_to is None:
            return None
        key = (check.name, before)
        if key in self._baselines:
            return self._baselines[key]
        values = [
            value
            for number in range(chunk_of(before - BASELINE_S), chunk_of(before) + 1)
            for series, points in self._chunks.get(number, {}).items()
            if series[0] == check.name
            for time, value in points.items()
            if before - BASELINE_S <= time < before and isinstance(value, float)
        ]
        found = median(values) if len(values) >= BASELINE_SAMPLES else None
        if final:
            self._baselines[key] = found
        return found

    def _worse(self, name: str, old: Value, new: Value) -> Value:
        if old is None or new is None:
            return None
        if old == "absent" or new == "absent":
            return new if old == "absent" else old
        telemetry: TelemetryCheck | None = self._checks[name].reading if name in self._checks else None
        return _WORSE[telemetry.op](old, new) if telemetry is not None else min(old, new)


class _Track:
    """What one series says over time, kept up as samples come in order: good or known, and whether the job is there."""

    __slots__ = ("_check", "base", "fine", "fine_here", "first", "known", "known_here")

    def __init__(self, check: SteadyCheck, base: float | None) -> None:
        self._check = check
        self.base = base
        self.first: float | None = None
        self.fine, self.fine_here, self.known, self.known_here = (Runs(MAX_GAP_S) for _ in range(4))

    def add(self, time: float, value: Value) -> None:
        """Takes the next sample."""
        self.first = time if self.first is None else self.first
        here, good = value != "absent", _good(self._check, value, self.base)
        self.fine.add(time, good=good or not here)
        self.fine_here.add(time, good=good)
        self.known.add(time, good=value is not None)
        self.known_here.add(time, good=value is not None and here)


def chunk_of(time: float) -> int:
    """The number of the chunk that a sample belongs to."""
    return int(time // CHUNK_S)


def _good(check: SteadyCheck, value: Value, base: float | None) -> bool:
    """Whether a value is in tolerance; `base` is the baseline of a relative check."""
    if not isinstance(value, float):
        return False
    telemetry = check.reading
    if telemetry is None:
        return value == 1.0
    if telemetry.relative_to is None:
        return telemetry.op.holds(value, telemetry.value)
    return base is not None and telemetry.op.holds(value, base * telemetry.value)


def probe_value(state: CheckState) -> Value:
    """A probe's answer as a sample: 1 in tolerance, 0 out of it, None unknown."""
    return {CheckState.OK: 1.0, CheckState.BAD: 0.0}.get(state)


def _node_value(summary: CellSummary, node: str, metric: str) -> Value:
    """A node's value; None where it is not there, or where the node has been silent: an old number is no news."""
    seen = summary.nodes.get(node)
    if seen is None or seen.stale or summary.time - seen.last > MAX_GAP_S or node not in summary.order:
        return None
    column = summary.columns.get(metric)
    index = summary.order.index(node)
    return _finite(column[index]) if column is not None and index < len(column) else None


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
