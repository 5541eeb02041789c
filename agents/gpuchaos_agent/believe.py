"""Which records of the commands topic are believed: signed by a known key that may ask it, in time, for this node."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import ValidationError

from gpuchaos_agent.journal import Scalar
from gpuchaos_stream.events.command import UNDOING, Command, SignedCommand
from gpuchaos_stream.events.signing import Refusal, RefusedError, Verifier

#: Refusals of a command whose signature and role were found good, but whose time is not.
_UNTIMELY = frozenset({Refusal.EXPIRED, Refusal.NOT_YET})


class Refused(Exception):
    """A record that is not believed. `command` is set where it is authentic all the same, `claims` is its word."""

    def __init__(
        self, refusal: str, text: str, *, digest: str, claims: dict[str, Scalar], command: Command | None = None
    ) -> None:
        super().__init__(text)
        self.refusal = refusal
        self.digest = digest
        self.claims = claims
        self.command = command


class Believer:
    """Verifies records against a key ring; `use` puts another ring in place."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def use(self, verifier: Verifier) -> None:
        """Takes another key ring from now on."""
        self._verifier = verifier

    def believe(self, value: bytes, wall: float) -> Command:
        """The command in a record that is addressed to this node. `wall` is on the broker's clock, epoch seconds.

        An authentic undo or halt is believed whenever it comes: it can only take a fault away, and a wrong clock
        on either side must not keep a fault in place.

        Raises:
            Refused: with the reason, and what the record says of itself.
        """
        digest = hashlib.sha256(value).hexdigest()[:20]
        claims = _claims(value)
        try:
            signed = SignedCommand.model_validate_json(value)
        except ValidationError as error:
            raise Refused("unsigned", "a command without a signature", digest=digest, claims=claims) from error
        try:
            return self._verifier.verify(signed, now=wall)
        except RefusedError as error:
            command = Command.model_validate_json(signed.payload) if error.refusal in _UNTIMELY else None
            if command is not None and command.kind in UNDOING:
                return command
            raise Refused(error.refusal, str(error), digest=digest, claims=claims, command=command) from error


def addressed_to(value: bytes, cluster: str, node: str) -> bool:
    """Whether a record claims to be for this node: read without believing it, as most are for others.

    Anything that is not JSON is nobody's here; the control plane puts it into the dead-letter topic.
    """
    command = _inner(value)
    return command is not None and command.get("node") == node and command.get("cluster") == cluster


def is_undoing(value: bytes) -> bool:
    """Whether a record claims to be an undo or a halt: such are looked at first. Read without believing it."""
    command = _inner(value)
    # A list and not a set: what stands there may be anything, and not everything can be hashed.
    return command is not None and command.get("kind") in [kind.value for kind in UNDOING]


def _inner(value: bytes) -> dict[str, Any] | None:
    """The command in a record, signed or bare, as plain JSON."""
    try:
        outer = json.loads(value)
        inner = json.loads(outer["payload"]) if isinstance(outer, dict) and "payload" in outer else outer
    except (ValueError, TypeError, RecursionError):
        return None
    return inner if isinstance(inner, dict) else None


def _claims(value: bytes) -> dict[str, Scalar]:
    inner = _inner(value) or {}
    wanted = {"kind": "kind", "id": "command", "fault_id": "fault_id", "experiment_id": "experiment"}
    found = {name: str(inner[field])[:100] for field, name in wanted.items() if inner.get(field)}
    # Half of a surrogate pair is JSON and no text: it could not be told.
    return {"claimed_" + name: text.encode("utf-8", "replace").decode() for name, text in found.items()}
