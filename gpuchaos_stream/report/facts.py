"""A report's facts, from what was said of one experiment. Pure: the same events give the same report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from gpuchaos_stream.events.base import entity_node
from gpuchaos_stream.events.experiment import ExperimentState, HaltState, InjectedFault, Verdict
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.incident import LEVELS, Mitigation
from gpuchaos_stream.experiments.faults import FAULTS, Form
from gpuchaos_stream.experiments.run import SETTLED
from gpuchaos_stream.report import timeline
from gpuchaos_stream.report.advice import advice
from gpuchaos_stream.report.model import Claim, Curve, Goal, InjectedLine, Level, Report
from gpuchaos_stream.report.spread import branches, origin_of
from gpuchaos_stream.report.story import Story
from gpuchaos_stream.report.words import GOALS

#: The claim that a halt shows, and not a recovery.
_BY_HALT: Final = "automatic-halt"
_NAMES: Final[tuple[Literal["ttd", "ttm", "ttr"], ...]] = ("ttd", "ttm", "ttr")
#: Halts that ended as a halt should.
_DONE: Final = frozenset({HaltState.UNDONE, HaltState.CONFIRMED})


def facts(state: ExperimentState, story: Story, curves: tuple[Curve, ...] = ()) -> Report:
    """The report of one experiment. `state` is its latest one; `story` what else was said; `curves` its checks'."""
    own, others = story.incidents(state.id), story.incidents()
    events = story.faults(state.id)
    name, form = _fault(state)
    report = Report(
        experiment_id=state.id,
        cluster=state.cluster,
        name=state.name,
        owner=state.owner,
        description=str(state.plan.get("description") or ""),
        fault=name,
        layer=form.layer if form is not None else "",
        status=state.status,
        verdict=state.verdict,
        reason=state.reason,
        started=state.started,
        finished=state.finished,
        as_of=state.time,
        origin=origin_of(state),
        injected=tuple(_injected(fault, events) for fault in state.faults),
        claims=tuple(_claims(state, form)),
        never=form.never if form is not None else (),
        goals=tuple(goals(state)),
        recovery=state.recovery,
        levels=tuple(levels(state)),
        unknown_nodes=state.blast_radius.unknown_nodes,
        attributed=state.attributed,
        unattributed=state.unattributed,
        charged=state.charged,
        unexplained=state.unexplained,
        branches=branches(state, own, story.topology(state.started)) if state.blast_radius.entities else (),
        halts=state.halts,
        undo_confirmed=not _open(state),
        undo_open=_open(state),
        steady=dict(sorted(state.steady.items())),
        timeline=timeline.moments(state, events, story.breaker()),
        bars=timeline.bars(state, own, others),
        curves=curves,
        end_s=last_moment(state),
    )
    return report.model_copy(update={"advice": advice(report)})


def plan_fault(state: ExperimentState) -> tuple[str, Mapping[str, Any], tuple[str, ...]]:
    """Name, parameters and claims of the plan's fault; empty where the plan was never readable."""
    raw = state.plan.get("fault")
    if not isinstance(raw, Mapping):
        return (state.faults[0].fault if state.faults else "unknown"), {}, ()
    params, claims = raw.get("params"), raw.get("certifies")
    return (
        str(raw.get("name") or "unknown"),
        params if isinstance(params, Mapping) else {},
        tuple(str(claim) for claim in claims) if isinstance(claims, list | tuple) else (),
    )


def levels(state: ExperimentState) -> Iterator[Level]:
    """Blast radius level by level, GPU-seconds last, each against its limit."""
    for name in (*LEVELS, "gpu_seconds"):
        hurt = float(getattr(state.blast_radius, name))
        limit = state.limits.get(name)
        now = getattr(state.blast_radius, f"{name}_now", None)
        yield Level(
            level=name,
            hurt=hurt,
            now=None if now is None else float(now),
            limit=limit,
            kept=limit is None or hurt <= limit,
        )


def _fault(state: ExperimentState) -> tuple[str, Form | None]:
    name, params, _ = plan_fault(state)
    kind = FAULTS.get(name)
    if kind is None:
        return name, None
    form = kind.form(params)
    return kind.words(form), form


def _injected(fault: InjectedFault, events: Iterable[FaultEvent]) -> InjectedLine:
    mine = [event for event in events if event.fault_id == fault.fault_id]
    first = next((e for e in mine if e.phase in {FaultPhase.INJECTED, FaultPhase.NOT_EFFECTIVE}), None)
    last = next((e for e in reversed(mine) if e.phase in {FaultPhase.UNDONE, FaultPhase.UNDO_FAILED}), None)
    return InjectedLine(
        fault_id=fault.fault_id,
        fault=fault.fault,
        node=fault.node or entity_node(fault.entity) or "",
        entity=fault.entity,
        phase=fault.phase,
        params=dict(sorted((first.params or {}).items())) if first is not None else {},
        injected=fault.injected,
        acknowledged=fault.acknowledged,
        undone=fault.undone,
        reason=fault.reason,
        evidence=dict(sorted(first.evidence.items())) if first is not None else {},
        undo_evidence=dict(sorted(last.evidence.items())) if last is not None else {},
    )


def _claims(state: ExperimentState, form: Form | None) -> Iterator[Claim]:
    """A claim is certified by a run that passed; that a halt comes by itself, by a halt that did its work."""
    for claim in plan_fault(state)[2]:
        if form is None or claim not in form.certifies:
            yield Claim(claim=claim, certified=False, why="this fault cannot show it")
        elif claim == _BY_HALT and state.verdict is Verdict.HALTED:
            done = any(not halt.dry_run and halt.state in _DONE for halt in state.halts)
            why = "halted by itself, and the fault is undone" if done else "halted, but the undo is not confirmed"
            yield Claim(claim=claim, certified=done, why=why)
        elif claim == _BY_HALT:
            why = f"{_ended(state)}: only a halt that comes by itself certifies it"
            yield Claim(claim=claim, certified=False, why=why)
        elif state.verdict is Verdict.PASSED:
            yield Claim(claim=claim, certified=True, why=f"passed; what was reached: {form.layer}")
        else:
            why = f"{_ended(state)}: only a run that passed certifies it"
            yield Claim(claim=claim, certified=False, why=why)


def _ended(state: ExperimentState) -> str:
    return str(state.verdict or f"still {state.status}")


def goals(state: ExperimentState) -> Iterator[Goal]:
    """TTD, TTM and TTR against their objectives."""
    record = state.recovery
    for name in _NAMES:
        moved = name == "ttm" and record.mitigated_by is Mitigation.MOVED
        yield Goal(
            name=name,
            value=getattr(record, name),
            objective=record.objectives.get(name, _objective(state, name)),
            met=record.met.get(name),
            note="the work moved off it" if moved else "",
        )


def _objective(state: ExperimentState, name: str) -> float | None:
    """The plan's own word, for a run that never came to be measured."""
    goals = state.plan.get("objectives")
    value = goals.get(name) if isinstance(goals, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _open(state: ExperimentState) -> tuple[str, ...]:
    """Faults of which nobody has said that they are gone."""
    return tuple(
        f"{fault.fault} on {fault.entity}: {fault.phase}" + (f" ({fault.reason})" if fault.reason else "")
        for fault in state.faults
        if fault.phase not in SETTLED
    )


def last_moment(state: ExperimentState) -> float:
    """Where the picture ends: the newest moment that is known."""
    origin = origin_of(state)
    record = state.recovery
    last = [state.finished or state.time, *(fault.undone for fault in state.faults if fault.undone is not None)]
    last += [
        origin + value for value in (record.confirm, *(getattr(record, name) for name in GOALS)) if value is not None
    ]
    return round(max(max(last) - origin, 1.0), 3)
