"""Commands: what may change the world, and therefore travels signed."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from gpuchaos_stream.events.base import Entity, Event, Timestamp, Wire


class CommandKind(StrEnum):
    """What is asked, and of whom."""

    INJECT = "inject"  # agent: inject one fault, keep it while its lease is renewed
    RENEW = "renew"  # agent: extend the lease
    UNDO = "undo"  # agent: the planned end of a fault
    HALT = "halt"  # agent: undo now, because a limit is breached or a person says so
    START = "start"  # control plane: run this experiment plan
    STOP = "stop"  # control plane: stop this experiment
    STOP_ALL = "stop_all"  # control plane: stop everything, trip the breaker
    RESET = "reset"  # control plane: reset the breaker, with a reason


#: Commands that only take a fault away: nothing delays or filters them, and any role may send them.
UNDOING = frozenset({CommandKind.UNDO, CommandKind.HALT})


class Role(StrEnum):
    """Whose key it is. Agents take injections from the control plane alone."""

    CONTROL = "control"
    OPERATOR = "operator"


class Command(Event):
    """What is signed. `id` is deterministic for halts (experiment and cause), so that a repeat is one halt.

    `node` is the agent addressed, None for the control plane. `expires` bounds how long it may be believed;
    `nonce` makes two otherwise equal commands differ. `lease_s` is the lease in seconds that an inject or a
    renew grants from its arrival on. `plan` is the experiment plan of a start.
    """

    kind: CommandKind
    expires: Timestamp
    nonce: str = Field(min_length=8)
    node: str | None = None
    experiment_id: str | None = None
    fault_id: str | None = None
    fault: str | None = None
    entity: Entity | None = None
    params: dict[str, str | float | int | bool | None] = {}
    lease_s: float | None = Field(default=None, gt=0)
    cause: str = ""
    reason: str = ""
    issued_by: str = ""
    plan: dict[str, object] | None = None


class SignedCommand(Wire):
    """A command as it travels: `payload` is the JSON of a `Command`, byte for byte as it was signed.

    `signature` is Ed25519 over the payload's UTF-8 bytes, base64. `key_id` chooses the public key.
    """

    schema_version: Literal[1] = 1
    key_id: str
    payload: str
    signature: str
