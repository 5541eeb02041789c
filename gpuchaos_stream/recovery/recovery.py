"""Recovery: how long from the injection until it was seen, removed, and over.

TTR is the start of the first window of `hold` seconds, after the injection, in which every steady-state check
(or, where the plan has them, every check of its `recovery`) is in tolerance in every sample and no check has a
gap of more than 2.5 s. A window that was already open when
the fault came is not recovery: the effect may be on its way. Only if it stays open until `hold` seconds after
the last fault is gone was the fault absorbed, and TTR is 0. Silence, a failing probe, a number that nobody
could read are out of tolerance: missing telemetry never counts as recovery.

TTM is to the removal of the last fault, or to the move of the work off the targets (`moves.py`), the earlier one.

All of it is computed from sets (samples by time, faults by id): any order of arrival, any repeat, same record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import Field

from gpuchaos_stream.events.base import Wire, entity_node
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.incident import Mitigation, RecoveryOutcome, RecoveryRecord
from gpuchaos_stream.events.observation import CellSummary, CheckState, ProbeResult
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.recovery.intervals import covered
from gpuchaos_stream.recovery.moves import Moves
from gpuchaos_stream.recovery.series import BASELINE_S, CHUNK_S, Samples, Value, chunk_of, probe_value

#: How late a fact may arrive and still be counted, seconds: an objective is open for that much longer.
LATENESS_S: Final = 2.0
#: Samples older than this before the injection are forgotten, seconds.
KEEP_BEFORE_S: Final = BASELINE_S + 2 * CHUNK_S
#: Rounding must not cost a sample that lies exactly at the end of a window, seconds.
_EPSILON: Final = 1e-6

_PREFIX: Final = "recovery/"


class _Facts(Wire):
    """What is known of one experiment besides its samples."""

    plan: Plan
    since: float
    jobs: tuple[str, ...] = Field(default=(), description="jobs that may be on the targets")
    injected: dict[str, float] = Field(default={})
    undone: dict[str, float] = Field(default={})
    offsets: dict[str, float] = Field(default={}, description="largest clock offset seen per node, seconds")

    @property
    def first(self) -> float | None:
        """First injection, event time."""
        return min(self.injected.values(), default=None)

    @property
    def gone(self) -> float | None:
        """When the last fault was undone; None while one is there, or before any was."""
        if not self.injected or not self.injected.keys() <= self.undone.keys():
            return None
        return max(self.undone[fault] for fault in self.injected)


class Recovery:
    """Times recoveries.

    State: `recovery/<experiment>/facts`, the checks' samples `recovery/<experiment>/s/<chunk>`, those of the
    targets' work `recovery/<experiment>/m/<chunk>`.
    """

    def __init__(self) -> None:
        self._facts: dict[str, _Facts] = {}
        self._samples: dict[str, Samples] = {}
        self._moves: dict[str, Moves] = {}
        self._dirty: set[str] = set()

    def begin(self, experiment_id: str, plan: Plan, now: float, jobs: Iterable[str] = ()) -> None:
        """Samples are kept from here on. Beginning twice changes nothing.

        `jobs` are those that may work on the targets; of others it is not seen when they move off.
        """
        if experiment_id not in self._facts:
            self._begin(experiment_id, _Facts(plan=plan, since=now, jobs=tuple(sorted(jobs))))
            self._dirty.add(_facts_key(experiment_id))

    def forget(self, experiment_id: str) -> None:
        """The experiment is over and its record is published: drops all that is kept of it."""
        if self._facts.pop(experiment_id, None) is not None:
            self._dirty.add(_facts_key(experiment_id))
            for kind, store in (("s", self._samples.pop(experiment_id)), ("m", self._moves.pop(experiment_id))):
                self._dirty.update(_chunk_key(experiment_id, kind, chunk) for chunk in store.chunks)

    def open(self) -> list[str]:
        """Experiments of which samples are kept."""
        return sorted(self._facts)

    def feed(self, event: CellSummary | ProbeResult | FaultEvent) -> None:
        """Takes one event; a repeat changes nothing, and events of other experiments are passed by."""
        if isinstance(event, CellSummary):
            for experiment_id, samples in self._samples.items():
                for series, value in list(samples.of_summary(event)):
                    self._sample(experiment_id, series, event.time, value)
                self._work(experiment_id, event)
                self._learn_offsets(experiment_id, event)
        elif isinstance(event, ProbeResult):
            asked = self._samples.get(event.experiment_id)
            if asked is not None and event.check in asked.probes:
                self._sample(event.experiment_id, (event.check, ""), event.time, probe_value(event.state))
        else:
            self._fault(event)

    def steady(self, experiment_id: str, now: float) -> dict[str, CheckState]:
        """The state of each check at `now`; no sample within `FRESH_S` is unknown. Empty for an unknown experiment."""
        facts = self._facts.get(experiment_id)
        return self._samples[experiment_id].now(now, facts.first) if facts is not None else {}

    def record(self, experiment_id: str, now: float, first_detection: float | None = None) -> RecoveryRecord:
        """The recovery record at `now`, event time. `first_detection` is the correlator's, epoch seconds.

        `met` is None while an objective is still open. A run past `Plan.recovery_deadline` is a miss, and
        stays one: a window that is confirmed only after it does not count.
        """
        facts = self._facts.get(experiment_id)
        if facts is None:
            return RecoveryRecord()
        goals = facts.plan.objectives
        hold = facts.plan.steady_state.hold
        objectives = {"ttd": goals.ttd, "ttm": goals.ttm, "ttr": goals.ttr}
        injected = facts.first
        skew = max((abs(offset) for offset in facts.offsets.values()), default=None)
        if injected is None:
            met: dict[str, bool | None] = dict.fromkeys(objectives)
            return RecoveryRecord(hold_s=hold, skew_s=skew, objectives=objectives, met=met)
        deadline = facts.plan.recovery_deadline(injected, facts.gone)
        ttr = self._ttr(experiment_id, facts, injected, deadline)
        mitigated, by = self._mitigated(experiment_id, facts, injected)
        times = {
            "ttd": max(0.0, first_detection - injected) if first_detection is not None else None,
            "ttm": max(0.0, mitigated - injected) if mitigated is not None else None,
            "ttr": ttr,
        }
        open_until = {"ttd": goals.ttd, "ttm": goals.ttm, "ttr": goals.ttr + hold}
        confirmed = injected + ttr + hold if ttr is not None else deadline
        end = min(now, confirmed)
        known = covered(self._samples[experiment_id].known(injected), injected, end)
        return RecoveryRecord(
            outcome=_outcome(ttr, late=now > deadline + LATENESS_S),
            injected=injected,
            ttd=times["ttd"],
            ttm=times["ttm"],
            ttr=ttr,
            confirm=ttr + hold if ttr is not None else None,
            hold_s=hold,
            skew_s=skew,
            objectives=objectives,
            met={
                name: _met(times[name], objective, late=now > injected + open_until[name] + LATENESS_S)
                for name, objective in objectives.items()
            },
            unknown_s=round(max(0.0, end - injected - known), 3),
            mitigated_by=by,
        )

    def _mitigated(
        self, experiment_id: str, facts: _Facts, injected: float
    ) -> tuple[float, Mitigation] | tuple[None, None]:
        """When the harm was ended, epoch seconds, and by what."""
        moved = self._moves[experiment_id].moved(injected, max(facts.injected.values()))
        if moved is not None and (facts.gone is None or moved < facts.gone):
            return moved, Mitigation.MOVED
        return (facts.gone, Mitigation.REMOVED) if facts.gone is not None else (None, None)

    def _ttr(self, experiment_id: str, facts: _Facts, injected: float, deadline: float) -> float | None:
        hold = facts.plan.steady_state.hold
        for start, end in self._samples[experiment_id].in_tolerance(injected):
            if start <= injected:
                # Open before the fault came: recovery only if nothing ever went out of tolerance.
                if facts.gone is not None and end >= facts.gone + hold - _EPSILON:
                    return 0.0
            elif end - start >= hold - _EPSILON and start + hold <= deadline + _EPSILON:
                return start - injected
        return None

    def _fault(self, event: FaultEvent) -> None:
        facts = self._facts.get(event.experiment_id or "")
        if facts is None or event.experiment_id is None or event.fault_id is None:
            return
        if event.evidence.get("was_there") is False:
            return  # the answer to an undo that found nothing
        into = {FaultPhase.INJECTED: facts.injected, FaultPhase.UNDONE: facts.undone}.get(event.phase)
        if into is not None and event.event_time < into.get(event.fault_id, math.inf):
            into[event.fault_id] = event.event_time
            self._dirty.add(_facts_key(event.experiment_id))
        self._offset(event.experiment_id, event.node, event.clock_offset_s)

    def _learn_offsets(self, experiment_id: str, summary: CellSummary) -> None:
        for entity in self._facts[experiment_id].plan.targets.entities:
            node = entity_node(entity)
            if node is not None and (seen := summary.nodes.get(node)) is not None:
                self._offset(experiment_id, node, seen.clock_offset_s)

    def _offset(self, experiment_id: str, node: str, offset: float | None) -> None:
        offsets = self._facts[experiment_id].offsets
        if offset is not None and abs(offset) > offsets.get(node, 0.0):
            offsets[node] = abs(offset)
            self._dirty.add(_facts_key(experiment_id))

    def _sample(self, experiment_id: str, series: tuple[str, str], time: float, value: Value) -> None:
        samples, chunk = self._samples[experiment_id], chunk_of(time)
        known = chunk in samples.chunks
        if self._wanted(experiment_id, time) and samples.add(series, time, value):
            self._added(experiment_id, "s", samples, time, new=not known)

    def _work(self, experiment_id: str, summary: CellSummary) -> None:
        moves, chunk = self._moves[experiment_id], chunk_of(summary.time)
        known, sample = chunk in moves.chunks, moves.of_summary(summary)
        if sample is None or not self._wanted(experiment_id, summary.time):
            return
        if moves.add(summary.cell, summary.time, sample):
            self._added(experiment_id, "m", moves, summary.time, new=not known)

    def _wanted(self, experiment_id: str, time: float) -> bool:
        facts = self._facts[experiment_id]
        return time >= (facts.first if facts.first is not None else facts.since) - KEEP_BEFORE_S

    def _added(self, experiment_id: str, kind: str, store: Samples | Moves, time: float, *, new: bool) -> None:
        """A chunk must be saved anew; when it is a new one, chunks that are too old are dropped."""
        self._dirty.add(_chunk_key(experiment_id, kind, chunk_of(time)))
        if new:
            first = self._facts[experiment_id].first
            before = min(time, first if first is not None else time) - KEEP_BEFORE_S
            for old in [number for number in store.chunks if (number + 1) * CHUNK_S <= before]:
                store.drop(old)
                self._dirty.add(_chunk_key(experiment_id, kind, old))

    def dirty(self) -> dict[str, bytes | None]:
        """See `stage.Stateful`."""
        out: dict[str, bytes | None] = {}
        for key in sorted(self._dirty):
            experiment_id, kind, chunk = _parse(key)
            facts = self._facts.get(experiment_id)
            if facts is None:
                out[key] = None
            elif kind == "facts":
                out[key] = facts.model_dump_json().encode()
            else:
                store = self._store(experiment_id, kind)
                out[key] = json.dumps(store.chunk(chunk)).encode() if chunk in store.chunks else None
        self._dirty.clear()
        return out

    def load(self, items: Mapping[str, bytes]) -> None:
        """See `stage.Stateful`."""
        self._facts, self._samples, self._moves, self._dirty = {}, {}, {}, set()
        mine = {key: value for key, value in items.items() if key.startswith(_PREFIX)}
        for key, value in mine.items():
            experiment_id, kind, _ = _parse(key)
            if kind == "facts":
                self._begin(experiment_id, _Facts.model_validate_json(value))
        for key, value in mine.items():
            experiment_id, kind, _ = _parse(key)
            if kind != "facts" and experiment_id in self._facts:
                self._store(experiment_id, kind).restore(json.loads(value))

    def _begin(self, experiment_id: str, facts: _Facts) -> None:
        self._facts[experiment_id] = facts
        self._samples[experiment_id] = Samples(facts.plan)
        self._moves[experiment_id] = Moves(facts.plan, facts.jobs)

    def _store(self, experiment_id: str, kind: str) -> Samples | Moves:
        return self._samples[experiment_id] if kind == "s" else self._moves[experiment_id]


def _facts_key(experiment_id: str) -> str:
    return f"{_PREFIX}{experiment_id}/facts"


def _chunk_key(experiment_id: str, kind: str, chunk: int) -> str:
    return f"{_PREFIX}{experiment_id}/{kind}/{chunk}"


def _parse(key: str) -> tuple[str, str, int]:
    """Experiment, `facts` or the kind of chunk, and the chunk's number."""
    rest = key.removeprefix(_PREFIX)
    if rest.endswith("/facts"):
        return rest.removesuffix("/facts"), "facts", 0
    experiment_id, kind, chunk = rest.rsplit("/", 2)
    return experiment_id, kind, int(chunk)


def _outcome(ttr: float | None, *, late: bool) -> RecoveryOutcome:
    if ttr is not None:
        return RecoveryOutcome.RECOVERED
    return RecoveryOutcome.MISSED if late else RecoveryOutcome.PENDING


def _met(value: float | None, objective: float, *, late: bool) -> bool | None:
    """Whether `value` seconds meet `objective`; None while a value within it may still come."""
    if value is None:
        return False if late else None
    return value <= objective
