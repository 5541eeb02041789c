"""The commands that an experiment owes its agents at one moment.

A command keeps its id however often it is sent, so that an agent carries it out once. An inject lapses when its
time is over; an undo never does: it is sent until the agent says that the fault is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.command import Command, CommandKind
from gpuchaos_stream.events.experiment import InjectedFault, Status
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.experiments.run import OPEN_QUESTION, Phase, Run

#: An unanswered command is sent again after so many seconds.
RESEND_S: Final = 2.0
#: An undo that the agent has begun, and one owed by a finished experiment, are sent again more slowly, seconds.
RESEND_ACKNOWLEDGED_S: Final = 10.0
RESEND_FINISHED_S: Final = 30.0
#: An inject that no agent has answered by then is given up, and undone, seconds.
INJECT_WAIT_S: Final = 30.0
#: How long an undo may be believed, seconds; each time it is sent it gets that long again.
UNDO_VALID_S: Final = 60.0
#: A halt is sent by the act stage. If the faults are still there after so many seconds, they are undone as well.
HALT_ALONE_S: Final = 4.0

_RENEWING: Final = frozenset({Status.INJECTING, Status.ACTIVE})
_ENDING: Final = frozenset({Status.UNDOING, Status.RECOVERING, Status.FINISHED})


def orders(run: Run, now: float, *, may_inject: bool) -> Iterator[Command]:
    """What must be sent at `now`, event time. `may_inject` false (breaker, freeze) holds back injects alone."""
    if run.plan is None:
        return
    for fault in run.state.faults:
        if run.state.status is Status.INJECTING and fault.phase in OPEN_QUESTION and may_inject:
            yield from _inject(run, run.plan, fault, now)
        if run.state.status in _RENEWING and fault.phase == Phase.INJECTED:
            yield from _renew(run, run.plan, fault, now)
    for fault in run.owed():
        if _undo_is_due(run, fault, now):
            yield from _undo(run, fault, now)


def _undo_is_due(run: Run, fault: InjectedFault, now: float) -> bool:
    if fault.phase == Phase.UNANSWERED or run.state.status in _ENDING:
        return True
    if run.state.status is not Status.HALTING:
        return False
    return not run.halt or now >= run.since + HALT_ALONE_S


def _inject(run: Run, plan: Plan, fault: InjectedFault, now: float) -> Iterator[Command]:
    asked = run.asked if run.asked is not None else now
    command_id = stable_id("inject", fault.fault_id)
    if now >= asked + INJECT_WAIT_S or not _due(run, command_id, now, RESEND_S):
        return
    run.asked = asked
    run.sent[command_id] = now
    run.set_fault(fault.fault_id, phase=Phase.REQUESTED)
    yield _command(
        run,
        fault,
        CommandKind.INJECT,
        command_id,
        now,
        expires=asked + INJECT_WAIT_S,
        fault=fault.fault,
        params=plan.fault.params,
        lease_s=plan.lease,
    )


def _renew(run: Run, plan: Plan, fault: InjectedFault, now: float) -> Iterator[Command]:
    """One renewal every third of the lease, numbered from the injection: the same number, the same id."""
    number = int((now - (fault.injected or now)) // (plan.lease / 3))
    if number <= run.renewed.get(fault.fault_id, 0):
        return
    run.renewed[fault.fault_id] = number
    yield _command(
        run,
        fault,
        CommandKind.RENEW,
        stable_id("renew", fault.fault_id, number),
        now,
        expires=now + plan.lease,
        lease_s=plan.lease,
    )


def _undo(run: Run, fault: InjectedFault, now: float) -> Iterator[Command]:
    command_id = stable_id("undo", fault.fault_id)
    period = RESEND_FINISHED_S if run.finished else RESEND_S
    if fault.phase == Phase.ACKNOWLEDGED:
        period = max(period, RESEND_ACKNOWLEDGED_S)
    if not _due(run, command_id, now, period):
        return
    run.sent[command_id] = now
    yield _command(run, fault, CommandKind.UNDO, command_id, now, expires=now + UNDO_VALID_S)


def _due(run: Run, command_id: str, now: float, period: float) -> bool:
    last = run.sent.get(command_id)
    return last is None or now >= last + period


def _command(
    run: Run, at: InjectedFault, kind: CommandKind, command_id: str, now: float, *, expires: float, **fields: object
) -> Command:
    body: dict[str, object] = {
        "id": command_id,
        "time": now,
        "cluster": run.state.cluster,
        "kind": kind,
        "expires": expires,
        "nonce": stable_id("nonce", command_id),
        "node": at.node,
        "experiment_id": run.id,
        "fault_id": at.fault_id,
        "entity": at.entity,
        "reason": run.state.reason[:500],
        "issued_by": "control",
    }
    return Command.model_validate(body | fields)
