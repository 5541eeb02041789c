"""The executor's own thread: what changes the node waits for no broker, no collector, no event loop."""

from __future__ import annotations

import contextvars
import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from gpuchaos_agent import clock, metrics
from gpuchaos_agent.believe import addressed_to, is_undoing
from gpuchaos_agent.executor import Executor

_log = structlog.get_logger(__name__)

#: How long the thread sleeps while there is nothing that could become due, seconds. Only a command changes that, and
#: it ends the wait; each wake costs the node.
IDLE_S: Final = 2.0


@dataclass(order=True, slots=True)
class _Work:
    rank: int  # an undo is looked at before everything that waits
    number: int
    value: bytes = field(compare=False)
    traceparent: str | None = field(compare=False)


class Hands:
    """Runs one executor: first what is left to undo, then commands as they come, and `tick` every `interval_s`.

    While the executor is `idle` the next tick may be `IDLE_S` away: no lease runs that could end meanwhile.
    An exception is logged and counted (`errors`) and ends nothing.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        cluster: str,
        node: str,
        interval_s: float,
        now: Callable[[], clock.Now] = clock.now,
    ) -> None:
        self._executor = executor
        self._cluster = cluster
        self._node = node
        self._interval_s = interval_s
        self._now = now
        self._queue: queue.PriorityQueue[_Work] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._run,), name="hands", daemon=True
        )
        self.last_tick = now().boot
        self.errors = 0

    def start(self, timeout_s: float = 5.0) -> None:
        """Begins, and waits up to `timeout_s` until what an earlier run left behind was seen to."""
        self._thread.start()
        if not self._started.wait(timeout_s):
            _log.error("undoing what was left behind takes long", timeout_s=timeout_s)

    def give(self, value: bytes | None, traceparent: str | None) -> bool:
        """Takes one record of the commands topic, if it is for this node; returns whether it is."""
        if not value or not addressed_to(value, self._cluster, self._node):
            return False
        rank = 0 if is_undoing(value) else 1
        self._queue.put(_Work(rank, next(self._numbers), value, traceparent))
        return True

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Undoes everything and ends; whether nothing is left."""
        self._stopping.set()
        self._queue.put(_Work(-1, next(self._numbers), b"", None))
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._executor.active

    def _run(self) -> None:
        self._guarded(lambda: self._executor.start(self._now()))
        self._started.set()
        next_tick = 0.0
        while not self._stopping.is_set():
            at = self._now()
            if at.boot >= next_tick:
                self._guarded(lambda: self._executor.tick(self._now()))
                next_tick = at.boot + self._interval_s
                self.last_tick = self._now().boot
            # Anew after each step: the command that was just carried out may have begun a lease.
            if self._executor.idle:
                wait = max(self._interval_s, IDLE_S)
            else:
                wait = min(self._interval_s, next_tick - self._now().boot)
            try:
                work = self._queue.get(timeout=max(0.0, wait))
            except queue.Empty:
                continue
            if work.value:
                self._guarded(lambda w=work: self._executor.receive(w.value, self._now(), w.traceparent))  # type: ignore[misc]
        self._guarded(lambda: self._executor.undo_all(self._now(), "agent stopped"))

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001  (whatever it was, the next lease must be looked at)
            metrics.ERRORS.labels("executor").inc()
            self.errors += 1
            _log.exception("the executor failed at one step and goes on")
