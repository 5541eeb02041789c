"""Signed commands: Ed25519 keys, the ring of trusted public keys, and what a reader refuses.

A key file holds one private key; a key ring holds the public keys that are believed, each with its role and
its end. Rotation adds the new key to every ring before the old one ends (`gpuchaos keys rotate`).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field, ValidationError

from gpuchaos_stream.events.base import Authored, stable_id
from gpuchaos_stream.events.command import UNDOING, Command, CommandKind, Role, SignedCommand

#: What each role may ask. Injections come from the control plane alone; anybody trusted may end a fault.
MAY: Final[dict[Role, frozenset[CommandKind]]] = {
    Role.CONTROL: frozenset({CommandKind.INJECT, CommandKind.RENEW}) | UNDOING,
    Role.OPERATOR: frozenset({CommandKind.START, CommandKind.STOP, CommandKind.STOP_ALL, CommandKind.RESET}) | UNDOING,
}

#: How far a sender's clock may be ahead of ours, seconds.
CLOCK_TOLERANCE_S: Final = 30.0
#: The longest that a command may ask to be believed, seconds. Shorter than any memory of what was carried out
#: (an agent's, the control plane's), so that a command that was forgotten cannot be replayed.
LONGEST_VALIDITY_S: Final = 900.0


class Refusal(StrEnum):
    """Why a command is not believed."""

    UNREADABLE = "unreadable"
    UNKNOWN_KEY = "unknown_key"
    ENDED_KEY = "ended_key"
    BAD_SIGNATURE = "bad_signature"
    NOT_ALLOWED = "not_allowed"
    EXPIRED = "expired"
    NOT_YET = "not_yet_valid"
    REPLAYED = "replayed"


class RefusedError(ValueError):
    """A command that is not believed: `refusal` is the kind, the text says it in words."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


class TrustedKey(Authored):
    """A public key, base64 of its 32 bytes, believed for `role` until `not_after` (epoch seconds)."""

    key_id: str
    role: Role
    public: str
    not_after: float | None = None
    owner: str = ""


class KeyRing(Authored):
    """The public keys that are believed, as kept in `keyring.json`."""

    keys: tuple[TrustedKey, ...] = Field(default=())

    @classmethod
    def load(cls, path: Path) -> KeyRing:
        """Reads a ring.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no key ring; the text names file and field.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error

    def save(self, path: Path) -> None:
        """Writes the ring whole: readers see the old one or the new one."""
        _write(path, self.model_dump_json(indent=2) + "\n", mode=0o644)

    def find(self, key_id: str) -> TrustedKey | None:
        """The key of that id, or None."""
        return next((key for key in self.keys if key.key_id == key_id), None)

    def with_key(self, key: TrustedKey) -> KeyRing:
        """A ring with `key` in it, in place of one of the same id."""
        return KeyRing(keys=(*(k for k in self.keys if k.key_id != key.key_id), key))


class Signer:
    """Holds one private key and signs with it."""

    def __init__(self, key_id: str, private: Ed25519PrivateKey, role: Role) -> None:
        self.key_id = key_id
        self.role = role
        self._private = private

    @classmethod
    def generate(cls, role: Role) -> Signer:
        """A new key; its id is made of its public half."""
        private = Ed25519PrivateKey.generate()
        return cls(f"{role}-{stable_id(_public_bytes(private.public_key()).hex())[:8]}", private, role)

    @classmethod
    def load(cls, path: Path) -> Signer:
        """Reads a key file.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no key file; the text names the file.
        """
        try:
            raw = json.loads(path.read_bytes())
            private = Ed25519PrivateKey.from_private_bytes(base64.b64decode(raw["private"], validate=True))
            return cls(str(raw["key_id"]), private, Role(raw["role"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a key file ({error}); make one with `gpuchaos keys make`") from error

    def save(self, path: Path) -> None:
        """Writes the private key, readable by its owner alone."""
        private = self._private.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        )
        body = {"key_id": self.key_id, "role": self.role.value, "private": base64.b64encode(private).decode()}
        _write(path, json.dumps(body, indent=2) + "\n", mode=0o600)

    def trusted(self, *, owner: str = "", not_after: float | None = None) -> TrustedKey:
        """The public half, as an entry of a ring."""
        public = base64.b64encode(_public_bytes(self._private.public_key())).decode()
        return TrustedKey(key_id=self.key_id, role=self.role, public=public, owner=owner, not_after=not_after)

    def sign(self, command: Command) -> SignedCommand:
        """The command, signed."""
        payload = command.model_dump_json()
        signature = self._private.sign(payload.encode())
        return SignedCommand(key_id=self.key_id, payload=payload, signature=base64.b64encode(signature).decode())


class Verifier:
    """Believes or refuses commands. Whether a nonce was seen is the caller's to know: `seen` is asked last."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring

    def verify(self, signed: SignedCommand, *, now: float) -> Command:
        """The command inside `signed`, believed at `now` (epoch seconds on this reader's clock).

        Raises:
            RefusedError: unknown or ended key, wrong signature, a role that may not ask it, expired, or
                from the future. Replays are found by the caller, who keeps the ids it has carried out.
        """
        key = self._ring.find(signed.key_id)
        if key is None:
            raise RefusedError(Refusal.UNKNOWN_KEY, f"key {signed.key_id!r} is not in the key ring")
        if key.not_after is not None and now > key.not_after:
            raise RefusedError(Refusal.ENDED_KEY, f"key {signed.key_id!r} ended {now - key.not_after:.0f} s ago")
        try:
            public = Ed25519PublicKey.from_public_bytes(base64.b64decode(key.public, validate=True))
            public.verify(base64.b64decode(signed.signature, validate=True), signed.payload.encode())
        except (InvalidSignature, binascii.Error, ValueError) as error:
            raise RefusedError(Refusal.BAD_SIGNATURE, f"the signature is not {signed.key_id!r}'s") from error
        try:
            command = Command.model_validate_json(signed.payload)
        except ValidationError as error:
            raise RefusedError(Refusal.UNREADABLE, f"signed, but not a command: {error.errors()[0]['msg']}") from error
        if command.kind not in MAY[key.role]:
            raise RefusedError(Refusal.NOT_ALLOWED, f"a key of role {key.role} may not ask for {command.kind}")
        if now > command.expires:
            raise RefusedError(Refusal.EXPIRED, f"expired {now - command.expires:.1f} s ago")
        if command.time > now + CLOCK_TOLERANCE_S or command.expires > command.time + LONGEST_VALIDITY_S:
            raise RefusedError(Refusal.NOT_YET, "issued in the future, or valid for more than 15 minutes")
        return command


def _public_bytes(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def _write(path: Path, text: str, *, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
