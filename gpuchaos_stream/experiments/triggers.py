"""What pulls an experiment from one status to the next, and the sentence that says why.

Each trigger has one condition over the run, its plan, the time, and what the other stages say (`View`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpuchaos_stream.events.incident import RecoveryOutcome
from gpuchaos_stream.events.observation import CheckState
from gpuchaos_stream.experiments.plan import Plan, SteadyCheck
from gpuchaos_stream.experiments.run import OPEN_QUESTION, Phase, Run

#: How long, beyond `settle`, an experiment waits for its steady state, seconds.
STEADY_WAIT_S: Final = 30.0
#: How long the nodes of its targets may be unknown, seconds: a worker that has just started is still reading them.
KNOWN_WAIT_S: Final = 5.0
#: How much later than the recovery deadline the machine ends a run of which it hears nothing, seconds.
RECORD_GRACE_S: Final = 10.0


class Trigger(StrEnum):
    """What can move an experiment on, in the order in which they are looked at."""

    HALT = "halt"  # the guard says so
    STOP = "stop"  # a person says so
    BLOCKED = "blocked"  # the breaker is tripped
    UNKNOWN_TARGET = "unknown_target"  # nobody has ever heard of a target's node
    UNSAFE = "unsafe"  # a target that may not be hit, or not now
    STEADY = "steady"  # every check in tolerance for `settle` seconds, injection allowed
    UNSTEADY = "unsteady"  # no steady state in time
    ENDED_EARLY = "ended_early"  # a fault went away by itself: lease over, agent restarted
    NOTHING_INJECTED = "nothing_injected"  # every agent answered (or did not), no fault took effect
    INJECTED = "injected"  # every agent answered, a fault took effect
    DURATION_OVER = "duration_over"
    GONE_UNTESTED = "gone_untested"  # no fault is there, and none ever was
    GONE = "gone"  # every fault is gone, and verified so by its agent
    UNDO_OVERDUE = "undo_overdue"  # an agent does not say that it is gone; the undo goes on being sent
    RECOVERED = "recovered"
    RECOVERY_OVERDUE = "recovery_overdue"


@dataclass(frozen=True, slots=True)
class View:
    """What the other stages say at one moment.

    `steady` is the state of each check per experiment, `halts` the reason of the halt requested per experiment
    (dry runs left out), `unknown` the target that nobody knows, `blind` those of which a
    target sends no telemetry, `unsafe` why one may not begin. `tripped` and `frozen` are reasons, empty while
    injection is allowed; they hold back injects and nothing else.
    """

    steady: Mapping[str, Mapping[str, CheckState]] = field(default_factory=dict)
    halts: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    blind: frozenset[str] = frozenset()
    unsafe: Mapping[str, str] = field(default_factory=dict)
    tripped: str = ""
    frozen: str = ""


def steady_now(run: Run, view: View) -> bool:
    """Every check of the steady state is in tolerance; one of which nothing is heard is not."""
    return run.plan is not None and _hold(run, run.plan.steady_state.checks, view)


def _hold(run: Run, checks: Iterable[SteadyCheck], view: View) -> bool:
    said = view.steady.get(run.id, {})
    return all(said.get(check.name) is CheckState.OK for check in checks)


def _steady(run: Run, plan: Plan, now: float, view: View) -> bool:
    return (
        not view.frozen
        and run.id not in view.blind
        and run.steady_since is not None
        and now >= run.steady_since + plan.settle
    )


def _answered(run: Run) -> bool:
    return all(fault.phase not in OPEN_QUESTION for fault in run.state.faults)


def _overdue(run: Run, plan: Plan, now: float) -> bool:
    """Past the undo's deadline, and the lease's end with it: until then the agent alone may still undo it."""
    return now > run.since + plan.undo.deadline + plan.lease


def _gone_untested(run: Run, plan: Plan, now: float, _view: View) -> bool:
    return run.first_injected is None and (not run.owed() or _overdue(run, plan, now))


def _recovered(run: Run, plan: Plan, _now: float, view: View) -> bool:
    """Recovered, still well in every way, and no objective open: a detection within its objective may yet come."""
    record = run.state.recovery
    known = None not in record.met.values()
    return record.outcome is RecoveryOutcome.RECOVERED and known and _hold(run, plan.checks, view)


def _recovery_overdue(run: Run, plan: Plan, now: float, _view: View) -> bool:
    if run.state.recovery.outcome is RecoveryOutcome.MISSED:
        return True
    first = run.first_injected if run.first_injected is not None else run.state.started
    return now > plan.recovery_deadline(first, run.gone or run.since) + RECORD_GRACE_S


CONDITIONS: Final[dict[Trigger, Callable[[Run, Plan, float, View], bool]]] = {
    Trigger.HALT: lambda run, _plan, _now, _view: run.to_halt,
    Trigger.STOP: lambda run, _plan, _now, _view: run.to_stop,
    Trigger.BLOCKED: lambda _run, _plan, _now, view: bool(view.tripped),
    Trigger.UNKNOWN_TARGET: lambda run, _plan, now, view: (
        run.id in view.unknown and now >= run.state.started + KNOWN_WAIT_S
    ),
    Trigger.UNSAFE: lambda run, _plan, _now, view: run.id in view.unsafe,
    Trigger.STEADY: _steady,
    Trigger.UNSTEADY: lambda run, plan, now, _view: now > run.state.started + plan.settle + STEADY_WAIT_S,
    Trigger.ENDED_EARLY: lambda run, _plan, _now, _view: any(
        f.injected is not None and f.phase == Phase.UNDONE for f in run.state.faults
    ),
    Trigger.NOTHING_INJECTED: lambda run, _plan, _now, _view: _answered(run) and run.first_injected is None,
    Trigger.INJECTED: lambda run, _plan, _now, _view: _answered(run) and run.first_injected is not None,
    Trigger.DURATION_OVER: lambda run, _plan, now, _view: run.state.ends is not None and now >= run.state.ends,
    Trigger.GONE_UNTESTED: _gone_untested,
    Trigger.GONE: lambda run, _plan, _now, _view: run.first_injected is not None and not run.owed(),
    Trigger.UNDO_OVERDUE: lambda run, plan, now, _view: _overdue(run, plan, now),
    Trigger.RECOVERED: _recovered,
    Trigger.RECOVERY_OVERDUE: _recovery_overdue,
}


def void_reason(run: Run, trigger: Trigger, view: View) -> str:
    """Why nothing was tested, where this transition says so."""
    if trigger is Trigger.BLOCKED:
        return f"not started: {view.tripped}"
    if trigger is Trigger.UNKNOWN_TARGET:
        return view.unknown[run.id]
    if trigger is Trigger.UNSAFE:
        return view.unsafe[run.id]
    if trigger is Trigger.UNSTEADY and run.id in view.blind:
        return "no steady state to begin with (a target sends no telemetry)"
    if trigger is Trigger.UNSTEADY:
        if view.frozen:
            return f"frozen: {view.frozen}"
        return f"no steady state to begin with ({_each(_not_ok(run, view)) or 'unknown'})"
    if trigger is Trigger.NOTHING_INJECTED:
        return "no fault took effect: " + _each(f"{f.entity} {f.phase}: {f.reason}" for f in run.state.faults)
    return ""


def _not_ok(run: Run, view: View) -> Iterator[str]:
    """The checks that are not in tolerance. Where nothing is known, of what: mostly its name is wrong."""
    said = view.steady.get(run.id, {})
    for check in sorted(run.plan.steady_state.checks, key=lambda each: each.name) if run.plan is not None else ():
        state = said.get(check.name)
        if state is CheckState.UNKNOWN and check.reading is not None:
            yield f"{check.name}: no value of {check.reading.of}; is the name right, and does an agent report it?"
        elif state is not None and state is not CheckState.OK:
            yield check.name


def sentence(run: Run, trigger: Trigger) -> str:
    if trigger is Trigger.HALT:
        return run.halt
    if trigger is Trigger.STOP:
        return run.stop
    if trigger is Trigger.ENDED_EARLY:
        early = (f for f in run.state.faults if f.injected is not None and f.phase == Phase.UNDONE)
        return "ended early: " + _each(f"{f.entity}: {f.reason}" for f in early)
    if trigger is Trigger.INJECTED:
        missing = [f for f in run.state.faults if f.injected is None]
        return "not injected: " + _each(f"{f.entity}: {f.reason}" for f in missing) if missing else ""
    if trigger is Trigger.UNDO_OVERDUE:
        return "undo not confirmed: " + _each(f.entity for f in run.owed())
    return ""


def _each(parts: Iterable[str], most: int = 5) -> str:
    """The first few, and how many more."""
    items = list(parts)
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
