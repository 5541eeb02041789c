"""A PostgreSQL client of one connection: start-up (trust, password, MD5, SCRAM-SHA-256) and simple queries."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import struct
from typing import Final
from urllib.parse import SplitResult, unquote

_PROTOCOL: Final = 196608


class DatabaseError(Exception):
    """The database could not be asked, or refused; the text is as its client library words it."""


class Postgres:
    """Connects when made.

    Raises:
        DatabaseError: it cannot be reached, or lets nobody in.
    """

    def __init__(self, url: SplitResult, timeout: float) -> None:
        self._where = f'connection to server at "{url.hostname}", port {url.port or 5432} failed'
        self._user = unquote(url.username or "postgres")
        self._password = unquote(url.password or "")
        try:
            self._socket = socket.create_connection((url.hostname or "127.0.0.1", url.port or 5432), timeout)
        except TimeoutError:
            raise DatabaseError(f"psycopg.OperationalError: {self._where}: timeout expired") from None
        except OSError as error:
            raise DatabaseError(f"psycopg.OperationalError: {self._where}: {error.strerror or error}") from None
        try:
            self._start(unquote(url.path.lstrip("/")) or self._user)
        except BaseException:
            self.close()
            raise

    def query(self, sql: str) -> list[tuple[str | None, ...]]:
        """Rows of the last statement, as text.

        Raises:
            DatabaseError: it was refused, or the way broke.
        """
        self._send(b"Q", sql.encode() + b"\0")
        rows: list[tuple[str | None, ...]] = []
        failed = ""
        while True:
            kind, body = self._read()
            if kind == b"D":
                rows.append(_row(body))
            elif kind == b"E":
                failed = _error(body)
            elif kind == b"Z":
                if failed:
                    raise DatabaseError(f"psycopg.errors.Error: {failed}")
                return rows

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()

    def _start(self, database: str) -> None:
        words = ("user", self._user, "database", database, "application_name", "workload")
        body = struct.pack("!I", _PROTOCOL) + b"\0".join(word.encode() for word in words) + b"\0\0"
        self._write(struct.pack("!I", len(body) + 4) + body)
        scram = _Scram(self._password)
        while True:
            kind, body = self._read()
            if kind == b"E":
                raise DatabaseError(f"psycopg.OperationalError: {self._where}: {_error(body)}")
            if kind == b"Z":
                return
            if kind != b"R":
                continue
            (method,) = struct.unpack("!I", body[:4])
            if method == 3:
                self._send(b"p", self._password.encode() + b"\0")
            elif method == 5:
                inner = hashlib.md5(f"{self._password}{self._user}".encode(), usedforsecurity=False).hexdigest()
                outer = hashlib.md5(inner.encode() + body[4:8], usedforsecurity=False).hexdigest()
                self._send(b"p", f"md5{outer}".encode() + b"\0")
            elif method == 10:
                first = scram.first()
                self._send(b"p", b"SCRAM-SHA-256\0" + struct.pack("!I", len(first)) + first)
            elif method == 11:
                self._send(b"p", scram.final(body[4:].decode()))
            elif method not in (0, 12):
                raise DatabaseError(f"psycopg.OperationalError: {self._where}: no such way to log in ({method})")

    def _send(self, kind: bytes, body: bytes) -> None:
        self._write(kind + struct.pack("!I", len(body) + 4) + body)

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._broken(error) from None

    def _read(self) -> tuple[bytes, bytes]:
        head = self._exactly(5)
        (length,) = struct.unpack("!I", head[1:])
        return head[:1], self._exactly(length - 4)

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            try:
                more = self._socket.recv(size - len(found))
            except OSError as error:
                raise self._broken(error) from None
            if not more:
                raise DatabaseError("psycopg.OperationalError: server closed the connection unexpectedly")
            found += more
        return found

    def _broken(self, error: OSError) -> DatabaseError:
        why = "timeout expired" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return DatabaseError(f"psycopg.OperationalError: {self._where}: {why}")


class _Scram:
    """SCRAM-SHA-256 (RFC 5802, 7677) without channel binding."""

    def __init__(self, password: str) -> None:
        self._password = password.encode()
        self._bare = f"n=,r={secrets.token_urlsafe(18)}"

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server: str) -> bytes:
        said = dict(part.split("=", 1) for part in server.split(","))
        salted = hashlib.pbkdf2_hmac("sha256", self._password, base64.b64decode(said["s"]), int(said["i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        last = f"c=biws,r={said['r']}"
        signed = f"{self._bare},{server},{last}".encode()
        proof = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        return f"{last},p={base64.b64encode(bytes(a ^ b for a, b in zip(key, proof, strict=True))).decode()}".encode()


def _row(body: bytes) -> tuple[str | None, ...]:
    (count,) = struct.unpack("!H", body[:2])
    at, cells = 2, []
    for _ in range(count):
        (length,) = struct.unpack("!i", body[at : at + 4])
        at += 4
        cells.append(None if length < 0 else body[at : at + length].decode())
        at += max(0, length)
    return tuple(cells)


def _error(body: bytes) -> str:
    parts = {part[:1]: part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
    return f"{parts.get(b'S', 'ERROR')}:  {parts.get(b'M', '')}"


def quoted(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("'", "''") + "'"
