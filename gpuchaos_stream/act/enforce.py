"""Decisions → the breaker and the halts: one call for the control loop.

It reconciles instead of reacting: every decision that stands is asked for again, and while the breaker is
tripped every running experiment is halted. So a crash between any two writes loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuchaos_stream.act.halts import CONFIRM_S, DEADLINE_S, Halts
from gpuchaos_stream.events.experiment import Halt
from gpuchaos_stream.guard.breaker import Breaker
from gpuchaos_stream.guard.decision import OPERATOR, Decision
from gpuchaos_stream.guard.rules import Action


@dataclass(frozen=True, slots=True)
class Running:
    """What a halt of a running experiment needs: the nodes of its targets, and its deadlines in seconds.

    `exposed`: a fault of it may be on a node. One that is pending or recovering is not stopped by a `halt_all`:
    the breaker keeps the first from injecting, and the second has nothing left to be undone.
    """

    nodes: tuple[str, ...]
    exposed: bool = True
    deadline_s: float = DEADLINE_S
    confirm_s: float = CONFIRM_S


def enforce(
    decisions: Iterable[Decision],
    running: Mapping[str, Running],
    *,
    breaker: Breaker,
    halts: Halts,
    now: float,
    dry_run: bool = False,
) -> list[Halt]:
    """Acts on the decisions that stand; returns each halt touched, once.

    `running` maps each experiment that is not finished to what its halt needs. With `dry_run` what rules decide
    is only recorded; what a person asks for is done.
    """
    rehearsed: list[Decision] = []
    real: list[Decision] = []
    for decision in decisions:
        if decision.resolved:
            continue
        if dry_run and not decision.cause.startswith(OPERATOR):
            rehearsed += _halts_of(decision, running)
        elif decision.action is Action.HALT_ALL:
            breaker.trip(decision.cause, decision.reason, decision.fired)
        elif decision.action is Action.FREEZE and decision.freeze_until is not None:
            breaker.freeze(decision.freeze_until, now)
        else:
            real += _halts_of(decision, running)
    if breaker.state.tripped:
        at = breaker.state.since or now
        reason = breaker.state.cause.removeprefix(f"{breaker.cause}: ")
        stop = Decision(Action.HALT_ALL, breaker.cause, reason, since=at, fired=at)
        real += _halts_of(stop, running)
    touched: dict[str, Halt] = {}
    for rehearse, listed in ((True, rehearsed), (False, real)):
        for decision in listed:
            experiment = running.get(decision.experiment_id or "")
            if experiment is None:
                continue
            halt = halts.request(
                decision,
                experiment.nodes,
                now,
                dry_run=rehearse,
                deadline_s=experiment.deadline_s,
                confirm_s=experiment.confirm_s,
            )
            touched[halt.id] = halt
    return list(touched.values())


def _halts_of(decision: Decision, running: Mapping[str, Running]) -> list[Decision]:
    """The halts of single experiments that a decision asks for."""
    if decision.action is Action.HALT_ALL:
        return [decision.for_experiment(key) for key, experiment in running.items() if experiment.exposed]
    return [decision] if decision.action is Action.HALT else []
