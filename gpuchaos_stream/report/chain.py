"""How an experiment went from status to status: the rows of the machine's own table that it took, and what shows it.

The rows are found from what was said, not from memory of the machine: a chain that the table does not allow cannot
come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pydantic import Field

from gpuchaos_stream.events.base import Timestamp, Wire
from gpuchaos_stream.events.experiment import ExperimentState, InjectedFault, Status, Verdict
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.incident import RecoveryOutcome
from gpuchaos_stream.experiments.machine import TRANSITIONS
from gpuchaos_stream.experiments.run import SETTLED, Phase
from gpuchaos_stream.experiments.triggers import Trigger
from gpuchaos_stream.guard.decision import OPERATOR
from gpuchaos_stream.report.words import head, pairs, seconds, stamp

_REFUSED: Final = "refused"
#: Trigger → why it moves an experiment on.
_SAYS: Final[dict[str, str]] = {
    _REFUSED: "the start was refused, so nothing was broken",
    Trigger.HALT: "the guard asked for a halt",
    Trigger.STOP: "a person stopped it",
    Trigger.BLOCKED: "the breaker is tripped, so nothing may be injected",
    Trigger.UNKNOWN_TARGET: "a target's node is not known",
    Trigger.UNSAFE: "a target may not be hit, or not now",
    Trigger.STEADY: "every check of the steady state held, so the faults were ordered",
    Trigger.UNSTEADY: "there was no steady state to begin with",
    Trigger.ENDED_EARLY: "a fault went away before its time",
    Trigger.NOTHING_INJECTED: "every agent answered or was given up, and no fault took effect",
    Trigger.INJECTED: "every agent answered, and a fault took effect",
    Trigger.DURATION_OVER: "the planned duration was over",
    Trigger.GONE_UNTESTED: "no fault is there, and none ever was",
    Trigger.GONE: "every fault is gone, as its agent verified",
    Trigger.UNDO_OVERDUE: "an agent does not say that its fault is gone; the undo goes on being sent",
    Trigger.RECOVERED: "recovered: every check held, and no objective was open",
    Trigger.RECOVERY_OVERDUE: "no recovery by the deadline",
}
#: What a reason begins with → the trigger that wrote it, for experiments that never began. The last one is the rest.
_VOID: Final = (
    ("the plan is refused", _REFUSED),
    ("refused", Trigger.UNSAFE),
    ("not started", Trigger.BLOCKED),
    ("no steady state", Trigger.UNSTEADY),
    ("frozen", Trigger.UNSTEADY),
    ("", Trigger.UNKNOWN_TARGET),
)

_Move = tuple[str, float | None, tuple[str, ...]]


class Step(Wire):
    """One transition. `at` is event time, None where nothing that was read says when; `shown_by` is in words."""

    source: Status
    target: Status
    trigger: str
    at: Timestamp | None
    sentence: str
    shown_by: tuple[str, ...] = Field(default=(), description="the events that show it")


def chain(state: ExperimentState, versions: Sequence[ExperimentState], faults: Sequence[FaultEvent]) -> list[Step]:
    """The transitions that led to the present status. `versions` are the states seen, `faults` its agents' words."""
    seen: dict[Status, float] = {}
    for version in versions:
        seen.setdefault(version.status, version.time)
    status, steps = Status.PENDING, list[Step]()
    for trigger, at, shown in _moves(state, seen, faults):
        target = Status.FINISHED if trigger == _REFUSED else TRANSITIONS.get((status, Trigger(trigger)))
        if target is None:
            break
        steps.append(
            Step(source=status, target=target, trigger=trigger, at=at, sentence=_SAYS[trigger], shown_by=shown)
        )
        status = target
    return steps


def _moves(state: ExperimentState, seen: dict[Status, float], events: Sequence[FaultEvent]) -> Iterator[_Move]:
    injected = [fault for fault in state.faults if fault.injected is not None]
    begun = bool(injected) or Status.INJECTING in seen or any(f.phase != Phase.WAITING for f in state.faults)
    if not begun:
        yield from _never_began(state)
        return
    yield Trigger.STEADY, seen.get(Status.INJECTING), tuple(f"check {n}: {s}" for n, s in _checks(state))
    stop = _stop(state, seen)
    if not injected:
        yield from _untested(state, stop)
        return
    if _active(state, seen, injected):
        yield Trigger.INJECTED, max(_times(injected, "injected")), _said(events, FaultPhase.INJECTED)
    if state.status in {Status.INJECTING, Status.ACTIVE}:
        return
    yield from _end(state, stop, injected, events)
    if state.status is Status.FINISHED:
        record = state.recovery
        well = record.outcome is RecoveryOutcome.RECOVERED and None not in record.met.values()
        well = well and "no steady state at the end" not in state.reason
        shown = tuple(f"{name} {seconds(getattr(record, name))}" for name in ("ttr", "confirm"))
        yield Trigger.RECOVERED if well else Trigger.RECOVERY_OVERDUE, state.finished, shown


def _never_began(state: ExperimentState) -> Iterator[_Move]:
    if state.status is not Status.FINISHED:
        return
    if state.verdict in {Verdict.HALTED, Verdict.STOPPED}:
        yield Trigger.HALT if state.verdict is Verdict.HALTED else Trigger.STOP, state.finished, (state.reason,)
        return
    trigger = next(trigger for begin, trigger in _VOID if state.reason.startswith(begin))
    if trigger == Trigger.UNSAFE and "which is not over" in state.reason:
        trigger = _REFUSED  # refused with its start, for another experiment has the same target
    yield trigger, state.finished, (state.reason,)


def _stop(state: ExperimentState, seen: dict[Status, float]) -> _Move | None:
    """The halt or the person's stop that ended it, None where neither did."""
    real = [halt for halt in state.halts if not halt.dry_run]
    if real:
        first = min(real, key=lambda halt: (halt.requested, halt.id))
        trigger = Trigger.STOP if first.cause.startswith(OPERATOR) else Trigger.HALT
        return trigger, first.requested, (f"halt {first.cause}: {first.reason}",)
    if state.verdict is Verdict.HALTED or (state.verdict is None and state.status is Status.HALTING):
        return Trigger.HALT, seen.get(Status.HALTING), (state.reason,)
    if state.verdict is Verdict.STOPPED:
        return Trigger.STOP, seen.get(Status.HALTING), (state.reason,)
    return None


def _untested(state: ExperimentState, stop: _Move | None) -> Iterator[_Move]:
    if stop is not None:
        yield stop
    elif state.status is not Status.INJECTING:
        said = tuple(f"{fault.entity} {fault.phase}: {fault.reason}" for fault in state.faults)
        yield Trigger.NOTHING_INJECTED, None, said
    if state.status is Status.FINISHED:
        yield Trigger.GONE_UNTESTED, state.finished, ()


def _active(state: ExperimentState, seen: dict[Status, float], injected: Sequence[InjectedFault]) -> bool:
    """Whether every agent had answered before it was ended: seen so, or as their words have it."""
    if Status.ACTIVE in seen or state.status is Status.ACTIVE:
        return True
    if Status.INJECTING in seen and len(seen) > 2:
        return False
    halts = [halt.requested for halt in state.halts if not halt.dry_run]
    return len(injected) == len(state.faults) and all(max(_times(injected, "injected")) <= at for at in halts)


def _end(
    state: ExperimentState, stop: _Move | None, injected: Sequence[InjectedFault], events: Sequence[FaultEvent]
) -> Iterator[_Move]:
    """From active to recovering: by plan, early, by halt or stop, and in which order."""
    undone = _times(injected, "undone")
    owed = any(fault.phase not in SETTLED for fault in state.faults)
    gone = None if owed or not undone else max(undone)
    over = state.status in {Status.RECOVERING, Status.FINISHED}
    at = stop[1] if stop is not None else None
    if "ended early" in state.reason:
        yield Trigger.ENDED_EARLY, min(undone, default=None), _said(events, FaultPhase.UNDONE)
    elif stop is None or (at is not None and state.ends is not None and at > state.ends):
        yield Trigger.DURATION_OVER, state.ends, (f"planned to end at {stamp(state.ends)}",)
    late = "undo not confirmed" in state.reason
    away: _Move = (Trigger.GONE, gone, _said(events, FaultPhase.UNDONE))
    if late:
        away = (Trigger.UNDO_OVERDUE, None, tuple(f"{f.entity}: {f.phase} {f.reason}".strip() for f in state.faults))
    if stop is not None:
        if at is not None and gone is not None and at > gone:
            yield away
        yield stop
    if over:
        yield away


def _checks(state: ExperimentState) -> Iterable[tuple[str, str]]:
    """The steady state's checks by name; they must all have held before, whatever they say now."""
    return ((name, "held before the injection") for name in sorted(state.steady))


def _times(faults: Iterable[InjectedFault], name: str) -> list[float]:
    return [value for fault in faults if (value := getattr(fault, name)) is not None]


def _said(events: Iterable[FaultEvent], phase: FaultPhase) -> tuple[str, ...]:
    """What the agents said in words, the first few."""
    lines = []
    for event in events:
        if event.phase is phase:
            evidence = f" ({pairs(event.evidence)})" if event.evidence else ""
            lines.append(f"{event.phase} {event.entity} at {stamp(event.event_time)}{evidence}")
    return head(lines)
