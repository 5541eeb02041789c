"""One experiment while it lives: its published state, and what only the state machine needs besides."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from gpuchaos_stream.events.base import entity_node, stable_id
from gpuchaos_stream.events.experiment import ExperimentState, InjectedFault, Status
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.experiments.plan import Limits, Plan


class Phase(StrEnum):
    """Where one fault is, as far as its agent has said (`InjectedFault.phase`)."""

    WAITING = "waiting"  # nothing was sent
    REQUESTED = "requested"  # inject sent, no answer yet
    UNANSWERED = "unanswered"  # no answer in time: it may be there, so it is undone
    REFUSED = "refused"
    NOT_EFFECTIVE = "not_effective"  # done, and nothing moved
    INJECTED = "injected"
    ACKNOWLEDGED = "acknowledged"  # the agent is undoing it
    UNDO_FAILED = "undo_failed"
    UNDONE = "undone"


#: Phases in which no effect can be on the node. In every other one an undo is owed.
SETTLED: Final = frozenset({Phase.WAITING, Phase.REFUSED, Phase.UNDONE})
#: Phases in which the agent has not answered the inject.
OPEN_QUESTION: Final = frozenset({Phase.WAITING, Phase.REQUESTED})


class Run(BaseModel):
    """The whole of one experiment. `since` is when the present status began; times are event time.

    `to_halt` and `to_stop` are wishes that the machine has not yet acted on, `halt` and `stop` the reasons.
    `void` says why nothing was tested. `sent` is when each command that waits for an answer was last sent.
    """

    model_config = ConfigDict(extra="ignore")

    state: ExperimentState
    plan: Plan | None
    since: float
    steady_since: float | None = None
    to_halt: bool = False
    to_stop: bool = False
    halt: str = ""
    stop: str = ""
    void: str = ""
    asked: float | None = Field(default=None, description="when the injects were first sent")
    sent: dict[str, float] = {}
    renewed: dict[str, int] = {}

    @property
    def id(self) -> str:
        return self.state.id

    @property
    def finished(self) -> bool:
        return self.state.status is Status.FINISHED

    @property
    def first_injected(self) -> float | None:
        """When the first fault took effect."""
        return min((f.injected for f in self.state.faults if f.injected is not None), default=None)

    @property
    def gone(self) -> float | None:
        """When the last of the faults that took effect was gone; None while one may be there."""
        if self.owed():
            return None
        return max(
            (f.undone for f in self.state.faults if f.injected is not None and f.undone is not None), default=None
        )

    def owed(self) -> list[InjectedFault]:
        """Faults that may be on their node: an undo is owed for each, whatever the experiment's status."""
        return [fault for fault in self.state.faults if fault.phase not in SETTLED]

    def set(self, **fields: object) -> None:
        """Puts fields into the published state."""
        self.state = self.state.model_copy(update=fields)

    def set_fault(self, fault_id: str, **fields: object) -> None:
        """Puts fields into one fault."""
        faults = tuple(f.model_copy(update=fields) if f.fault_id == fault_id else f for f in self.state.faults)
        self.set(faults=faults)

    def note(self, reason: str) -> None:
        """Adds a reason for a person to read, once."""
        if reason and reason not in self.state.reason:
            self.set(reason=f"{self.state.reason}; {reason}".removeprefix("; "))

    def feed(self, event: FaultEvent) -> bool:
        """Takes an agent's word on one of its faults; True when that changed anything."""
        fault = next((f for f in self.state.faults if f.fault_id == event.fault_id), None)
        learn = _LEARN.get(event.phase)
        if fault is None or learn is None:
            return False
        fields = learn(fault, event)
        changed = {name: value for name, value in fields.items() if getattr(fault, name) != value}
        if not changed:
            return False
        self.set_fault(fault.fault_id, **changed)
        if self.plan is not None and (first := self.first_injected) is not None:
            self.set(ends=first + self.plan.duration)
        return True


def planned_faults(experiment_id: str, plan: Plan) -> tuple[InjectedFault, ...]:
    """One fault for each target. Its id is made of experiment and target alone; its node is its agent's."""
    return tuple(
        InjectedFault(
            fault_id=stable_id(experiment_id, entity),
            fault=plan.fault.name,
            node=agent_of(plan, entity) or "",
            entity=entity,
            phase=Phase.WAITING,
        )
        for entity in plan.targets.entities
    )


def agent_of(plan: Plan, entity: str) -> str | None:
    """The node whose agent carries the plan's fault out on `entity`."""
    kind = FAULTS.get(plan.fault.name)
    return kind.agent(entity, plan.fault.params) if kind is not None else entity_node(entity)


def limits_of(limits: Limits) -> dict[str, float]:
    """The limits that the plan sets, by level."""
    return {name: float(value) for name, value in limits.model_dump().items() if value is not None}


# What each word of an agent changes. A repeat changes nothing, and no word makes a gone fault come back but an
# injection that is later than its end.


def _injected(fault: InjectedFault, event: FaultEvent) -> dict[str, object]:
    time = event.event_time
    first = time if fault.injected is None else min(fault.injected, time)
    fields: dict[str, object] = {"injected": first, **_lease(fault, event)}
    if fault.undone is not None and fault.undone < time:
        fields |= {"undone": None, "phase": Phase.INJECTED, "reason": ""}
    elif fault.phase in OPEN_QUESTION | {Phase.REFUSED, Phase.UNANSWERED, Phase.NOT_EFFECTIVE}:
        fields |= {"phase": Phase.INJECTED, "reason": ""}
    return fields


def _not_effective(fault: InjectedFault, event: FaultEvent) -> dict[str, object]:
    if fault.injected is None and fault.phase in OPEN_QUESTION | {Phase.UNANSWERED}:
        return {"phase": Phase.NOT_EFFECTIVE, "reason": event.reason or "nothing moved"}
    return {}


def _refused(fault: InjectedFault, event: FaultEvent) -> dict[str, object]:
    """Only a refused inject settles a fault: a refused renewal is the lease's matter, a refused undo is sent again."""
    if event.command_id == stable_id("inject", fault.fault_id) and fault.phase in OPEN_QUESTION:
        return {"phase": Phase.REFUSED, "reason": event.reason}
    return {}


def _lease(fault: InjectedFault, event: FaultEvent) -> dict[str, object]:
    if event.lease_expires is None:
        return {}
    return {"lease_expires": max(fault.lease_expires or 0.0, event.lease_expires)}


def _acknowledged(fault: InjectedFault, event: FaultEvent) -> dict[str, object]:
    first = event.event_time if fault.acknowledged is None else min(fault.acknowledged, event.event_time)
    phase = Phase.ACKNOWLEDGED if fault.phase == Phase.INJECTED else fault.phase
    return {"acknowledged": first, "phase": phase}


def _undone(fault: InjectedFault, event: FaultEvent) -> dict[str, object]:
    time = event.event_time
    if fault.injected is not None and time < fault.injected:
        if event.evidence.get("was_there") is False:
            return {}  # the answer to an undo that overtook the injection
        time = fault.injected  # a fault id is injected once: its end is its end, whatever the node's clock did
    if fault.undone is not None:
        return {"undone": min(fault.undone, time)}
    reason = fault.reason if fault.phase == Phase.NOT_EFFECTIVE else event.reason
    return {"undone": time, "phase": Phase.UNDONE, "reason": reason}


def _undo_failed(fault: InjectedFault, event: FaultEvent) -> dict[str, object]:
    if fault.phase == Phase.UNDONE:
        return {}
    return {"phase": Phase.UNDO_FAILED, "reason": event.reason}


_LEARN: Final = {
    FaultPhase.INJECTED: _injected,
    FaultPhase.NOT_EFFECTIVE: _not_effective,
    FaultPhase.REFUSED: _refused,
    FaultPhase.RENEWED: _lease,
    FaultPhase.ACKNOWLEDGED: _acknowledged,
    FaultPhase.UNDONE: _undone,
    FaultPhase.UNDO_FAILED: _undo_failed,
}
