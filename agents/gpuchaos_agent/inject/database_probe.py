"""Asking a database whether it answers, in its own protocol and without logging in.

PostgreSQL: a StartupMessage of protocol 3.0; the first message back is `R` (how to authenticate) or `E` with an
SQLSTATE in its field `C` (protocol-message-formats). Redis: an inline `PING`; `+PONG`, or `-NOAUTH` where a password
is set. A server that is full says so in the same place: SQLSTATE 53300, `-ERR max number of clients reached`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

Engine = Literal["postgres", "redis"]

_PROTOCOL_3: Final = 196608
#: too_many_connections, and cannot_connect_now (starting up, shutting down) of PostgreSQL's error codes.
_TOO_MANY: Final = "53300"
_NOT_NOW: Final = "57P03"
_LONGEST_WORDS: Final = 120


class Outcome(StrEnum):
    """What became of one attempt."""

    ANSWERED = "answered"
    REFUSED = "refused"
    RESET = "reset"
    SILENCE = "silence"
    FULL = "full"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: `words` are the server's or the system's own, `milliseconds` until then."""

    outcome: Outcome
    words: str = ""
    milliseconds: float = 0.0


def attempt(engine: Engine, address: str, port: int, timeout_s: float) -> Attempt:
    """Connects, asks once, closes."""
    began = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as connection:
            return ask(engine, connection, timeout_s - (time.monotonic() - began), began)
    except OSError as error:
        return _failed(error, began)


def ask(engine: Engine, connection: socket.socket, timeout_s: float, began: float | None = None) -> Attempt:
    """Asks once over a connection that is open."""
    began = time.monotonic() if began is None else began
    deadline = time.monotonic() + timeout_s
    heard = b""
    try:
        connection.settimeout(max(timeout_s, 0.001))
        connection.sendall(hello(engine))
        while (outcome := verdict(engine, heard)) is None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            said = connection.recv(4096)
            if not said:
                return Attempt(Outcome.RESET, "closed by the server without an answer", _ms(began))
            heard += said
    except OSError as error:
        # A full server may close at once: what it said before is in the buffer still, or was said above.
        with contextlib.suppress(OSError):
            heard += connection.recv(4096)
        outcome = verdict(engine, heard)
        if outcome is None:
            return _failed(error, began)
    return Attempt(outcome, words(engine, heard), _ms(began))


def hello(engine: Engine) -> bytes:
    """What a client says first; nothing in it logs in or changes anything."""
    if engine == "redis":
        return b"PING\r\n"
    body = struct.pack("!I", _PROTOCOL_3) + b"user\0postgres\0database\0postgres\0application_name\0gpuchaos\0\0"
    return struct.pack("!I", len(body) + 4) + body


def verdict(engine: Engine, heard: bytes) -> Outcome | None:
    """What the server's first words mean; None until they are complete."""
    if engine == "redis":
        line, ended, _ = heard.partition(b"\r\n")
        if not ended:
            return None
        return Outcome.FULL if b"max number of clients" in line else Outcome.ANSWERED
    if len(heard) < 5 or len(heard) < 1 + struct.unpack("!I", heard[1:5])[0]:
        return None
    if heard[:1] != b"E":
        return Outcome.ANSWERED
    code = _fields(heard).get("C")
    return {_TOO_MANY: Outcome.FULL, _NOT_NOW: Outcome.UNREACHABLE}.get(code or "", Outcome.ANSWERED)


def words(engine: Engine, heard: bytes) -> str:
    """The server's first words, for people."""
    if engine == "redis":
        return heard.partition(b"\r\n")[0].decode("utf-8", "replace")[:_LONGEST_WORDS]
    if heard[:1] != b"E":
        return "asks for a password" if heard[5:9] != b"\0\0\0\0" else "lets in"
    fields = _fields(heard)
    return f"{fields.get('C', '')} {fields.get('M', '')}".strip()[:_LONGEST_WORDS]


def _fields(heard: bytes) -> dict[str, str]:
    """An ErrorResponse's fields by their letter: `C` the SQLSTATE, `M` the message."""
    body = heard[5 : 1 + struct.unpack("!I", heard[1:5])[0]]
    return {part[:1].decode("latin-1"): part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}


def _failed(error: OSError, began: float) -> Attempt:
    outcome = Outcome.UNREACHABLE
    if isinstance(error, ConnectionRefusedError):
        outcome = Outcome.REFUSED
    elif isinstance(error, (ConnectionResetError, BrokenPipeError)):
        outcome = Outcome.RESET
    elif isinstance(error, TimeoutError):
        outcome = Outcome.SILENCE
    return Attempt(outcome, error.strerror or "no answer in time", _ms(began))


def _ms(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
