"""A Redis client of one connection, speaking RESP."""

from __future__ import annotations

import os
import socket
from urllib.parse import SplitResult, unquote

from workload.postgres import DatabaseError

Reply = str | int | None | list["Reply"]


class Redis:
    """Connects when made.

    Raises:
        DatabaseError: it cannot be reached, or lets nobody in.
    """

    def __init__(self, url: SplitResult, timeout: float) -> None:
        self._where = f"{url.hostname}:{url.port or 6379}"
        try:
            self._socket = socket.create_connection((url.hostname or "127.0.0.1", url.port or 6379), timeout)
        except TimeoutError:
            raise DatabaseError(f"redis.exceptions.TimeoutError: Timeout connecting to {self._where}") from None
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise DatabaseError(
                f"redis.exceptions.ConnectionError: Error {error.errno} connecting to {self._where}. {why}."
            ) from None
        self._file = self._socket.makefile("rb")
        try:
            if url.password:
                self.command(*(["AUTH", unquote(url.username)] if url.username else ["AUTH"]), unquote(url.password))
            if url.path.strip("/"):
                self.command("SELECT", url.path.strip("/"))
        except BaseException:
            self.close()
            raise

    def command(self, *words: str) -> Reply:
        """The answer.

        Raises:
            DatabaseError: it was refused, or the way broke.
        """
        parts = [word.encode() for word in words]
        data = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        try:
            self._socket.sendall(data)
            return self._reply()
        except TimeoutError:
            raise DatabaseError(f"redis.exceptions.TimeoutError: Timeout reading from {self._where}") from None
        except OSError as error:
            why = error.strerror or str(error)
            raise DatabaseError(f"redis.exceptions.ConnectionError: {self._closed()} ({why})") from None

    def close(self) -> None:
        """Hangs up."""
        self._file.close()
        self._socket.close()

    def _closed(self) -> str:
        return f"Connection closed by server. Error while reading from {self._where}"

    def _reply(self) -> Reply:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise DatabaseError(f"redis.exceptions.ConnectionError: {self._closed()}")
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"-":
            raise DatabaseError(f"redis.exceptions.ResponseError: {rest}")
        if kind == b":":
            return int(rest)
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self._file.read(size + 2)[:-2].decode()
        if kind == b"*":
            return [self._reply() for _ in range(max(0, int(rest)))]
        return rest
