"""What simulated agents say, in the shape in which real ones say it, and what they read of a command's claims."""

from __future__ import annotations

import json
from typing import Final

from pydantic import ValidationError

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.command import Command, SignedCommand
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin
from gpuchaos_stream.events.signing import Refusal, RefusedError
from gpuchaos_stream.sim.cluster import SimulatedCluster

#: Refusals of an authentic command whose time is wrong: an undo is carried out all the same.
_UNTIMELY: Final = frozenset({Refusal.EXPIRED, Refusal.NOT_YET})

Scalars = dict[str, str | float | int | bool | None]


class Voice:
    """Makes fault events of the nodes of one cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def event(
        self,
        phase: FaultPhase,
        at: float,
        node: str,
        *,
        event_id: str,
        fault: str,
        entity: str,
        fault_id: str | None = None,
        experiment_id: str | None = None,
        command_id: str | None = None,
        lease_expires: float | None = None,
        severity: Severity = Severity.INFO,
        origin: Origin = Origin.AGENT,
        injected_mark: bool = False,
        reason: str = "",
        evidence: Scalars | None = None,
        params: Scalars | None = None,
    ) -> FaultEvent:
        """An event at `at`, epoch seconds on the broker's clock; its stamp is the node's own, as a real one is."""
        offset = self._cluster.offset(node)
        return FaultEvent(
            id=event_id,
            time=at - offset,
            clock_offset_s=offset,
            cluster=self._cluster.spec.cluster,
            phase=phase,
            fault=fault,
            node=node,
            entity=entity,
            fault_id=fault_id,
            experiment_id=experiment_id,
            command_id=command_id,
            lease_expires=lease_expires,
            severity=severity,
            origin=origin,
            injected_mark=injected_mark,
            reason=reason,
            evidence=evidence or {},
            params=params,
        )


def claim_of(signed: SignedCommand) -> dict[str, object]:
    """What the payload says of itself, read without believing it; empty where it is no JSON object."""
    try:
        inner = json.loads(signed.payload)
    except (ValueError, RecursionError):
        return {}
    return inner if isinstance(inner, dict) else {}


def authentic(signed: SignedCommand, error: RefusedError) -> Command | None:
    """The command, where its signature and role were found good and only its time is not."""
    if error.refusal not in _UNTIMELY:
        return None
    try:
        return Command.model_validate_json(signed.payload)
    except ValidationError:
        return None
