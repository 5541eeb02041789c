"""Collectives: a ring of sockets, and the watchdog that ends the process where one takes too long."""

from __future__ import annotations

import os
import resource
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

import numpy as np

from workload.lines import Work, peer_lost, say, timed_out
from workload.links import Links, PeerLostError, Place, exchange
from workload.model import Floats

_LOOK_S: Final = 0.1


class Watchdog:
    """Ends the process with SIGABRT, as PyTorch does, where a collective runs for longer than `timeout`.

    `lagging(seq)` names the ranks that did not join the collective.
    """

    def __init__(self, rank: int, timeout: float, lagging: Callable[[int], list[int]]) -> None:
        self._rank = rank
        self._timeout = timeout
        self._lagging = lagging
        self.work: Work | None = None
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        last = time.monotonic()
        slept = 0.0
        seen: Work | None = None
        while True:
            time.sleep(_LOOK_S)
            now = time.monotonic()
            work = self.work
            if work is not seen:
                seen, slept = work, 0.0
            if now - last > 1.0:  # this process itself was stopped: the others did not keep it waiting
                slept += now - last
            last = now
            if work is not None and now - work.started - slept > self._timeout:
                ran = now - work.started
                say(timed_out(self._rank, work, self._timeout, ran, self._lagging(work.seq)))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                os.kill(os.getpid(), signal.SIGABRT)


class Ring:
    """All ranks in a ring. Each collective has the next number of its sequence."""

    def __init__(self, links: Links, places: list[Place], rank: int, watchdog: Watchdog) -> None:
        self._links = links
        self._places = places
        self._rank = rank
        self._ranks = len(places)
        self._watchdog = watchdog
        self._out: socket.socket | None = None
        self._in: socket.socket | None = None
        self._old: list[socket.socket] = []
        self.seq = 0

    def open(self, generation: int, timeout: float) -> None:
        """New links; the old ones are closed when the first collective has gone over the new ones.

        Raises:
            PeerLostError: a link could not be had in time.
        """
        if self._ranks == 1:
            return
        old = [each for each in (self._out, self._in) if each is not None]
        self._out, self._in = self._links.open(generation, timeout)
        self._old += old

    def all_reduce(self, values: Floats) -> None:
        """Sums `values` over all ranks, in place; bit for bit the same on each.

        Raises:
            PeerLostError: a peer is gone.
        """
        with self._work("ALLREDUCE", values.size):
            edges = np.linspace(0, values.size, self._ranks + 1).astype(int)
            chunks = [values[begin:end] for begin, end in pairwise(edges.tolist())]
            for hop in range(self._ranks - 1):
                into = chunks[(self._rank - hop - 1) % self._ranks]
                received = np.empty_like(into)
                self._exchange(chunks[(self._rank - hop) % self._ranks], received)
                into += received
            for hop in range(self._ranks - 1):
                self._exchange(chunks[(self._rank - hop + 1) % self._ranks], chunks[(self._rank - hop) % self._ranks])

    def broadcast(self, values: Floats) -> None:
        """Gives all ranks what rank 0 has.

        Raises:
            PeerLostError: a peer is gone.
        """
        nothing = np.empty(0, np.float32)
        with self._work("BROADCAST", values.size):
            if self._rank:
                self._exchange(nothing, values)
            if self._rank != self._ranks - 1:
                self._exchange(values, nothing)

    def close(self) -> None:
        """Closes the links."""
        for each in (self._out, self._in, *self._old):
            if each is not None:
                each.close()
        self._links.close()

    @contextmanager
    def _work(self, op: str, numel: int) -> Iterator[None]:
        self.seq += 1
        self._watchdog.work = Work(self.seq, op, numel, time.monotonic())
        yield
        self._watchdog.work = None
        for each in self._old:
            each.close()
        self._old.clear()

    def _exchange(self, data: Floats, into: Floats) -> None:
        if self._out is None or self._in is None:
            return
        try:
            exchange(self._out, _bytes(data), self._in, _bytes(into))
        except (ConnectionAbortedError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            what = f"socketProgress: Connection closed by remote peer {self._peer(-1)}"
            raise PeerLostError(peer_lost(self._rank, what, 80)) from None
        except OSError as error:
            sending = isinstance(error, BrokenPipeError)
            call = f"send to {self._peer(1)}" if sending else f"recv from {self._peer(-1)}"
            reason = os.strerror(error.errno) if error.errno and not isinstance(error, ssl.SSLError) else str(error)
            what = f"socketProgressOpt: Call to {call} failed : {reason}"
            raise PeerLostError(peer_lost(self._rank, what, 58)) from error

    def _peer(self, away: int) -> str:
        place = self._places[(self._rank + away) % self._ranks]
        return f"{place.host}<{place.port}>"


def _bytes(values: Floats) -> memoryview:
    return values.data.cast("B") if values.size else memoryview(b"")
