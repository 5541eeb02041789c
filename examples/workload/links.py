"""Connections between ranks: each listens, and is connected to its next. A link is opened again every so many steps.

A certificate is looked at when a link is opened, so opening links anew is what makes an expired one felt.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import ssl
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final

from workload.identity import Identity, name_of
from workload.lines import Refrain, not_joined, peer_lost

_HELLO: Final = struct.Struct("!4sIII")
_MAGIC: Final = b"WRK1"
_ACK: Final = b"\x06"
_HANDSHAKE_S: Final = 5.0


class PeerLostError(Exception):
    """A peer that is gone; the text is the lines to log."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank listens."""

    rank: int
    host: str
    port: int


class Links:
    """The listener of one rank and its way to the next rank. `attempt` keeps connections of an earlier one out."""

    def __init__(self, me: Place, previous: Place, following: Place, attempt: int, identity: Identity | None) -> None:
        self._me, self._previous, self._following = me, previous, following
        self._attempt = attempt
        self._identity = identity
        self._arrived: dict[int, socket.socket] = {}
        self._news = threading.Condition()
        self._server_refrain = Refrain()
        self._client_refrain = Refrain()
        family = socket.AF_INET6 if ":" in me.host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((me.host, me.port))
        self._listener.listen(16)
        threading.Thread(target=self._accept, name="acceptor", daemon=True).start()

    def open(self, generation: int, timeout: float) -> tuple[socket.socket, socket.socket]:
        """The links to the next rank and from the one before, both new.

        Raises:
            PeerLostError: one of them could not be had in time.
        """
        deadline = time.monotonic() + timeout
        out = self._connect(generation, deadline, timeout)
        with self._news:
            while generation not in self._arrived:
                if not self._news.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    out.close()
                    peer = f"{self._previous.host}<{self._previous.port}>"
                    what = f"socketPollConnect: Connect to {peer} failed : Connection timed out"
                    raise PeerLostError(peer_lost(self._me.rank, what, 549))
            inward = self._arrived.pop(generation)
        for each in (out, inward):
            each.setblocking(False)
        return out, inward

    def close(self) -> None:
        """No more connections."""
        self._listener.close()

    def _connect(self, generation: int, deadline: float, timeout: float) -> socket.socket:
        to = self._following
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise PeerLostError(not_joined(self._me.rank, to.host, to.port, timeout))
            try:
                return self._try(generation, min(left, _HANDSHAKE_S))
            except ssl.SSLError as error:
                self._say_tls(self._client_refrain, error, f"host='{to.host}', port={to.port}")
            except OSError as error:
                said = error.strerror or type(error).__name__
                if isinstance(error, ConnectionRefusedError):
                    said = ""  # it is not up yet, or being started again
                if said:
                    self._client_refrain.say(
                        f"[rank{self._me.rank}]: connecting to rank{to.rank} ({to.host}, {to.port}): {said}"
                    )
            time.sleep(0.05)

    def _try(self, generation: int, timeout: float) -> socket.socket:
        to = self._following
        plain = socket.create_connection((to.host, to.port), timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made: socket.socket = plain
            if self._identity is not None:
                made = self._identity.client.wrap_socket(plain, server_hostname=name_of(to.rank))
            made.sendall(_HELLO.pack(_MAGIC, self._attempt, self._me.rank, generation))
            # The other side looks at our certificate after the handshake is over for us: its answer tells.
            accepted = made.recv(1) == _ACK
        except BaseException:
            plain.close()
            raise
        if not accepted:
            made.close()
            raise ConnectionResetError(errno.ECONNRESET, "not accepted")
        return made

    def _accept(self) -> None:
        while True:
            try:
                plain, peer = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.05)
                continue
            threading.Thread(target=self._welcome, args=(plain, peer), daemon=True).start()

    def _welcome(self, plain: socket.socket, peer: tuple[str, int]) -> None:
        made: socket.socket = plain
        try:
            plain.settimeout(_HANDSHAKE_S)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._identity is not None:
                made = self._identity.server.wrap_socket(plain, server_side=True)
            hello = b""
            while len(hello) < _HELLO.size and (more := made.recv(_HELLO.size - len(hello))):
                hello += more
            *who, generation = _HELLO.unpack(hello)
            known = who == [_MAGIC, self._attempt, self._previous.rank]
            if known:
                made.sendall(_ACK)
        except ssl.SSLError as error:
            if error.reason != "PEER_DID_NOT_RETURN_A_CERTIFICATE":  # somebody looks at ours
                self._say_tls(self._server_refrain, error, f'"remote-addr": "{peer[0]}:{peer[1]}"')
            plain.close()
            return
        except (OSError, struct.error):
            made.close()
            plain.close()
            return
        if not known:
            made.close()
            return
        with self._news:
            self._arrived[generation] = made
            self._news.notify_all()

    def _say_tls(self, refrain: Refrain, error: ssl.SSLError, where: str) -> None:
        if error.reason is not None:  # an end of file in the handshake is only a peer that went away
            refrain.say(
                f"[rank{self._me.rank}]: ssl.{type(error).__name__}: {error.args[-1]} {where}", str(error.reason)
            )


def exchange(out: socket.socket, data: memoryview, inward: socket.socket, into: memoryview) -> None:
    """Sends all of `data` and fills `into`, both at once.

    Raises:
        OSError: the way is broken. `ConnectionAbortedError`: the peer closed it.
    """
    sent = got = 0
    while sent < len(data) or got < len(into):
        moved = 0
        if sent < len(data):
            with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                moved = out.send(data[sent:])
                sent += moved
        if got < len(into):
            with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                count = inward.recv_into(into[got:])
                if count == 0:
                    raise ConnectionAbortedError
                got += count
                moved += count
        if not moved:
            select.select([inward] if got < len(into) else [], [out] if sent < len(data) else [], [], 1.0)
