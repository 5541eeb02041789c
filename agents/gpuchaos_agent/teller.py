"""What the agent says of faults and commands: every `FaultEvent` of the executor is made here.

Ids are made of what is told, so that telling it again is recognised as a repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from gpuchaos_agent.journal import Damaged, JournalEntry, Scalar
from gpuchaos_stream.events.base import Severity, stable_id
from gpuchaos_stream.events.command import Command
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase

#: Where events go: event, traceparent. They are kept when it returns; it never raises.
Emit = Callable[[FaultEvent, str | None], None]

#: Severity by phase, where it is not info.
_SEVERITY: Final = {FaultPhase.REFUSED: Severity.WARNING, FaultPhase.UNDO_FAILED: Severity.CRITICAL}


class Teller:
    """Speaks for one node. `offset` is what to add to its wall clock to get the broker's, None while unknown."""

    def __init__(self, *, cluster: str, node: str, emit: Emit, offset: Callable[[], float | None]) -> None:
        self.cluster = cluster
        self.node = node
        self._emit = emit
        self._offset = offset

    def fault(
        self,
        entry: JournalEntry,
        phase: FaultPhase,
        at: float,
        *,
        command_id: str | None = None,
        reason: str = "",
        evidence: dict[str, Scalar] | None = None,
        repeat: tuple[str | None, ...] = (),
    ) -> None:
        """A step in the life of a fault, at `at` on the node's wall clock. `repeat` tells steps of one phase apart."""
        self._say(
            phase,
            at,
            entry.traceparent,
            id=stable_id(self.cluster, entry.fault_id, phase, *repeat),
            fault=entry.fault,
            entity=entry.entity,
            fault_id=entry.fault_id,
            experiment_id=entry.experiment_id,
            command_id=command_id,
            lease_expires=entry.lease_expires,
            reason=reason,
            evidence=evidence or {},
            params=entry.params if phase is FaultPhase.INJECTED else None,
        )

    def answer(
        self,
        command: Command,
        phase: FaultPhase,
        at: float,
        traceparent: str | None,
        *,
        reason: str = "",
        entry: JournalEntry | None = None,
        evidence: dict[str, Scalar] | None = None,
        for_fault: bool = True,
    ) -> None:
        """An answer to a believed command. `for_fault` False keeps it from speaking for a fault that stands."""
        of = entry.model_dump(include={"fault", "entity", "fault_id", "experiment_id", "traceparent"}) if entry else {}
        self._say(
            phase,
            at,
            traceparent or of.get("traceparent"),
            id=stable_id(self.cluster, self.node, command.id, phase),
            fault=of.get("fault") or command.fault or "unknown",
            entity=of.get("entity") or command.entity or f"node/{self.node}",
            fault_id=(command.fault_id or of.get("fault_id")) if for_fault else None,
            experiment_id=(command.experiment_id or of.get("experiment_id")) if for_fault else None,
            command_id=command.id,
            lease_expires=entry.lease_expires if entry else None,
            reason=reason,
            evidence=evidence or {},
        )

    def refusal(self, refusal: str, text: str, claims: dict[str, Scalar], at: float, *, digest: str) -> None:
        """A record that is not believed. What it claims is evidence and nothing more: it speaks for no fault."""
        self._say(
            FaultPhase.REFUSED,
            at,
            None,
            id=stable_id(self.cluster, self.node, "refused", refusal, digest),
            fault="unknown",
            entity=f"node/{self.node}",
            reason=f"{refusal}: {text}",
            evidence={"refusal": str(refusal), **claims},
        )

    def damage(self, item: Damaged, at: float) -> None:
        """A journal file that cannot be read: its fault may be there still, and a person must look."""
        self._say(
            FaultPhase.UNDO_FAILED,
            at,
            None,
            id=stable_id(self.cluster, self.node, "damaged", item.aside.name),
            fault="unknown",
            entity=f"node/{self.node}",
            fault_id=item.fault_id,
            reason=f"a journal file could not be read ({item.problem}); it is kept as {item.aside}",
        )

    def _say(self, phase: FaultPhase, at: float, traceparent: str | None, **fields: Any) -> None:
        event = FaultEvent(
            phase=phase,
            time=at,
            cluster=self.cluster,
            node=self.node,
            severity=_SEVERITY.get(phase, Severity.INFO),
            clock_offset_s=self._offset(),
            **fields,
        )
        self._emit(event, traceparent)
