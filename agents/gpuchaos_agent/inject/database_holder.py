"""Takes a database's connections until it says that there are no more, and keeps taking those that become free.

`python -m gpuchaos_agent.inject.database_holder`, started by `database-outage` with `mode: exhausted`. It lives
while its permit file does, and until the lease ends, which a renewed journal entry moves; it says `ready` once the
server was full.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import resource
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject.database_probe import Engine, Outcome, hello, verdict, words
from gpuchaos_agent.inject.freeze_guard import GRACE_S, deadline

_IN_FLIGHT: Final = 32
#: Between two attempts once the server was full, seconds: a place that becomes free is ours soon.
_RETRY_S: Final = 0.05
#: Times in a row that it says so until we believe it: those that it turned away free their places a moment later.
_SURELY: Final = 3
#: Places taken without a word for each time that the server turned our user away.
_SILENT_PLACES: Final = 64
_TICK_S: Final = 0.05
_LOOK_S: Final = 0.5
#: Descriptors for what is no connection.
_SPARE: Final = 32


@dataclass
class Holder:
    """The connections. `step` does what there is to do within a tick; `full` counts refusals for want of places."""

    engine: Engine
    address: str
    port: int
    most: int
    held: set[socket.socket] = field(default_factory=set)
    asking: dict[socket.socket, bytearray] = field(default_factory=dict)
    full: int = 0
    refusal: str = ""
    _silent: int = 0
    _next: float = 0.0
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def step(self) -> None:
        """Opens what may be opened, hears what is said."""
        now = time.monotonic()
        room = 1 if self.full else _IN_FLIGHT
        while len(self.asking) < room and len(self.held) + len(self.asking) < self.most and now >= self._next:
            if not self._open():
                break
        for key, events in self._selector.select(_RETRY_S if self.full else _TICK_S):
            connection = key.fileobj
            if not isinstance(connection, socket.socket):
                continue
            if events & selectors.EVENT_WRITE:
                self._connected(connection)
            else:
                self._heard(connection)

    def close(self) -> None:
        """Gives every connection back, at once: those of a holder that goes must not linger at the server."""
        for connection in (*self.held, *self.asking):
            with contextlib.suppress(OSError):
                connection.close()

    def _open(self) -> bool:
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self.refusal = str(error)
            self._next = time.monotonic() + _RETRY_S
            return False
        connection.setblocking(False)
        connection.connect_ex((self.address, self.port))
        self.asking[connection] = bytearray()
        self._selector.register(connection, selectors.EVENT_WRITE)
        return True

    def _connected(self, connection: socket.socket) -> None:
        try:
            problem = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if problem == 0 and self._silent > 0:
                # One that never says who it is takes a place as well, where the server turns every user away.
                self._silent -= 1
                self._hold(connection)
            elif problem == 0:
                connection.send(hello(self.engine))
        except OSError as error:
            problem = error.errno or errno.EIO
        if problem:
            self._turned_away(connection, os.strerror(problem))
            return
        self._selector.modify(connection, selectors.EVENT_READ)

    def _heard(self, connection: socket.socket) -> None:
        said = b""
        with contextlib.suppress(OSError):
            said = connection.recv(4096)
        if connection in self.held:
            if not said:
                self._drop(connection)
            return
        if not said:
            self._turned_away(connection, "closed by the server without a word")
            return
        self.asking[connection] += said
        heard = bytes(self.asking[connection])
        outcome = verdict(self.engine, heard)
        if outcome is None:
            return
        if outcome is Outcome.ANSWERED and not (self.engine == "postgres" and heard[:1] == b"E"):
            self._hold(connection)
            return
        self._turned_away(connection, words(self.engine, heard))
        if outcome is Outcome.FULL:
            self.full += 1
        elif outcome is Outcome.ANSWERED:
            self.full = 0
            self._silent = _SILENT_PLACES

    def _hold(self, connection: socket.socket) -> None:
        del self.asking[connection]
        self.held.add(connection)
        self.full = 0

    def _turned_away(self, connection: socket.socket, why: str) -> None:
        self._drop(connection)
        self.refusal = why
        self._next = time.monotonic() + _RETRY_S

    def _drop(self, connection: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        self.asking.pop(connection, None)
        self.held.discard(connection)
        connection.close()


def main(arguments: list[str] | None = None) -> int:
    """Holds until the permit is gone; 1 where the server never was full."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--engine", "--address", "--permit", "--entry"):
        parser.add_argument(name, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--most", type=int, required=True)
    parser.add_argument("--until", type=float, required=True, help="the lease's end on the boot-time clock")
    given = parser.parse_args(arguments)
    permit = Path(given.permit)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    holder = Holder(given.engine, given.address, given.port, min(given.most, hard - _SPARE))
    told, until, looked = False, given.until, 0.0
    try:
        while permit.exists():
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            if now - looked > _LOOK_S:
                looked, until = now, deadline(Path(given.entry), until) or until
            if now > until + GRACE_S:
                break
            holder.step()
            if holder.full >= _SURELY and not told:
                told = True
                sys.stdout.write("ready\n")
                sys.stdout.flush()
            if not told and not holder.asking and len(holder.held) >= holder.most:
                sys.stderr.write(f"the server took all of {holder.most} connections and is not full\n")
                return 1
    finally:
        holder.close()
    if not told:
        sys.stderr.write(f"{len(holder.held)} connections were open; {holder.refusal or 'the server is not full'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
