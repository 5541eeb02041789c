"""As much of PostgreSQL's protocol (version 3) as it takes to see that a query is answered.

Startup, log-in (trust, clear text, MD5, SCRAM-SHA-256), one simple query. No TLS: a server that insists on it says
no, and the check says so. Message formats: PostgreSQL documentation, "Frontend/Backend Protocol"; SCRAM: RFC 5802.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import struct
from typing import Final

_VERSION: Final = 196608  # 3.0
#: No message of ours is answered by more than this many bytes.
_MOST_BYTES: Final = 1 << 20


class NoAnswerError(Exception):
    """The question cannot be asked with what is given; the text says what is missing."""


class ServerError(Exception):
    """The server says no; the text is its own."""


class Talk:
    """One conversation over an open connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def begin(self, user: str, database: str, password: str | None) -> None:
        """Logs in.

        Raises:
            ServerError: the server refuses.
            NoAnswerError: it asks for a password and there is none, or in a way that is not known here.
        """
        pairs = ("user", user, "database", database, "application_name", "gpuchaos")
        body = struct.pack("!i", _VERSION) + b"".join(word.encode() + b"\0" for word in pairs) + b"\0"
        self._writer.write(struct.pack("!i", len(body) + 4) + body)
        while True:
            kind, body = await self._message()
            if kind == b"Z":
                return
            if kind == b"R":
                await self._authenticate(body, user, password)

    async def select_one(self) -> None:
        """Asks `select 1`.

        Raises:
            ServerError: the answer is an error, or no row.
        """
        self._send(b"Q", b"select 1\0")
        rows = 0
        while True:
            kind, _ = await self._message()
            rows += kind == b"D"
            if kind == b"Z":
                break
        if rows != 1:
            raise ServerError(f"select 1 gave {rows} rows")

    async def _authenticate(self, body: bytes, user: str, password: str | None) -> None:
        (how,) = struct.unpack("!i", body[:4])
        if how == 0:
            return
        if how in {11, 12}:  # the rest of SCRAM is read where it is expected
            raise ServerError("a SCRAM message out of order")
        if password is None:
            raise NoAnswerError("it asks for a password, and no password_file is given")
        if how == 3:
            self._send(b"p", password.encode() + b"\0")
        elif how == 5:
            inner = _md5(password.encode() + user.encode())
            self._send(b"p", b"md5" + _md5(inner + body[4:8]) + b"\0")
        elif how == 10 and b"SCRAM-SHA-256\0" in body[4:]:
            await self._scram(password)
        else:
            raise NoAnswerError(f"it asks for authentication of kind {how}, which is not known here")

    async def _scram(self, password: str) -> None:
        nonce = secrets.token_urlsafe(18)
        first = f"n=,r={nonce}"
        opening = f"n,,{first}".encode()
        self._send(b"p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(opening)) + opening)
        challenge = (await self._sasl(11)).decode()
        given = dict(part.split("=", 1) for part in challenge.split(",") if "=" in part)
        if not {"r", "s", "i"} <= given.keys() or not given["r"].startswith(nonce):
            raise ServerError("its SCRAM challenge is not an answer to ours")
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(given["s"]), int(given["i"]))
        client = _hmac(salted, b"Client Key")
        last = f"c=biws,r={given['r']}"
        signed = f"{first},{challenge},{last}".encode()
        signature = _hmac(hashlib.sha256(client).digest(), signed)
        proof = base64.b64encode(bytes(a ^ b for a, b in zip(client, signature, strict=True))).decode()
        self._send(b"p", f"{last},p={proof}".encode())
        expected = base64.b64encode(_hmac(_hmac(salted, b"Server Key"), signed)).decode()
        if not hmac.compare_digest((await self._sasl(12)).decode(), f"v={expected}"):
            raise ServerError("its SCRAM signature is wrong: it does not know the password")

    async def _sasl(self, wanted: int) -> bytes:
        kind, body = await self._message()
        if kind != b"R" or struct.unpack("!i", body[:4])[0] != wanted:
            raise ServerError("not the SCRAM message that was due")
        return body[4:]

    def _send(self, kind: bytes, body: bytes) -> None:
        self._writer.write(kind + struct.pack("!i", len(body) + 4) + body)

    async def _message(self) -> tuple[bytes, bytes]:
        head = await self._reader.readexactly(5)
        size = struct.unpack("!i", head[1:])[0] - 4
        if not 0 <= size <= _MOST_BYTES:
            raise ServerError("it does not speak PostgreSQL's protocol")
        body = await self._reader.readexactly(size)
        if head[:1] == b"E":
            raise ServerError(_error(body))
        return head[:1], body


def _error(body: bytes) -> str:
    fields = {part[:1]: part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
    return f"{fields.get(b'S', 'ERROR')} {fields.get(b'C', '')}: {fields.get(b'M', 'no message')}"[:300]


def _md5(raw: bytes) -> bytes:
    return hashlib.md5(raw, usedforsecurity=False).hexdigest().encode()


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, "sha256").digest()
