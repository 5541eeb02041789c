"""Faults: what was injected on purpose, what was undone, what was refused, what was observed."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from gpuchaos_stream.events.base import Entity, Event, Severity, Timestamp


class FaultPhase(StrEnum):
    """What happened to a fault, or to the command that asked for it."""

    INJECTED = "injected"  # the effect is there; `evidence` says what moved
    NOT_EFFECTIVE = "not_effective"  # injected, and nothing moved: the experiment is void
    REFUSED = "refused"  # a command was not carried out; `reason` says why
    RENEWED = "renewed"  # the lease was extended
    ACKNOWLEDGED = "acknowledged"  # a halt or an undo has reached the agent and begun
    UNDONE = "undone"  # the effect is gone and verified
    UNDO_FAILED = "undo_failed"  # it is not; a person is needed
    OBSERVED = "observed"  # a hard fact that nobody here asked for


class Origin(StrEnum):
    """Who says it. A record that a process wrote to the kernel log is not hardware speaking."""

    KERNEL = "kernel"
    PROCESS = "process"
    DRIVER = "driver"
    APPLICATION = "application"
    AGENT = "agent"


class FaultEvent(Event):
    """One step in the life of one fault on one target.

    Injected faults carry `experiment_id`, `fault_id` and `lease_expires`; observed ones carry neither of the
    first two. `fault` of an injection is a strategy (`process-stop`), of an observation a name from the list
    of fault names (`gpu_lost`). `command_id` is the command that this answers. `injected_mark` is true where
    a record names itself an injection (what `memory-corruption` writes).
    """

    phase: FaultPhase
    fault: str = Field(min_length=1)
    node: str = Field(min_length=1)
    entity: Entity
    fault_id: str | None = None
    experiment_id: str | None = None
    command_id: str | None = None
    lease_expires: Timestamp | None = None
    severity: Severity = Severity.INFO
    origin: Origin = Origin.AGENT
    injected_mark: bool = False
    reason: str = ""
    evidence: dict[str, str | float | int | bool | None] = {}
    params: dict[str, str | float | int | bool | None] | None = Field(
        default=None, description="of an injection, what it was asked to do; None where its agent does not say"
    )
    clock_offset_s: float | None = None

    @model_validator(mode="after")
    def _observed_belongs_to_nobody(self) -> Self:
        if self.phase is FaultPhase.OBSERVED and self.experiment_id is not None:
            raise ValueError("an observed fault carries no experiment_id; attribution is the correlator's work")
        return self

    @property
    def event_time(self) -> float:
        """`time` on the broker's clock, seconds."""
        return self.time + (self.clock_offset_s or 0.0)
