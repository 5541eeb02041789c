"""Recovery checks that ask a service in its own words: TCP, TLS, PostgreSQL, Redis.

A definite no is bad: refused, an error in the protocol, a certificate that does not hold. No answer at all, a name
that nobody knows, a password that is missing are unknown, which counts as little.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable
from functools import lru_cache
from pathlib import Path
from typing import Final

from gpuchaos_stream.events.observation import CheckState
from gpuchaos_stream.experiments import postgres
from gpuchaos_stream.experiments.address import parse_address
from gpuchaos_stream.experiments.plan import PostgresCheck, RedisCheck, TcpCheck, TlsCheck

Answer = tuple[CheckState, float | None, str]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_FINE: Final = (CheckState.OK, None, "")


async def ask_tcp(check: TcpCheck) -> Answer:
    """In tolerance where the connection comes about."""
    return await _within(check.timeout, _tcp(check))


async def ask_tls(check: TlsCheck, now: float) -> Answer:
    """In tolerance where the certificate shown holds; the value is for how many seconds after `now` it still does."""
    return await _within(check.timeout, _tls(check, now))


async def ask_postgres(check: PostgresCheck) -> Answer:
    """In tolerance where `select 1` is answered."""
    return await _within(check.timeout, _postgres(check))


async def ask_redis(check: RedisCheck) -> Answer:
    """In tolerance where PING is answered by PONG."""
    return await _within(check.timeout, _redis(check))


async def _within(seconds: float, question: Awaitable[Answer]) -> Answer:
    try:
        async with asyncio.timeout(seconds):
            return await question
    except TimeoutError:
        return CheckState.UNKNOWN, None, f"no answer within {seconds:g} s"
    except ssl.SSLCertVerificationError as error:
        return CheckState.BAD, None, f"the certificate does not hold: {error.verify_message}"
    except (ConnectionError, EOFError, ssl.SSLError, postgres.ServerError) as error:
        return CheckState.BAD, None, _text(error)
    except Exception as error:  # noqa: BLE001  (no route, no such name, no such file, no password: nothing is known)
        return CheckState.UNKNOWN, None, _text(error)


@contextlib.asynccontextmanager
async def _connected(
    address: str, tls: ssl.SSLContext | None = None, name: str | None = None
) -> AsyncIterator[Streams]:
    host, port = parse_address(address)
    reader, writer = await asyncio.open_connection(
        host, port, ssl=tls, server_hostname=(name or host) if tls is not None else None
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()  # nothing is owed to the other side, and a dead one would be waited for


async def _tcp(check: TcpCheck) -> Answer:
    async with _connected(check.address):
        return _FINE


async def _tls(check: TlsCheck, now: float) -> Answer:
    async with _connected(check.address, _context(check.ca, _changed(check.ca)), check.name) as (_, writer):
        shown = writer.get_extra_info("peercert")
    left = ssl.cert_time_to_seconds(str(shown["notAfter"])) - now
    if left < (check.valid_for or 0.0):
        return CheckState.BAD, left, f"the certificate holds for {left:.0f} s more"
    return CheckState.OK, left, ""


@lru_cache(maxsize=32)
def _context(ca: str | None, _stamp: int) -> ssl.SSLContext:
    """A verifying context; read anew when the file has changed."""
    return ssl.create_default_context(cafile=ca)


def _changed(file: str | None) -> int:
    return Path(file).stat().st_mtime_ns if file else 0


async def _postgres(check: PostgresCheck) -> Answer:
    async with _connected(check.address) as (reader, writer):
        talk = postgres.Talk(reader, writer)
        await talk.begin(check.user, check.database or check.user, _secret(check.password_file))
        await talk.select_one()
    return _FINE


async def _redis(check: RedisCheck) -> Answer:
    secret = _secret(check.password_file)
    async with _connected(check.address) as (reader, writer):
        if secret is not None:
            words = ("AUTH", check.user, secret) if check.user else ("AUTH", secret)
            said = await _resp(reader, writer, *words)
            if said != "+OK":
                return CheckState.BAD, None, f"AUTH: {said}"
        said = await _resp(reader, writer, "PING")
    if said == "+PONG":
        return _FINE
    if said.startswith("-NOAUTH"):
        return CheckState.UNKNOWN, None, "it asks for a password, and no password_file is given"
    return CheckState.BAD, None, f"PING: {said}"


async def _resp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *words: str) -> str:
    parts = [f"*{len(words)}\r\n".encode()]
    parts += [b"$%d\r\n%s\r\n" % (len(raw), raw) for raw in (word.encode() for word in words)]
    writer.write(b"".join(parts))
    await writer.drain()
    line = await reader.readuntil(b"\r\n")
    return line.decode("utf-8", "replace").strip()[:200]


def _secret(file: str | None) -> str | None:
    """The password in a file; read for each question, so that a changed one is taken at once."""
    return Path(file).read_text("utf-8").rstrip("\n") if file else None


def _text(error: BaseException) -> str:
    words = error.strerror if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else str(error)
    return f"{type(error).__name__}: {words or error}"[:300].removesuffix(": ")
