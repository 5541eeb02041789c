"""The agents of the simulated nodes: they believe, refuse and answer commands as the real ones do.

Pure: commands and time in, fault events out. Effects take a little while, in event time; what a partitioned
node has to say waits until it can.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from gpuchaos_stream.events.base import Severity, entity_node, stable_id
from gpuchaos_stream.events.command import UNDOING, Command, CommandKind, SignedCommand
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin
from gpuchaos_stream.events.signing import Refusal, RefusedError, Verifier
from gpuchaos_stream.sim.answers import Scalars, Voice, authentic, claim_of
from gpuchaos_stream.sim.cluster import SimulatedCluster
from gpuchaos_stream.sim.faults import Begun, NotPossibleError, begin
from gpuchaos_stream.sim.world import What

#: Bounds of the delays in seconds: to inject, to undo and verify, and to boot after power came back.
INJECT_S: Final = (0.05, 0.3)
UNDO_S: Final = (0.2, 1.0)
BOOT_S: Final = (20.0, 40.0)


class _State(StrEnum):
    PENDING = "pending"
    INJECTED = "injected"
    UNDONE = "undone"


@dataclass(slots=True)
class _Fault:
    """One fault on one simulated node. Times in epoch seconds."""

    command: Command
    fault_id: str
    node: str
    state: _State
    inject_at: float
    lease_expires: float
    undo_at: float | None = None
    undo_by: str | None = None
    reason: str = ""
    undone: float | None = None
    evidence: Scalars = field(default_factory=dict)


class SimulatedAgents:
    """Carries out signed commands on the nodes of one simulated cluster, whose world it changes."""

    def __init__(self, cluster: SimulatedCluster, verifier: Verifier, rng: np.random.Generator) -> None:
        self._cluster = cluster
        self._voice = Voice(cluster)
        self._verifier = verifier
        self._rng = rng
        self._faults: dict[str, _Fault] = {}
        self._seen: dict[str, float] = {}
        self._ended: set[str] = set()
        self._unsaid: list[FaultEvent] = []

    def command(self, signed: SignedCommand, now: float) -> list[FaultEvent]:
        """One command, and what its node answers at once. What is for other nodes is passed over."""
        claim = claim_of(signed)
        node = claim.get("node")
        row = self._cluster.world.places.row_of.get(str(node))
        if row is None or claim.get("cluster") != self._cluster.spec.cluster:
            return []
        if not self._hears(row, claim):
            return []
        try:
            command = self._verifier.verify(signed, now=now)
        except RefusedError as error:
            late = authentic(signed, error)
            if late is None or late.kind not in UNDOING:
                return self._say([self._unbelieved(str(node), signed, error, late, now)])
            command = late
        if command.kind in UNDOING:
            return self._say(self._end(command, now))
        if command.id in self._seen or command.nonce in self._seen:
            return self._say(self._replayed(command, now))
        self._seen[command.id] = self._seen[command.nonce] = command.expires + 3600.0
        answer = self._inject(command, now) if command.kind is CommandKind.INJECT else self._renew(command, now)
        return self._say(answer)

    def tick(self, now: float) -> list[FaultEvent]:
        """What is due by `now`: effects that are in place, leases that ran out, undos that are verified."""
        said: list[FaultEvent] = []
        for fault in self._faults.values():
            if fault.state is _State.PENDING and fault.inject_at <= now:
                said.append(self._effect(fault))
            if fault.state is _State.INJECTED and fault.undo_at is None and fault.lease_expires <= now:
                self._undo(fault, fault.lease_expires, "lease expired", None)
            if fault.state is _State.INJECTED and fault.undo_at is not None and fault.undo_at <= now:
                said.append(self._undone(fault))
        self._seen = {key: until for key, until in self._seen.items() if until > now}
        return self._say(sorted(said, key=lambda event: event.time))

    def active(self) -> list[str]:
        """Ids of the faults that are in place."""
        return [fault.fault_id for fault in self._faults.values() if fault.state is _State.INJECTED]

    # Injecting and renewing

    def _inject(self, command: Command, now: float) -> list[FaultEvent]:
        reason = self._why_not(command, now)
        if reason:
            return [self._answer(command, FaultPhase.REFUSED, now, reason, severity=Severity.WARNING)]
        fault_id = str(command.fault_id)
        self._faults[fault_id] = _Fault(
            command=command,
            fault_id=fault_id,
            node=str(command.node),
            state=_State.PENDING,
            inject_at=now + float(self._rng.uniform(*INJECT_S)),
            lease_expires=now + float(command.lease_s or 0.0),
        )
        return []

    def _why_not(self, command: Command, now: float) -> str:
        if not (command.fault_id and command.experiment_id and command.fault and command.entity and command.lease_s):
            return "an inject names fault_id, experiment_id, fault, entity and lease_s"
        if {_ended(command.node, command.experiment_id), _ended(command.node, command.fault_id)} & self._ended:
            return "this fault or its experiment was ended on this node before"
        if command.fault_id in self._faults:
            return f"already: fault {command.fault_id} is {self._faults[command.fault_id].state}"
        if entity_node(command.entity) != command.node:
            return f"{command.entity} is not on node {command.node}"
        for other in self._faults.values():
            if other.command.entity == command.entity and other.state is not _State.UNDONE:
                return f"already: {command.entity} carries fault {other.fault_id} ({other.command.fault})"
        try:
            self._begin(command, now)
        except NotPossibleError as error:
            return str(error)
        return ""

    def _begin(self, command: Command, now: float) -> Begun:
        return begin(
            self._cluster.world,
            str(command.fault),
            str(command.entity),
            command.params,
            owner=str(command.fault_id),
            experiment_id=str(command.experiment_id),
            now=now,
        )

    def _effect(self, fault: _Fault) -> FaultEvent:
        at = fault.inject_at
        begun = self._begin(fault.command, at)
        for effect in begun.effects:
            self._cluster.world.add(effect)
        self._cluster.truth.append(begun.truth)
        fault.state, fault.evidence = _State.INJECTED, begun.evidence
        if begun.signal is not None:
            signal = begun.signal
            self._cluster.observe(
                self._voice.event(
                    FaultPhase.OBSERVED,
                    at,
                    fault.node,
                    event_id=stable_id("observed", fault.fault_id, signal.fault),
                    fault=signal.fault,
                    entity=str(fault.command.entity),
                    severity=signal.severity,
                    origin=Origin.PROCESS if signal.marked else Origin.KERNEL,
                    injected_mark=signal.marked,
                    evidence=signal.evidence,
                )
            )
        return self._tell(fault, FaultPhase.INJECTED, at, fault.command.id)

    def _renew(self, command: Command, now: float) -> list[FaultEvent]:
        fault = self._faults.get(command.fault_id or "")
        if fault is None or fault.state is _State.UNDONE or fault.undo_at is not None:
            state = "not known" if fault is None else "undone" if fault.state is _State.UNDONE else "being undone"
            reason = f"nothing to renew: fault is {state}"
            return [self._answer(command, FaultPhase.REFUSED, now, reason, severity=Severity.WARNING)]
        fault.lease_expires = max(fault.lease_expires, now + float(command.lease_s or fault.command.lease_s or 0.0))
        return [self._tell(fault, FaultPhase.RENEWED, now, command.id)]

    def _replayed(self, command: Command, now: float) -> list[FaultEvent]:
        """A repeat changes nothing and is reported; the answer that the first one got is told again."""
        node = str(command.node)
        text = f"{Refusal.REPLAYED}: carried out before"
        claims: Scalars = {"refusal": Refusal.REPLAYED.value, "kind": command.kind.value, "command": command.id}
        said = [self._refusal(node, Refusal.REPLAYED, command.id, text, evidence=claims, now=now)]
        fault = self._faults.get(command.fault_id or "")
        if fault is not None and fault.command.id == command.id and fault.state is _State.INJECTED:
            said.append(self._tell(fault, FaultPhase.INJECTED, fault.inject_at, command.id))
        return said

    # Undoing: never refused, never delayed by anything else

    def _end(self, command: Command, now: float) -> list[FaultEvent]:
        meant = [fault for fault in self._faults.values() if self._meant(fault, command)]
        standing = [fault for fault in meant if fault.state is not _State.UNDONE]
        first = standing[-1] if standing else (meant[-1] if meant else None)
        cause = f"{command.kind}: {command.cause or command.reason}".removesuffix(": ")
        said = [
            self._answer(
                command,
                FaultPhase.ACKNOWLEDGED,
                now,
                command.cause or command.reason,
                of=first,
                evidence={"faults": len(standing)},
            )
        ]
        self._ended.add(_ended(command.node, command.fault_id or command.experiment_id))
        for fault in reversed(standing):
            self._undo(fault, now, cause, command.id)
            if fault.state is _State.UNDONE:
                said.append(self._tell(fault, FaultPhase.UNDONE, now, command.id))
        if not standing:
            said += [self._tell(fault, FaultPhase.UNDONE, fault.undone or now, fault.undo_by) for fault in meant]
            if command.fault_id and not meant:
                absent: Scalars = {"was_there": False}
                said.append(self._answer(command, FaultPhase.UNDONE, now, "not on this node", evidence=absent))
        return said

    @staticmethod
    def _meant(fault: _Fault, command: Command) -> bool:
        if fault.node != command.node:
            return False
        if command.fault_id:
            return fault.fault_id == command.fault_id
        return command.experiment_id is not None and fault.command.experiment_id == command.experiment_id

    def _undo(self, fault: _Fault, now: float, reason: str, command_id: str | None) -> None:
        """Begins an undo; one that is on its way goes on. A fault that is not yet in place never will be."""
        if fault.undo_at is not None:
            return
        fault.reason, fault.undo_by = reason, command_id or fault.command.id
        if fault.state is _State.PENDING:
            fault.state, fault.undone, fault.undo_at = _State.UNDONE, now, now
            return
        bounds = BOOT_S if fault.command.fault == "power-cycle" else UNDO_S
        boot = fault.command.params.get("boot_s") if fault.command.fault == "power-cycle" else None
        fault.undo_at = now + (float(boot) if boot is not None else float(self._rng.uniform(*bounds)))

    def _undone(self, fault: _Fault) -> FaultEvent:
        at = fault.undo_at or 0.0
        self._cluster.world.remove(fault.fault_id)
        fault.state, fault.undone = _State.UNDONE, at
        self._cluster.truth[:] = [
            truth.model_copy(update={"ended": at}) if truth.id == fault.fault_id else truth
            for truth in self._cluster.truth
        ]
        return self._tell(fault, FaultPhase.UNDONE, at, fault.undo_by)

    # Hearing and telling

    def _hears(self, row: int, claim: dict[str, object]) -> bool:
        """A cut-off node hears nothing; a node without power is spoken to through its BMC, to switch it on."""
        if self._cluster.world.active(row, What.SILENT):
            return False
        return not self._cluster.world.active(row, What.OFF) or claim.get("kind") in set(UNDOING) | {CommandKind.RENEW}

    def _say(self, events: list[FaultEvent]) -> list[FaultEvent]:
        world = self._cluster.world
        self._unsaid += events
        said = [e for e in self._unsaid if not world.active(world.places.row_of[e.node], What.SILENT)]
        self._unsaid = [e for e in self._unsaid if world.active(world.places.row_of[e.node], What.SILENT)]
        return said

    def _tell(self, fault: _Fault, phase: FaultPhase, at: float, command_id: str | None) -> FaultEvent:
        """An event of a fault; its id is made of fault and phase, and of the command where it may repeat."""
        repeats = (command_id,) if phase is FaultPhase.RENEWED else ()
        return self._voice.event(
            phase,
            at,
            fault.node,
            event_id=stable_id(self._cluster.spec.cluster, fault.fault_id, phase, *repeats),
            fault=str(fault.command.fault),
            entity=str(fault.command.entity),
            fault_id=fault.fault_id,
            experiment_id=fault.command.experiment_id,
            command_id=command_id,
            lease_expires=fault.lease_expires,
            reason=fault.reason,
            evidence=fault.evidence,
            params=fault.command.params if phase is FaultPhase.INJECTED else None,
        )

    def _answer(
        self,
        command: Command,
        phase: FaultPhase,
        now: float,
        reason: str,
        *,
        of: _Fault | None = None,
        severity: Severity = Severity.INFO,
        evidence: Scalars | None = None,
    ) -> FaultEvent:
        """An event that answers a believed command; `of` is the fault that it is about."""
        node = str(command.node)
        return self._voice.event(
            phase,
            now,
            node,
            event_id=stable_id(self._cluster.spec.cluster, node, command.id, phase),
            fault=(str(of.command.fault) if of else command.fault) or "unknown",
            entity=(str(of.command.entity) if of else command.entity) or f"node/{node}",
            fault_id=command.fault_id or (of.fault_id if of else None),
            experiment_id=command.experiment_id or (of.command.experiment_id if of else None),
            command_id=command.id,
            lease_expires=of.lease_expires if of else None,
            reason=reason,
            severity=severity,
            evidence=evidence or {},
        )

    def _unbelieved(
        self, node: str, signed: SignedCommand, error: RefusedError, late: Command | None, now: float
    ) -> FaultEvent:
        """What is not believed is reported in the agent's own words; a sender that is only late gets its answer."""
        text = f"{error.refusal}: {error}"
        if late is not None and error.refusal is Refusal.EXPIRED and late.id not in self._seen:
            return self._answer(late, FaultPhase.REFUSED, now, text, severity=Severity.WARNING)
        digest = stable_id(signed.key_id, signed.payload, signed.signature)
        return self._refusal(node, error.refusal, digest, text, evidence={"refusal": error.refusal.value}, now=now)

    def _refusal(
        self, node: str, refusal: Refusal, digest: str, text: str, *, evidence: Scalars, now: float
    ) -> FaultEvent:
        return self._voice.event(
            FaultPhase.REFUSED,
            now,
            node,
            event_id=stable_id(self._cluster.spec.cluster, node, "refused", refusal, digest),
            fault="unknown",
            entity=f"node/{node}",
            reason=text,
            severity=Severity.WARNING,
            evidence=evidence,
        )


def _ended(node: str | None, of: str | None) -> str:
    return f"{node}/{of}"
