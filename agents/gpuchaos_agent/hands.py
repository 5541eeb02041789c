"""The executor's own thread: what changes the node waits for no broker, no collector, no event loop.

What it decides takes no time; the steps of a fault, which may, run beside it, in a thread for each as long as it
lasts. So a step that hangs delays no look at a lease and no other fault's undo, and while nothing stands there is no
thread but this one.
"""

from __future__ import annotations

import contextvars
import itertools
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from gpuchaos_agent import clock, metrics
from gpuchaos_agent.believe import addressed_to, is_undoing
from gpuchaos_agent.executor import Executor

_log = structlog.get_logger(__name__)

#: How long the thread sleeps while there is nothing that could become due, seconds. Only a command changes that, and
#: it ends the wait; each wake costs the node.
IDLE_S: Final = 2.0
#: What comes first: to stop; an undo, and what a step came to; everything else.
_STOP, _SOON, _LATER = -1, 0, 1


@dataclass(order=True, slots=True)
class _Work:
    rank: int
    number: int
    do: Callable[[], object] = field(compare=False)


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
        self._stop_by: float | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._run,), name="hands", daemon=True
        )
        self.last_tick = now().boot
        self.errors = 0
        executor.run_aside(self._aside)

    def start(self, timeout_s: float = 5.0) -> None:
        """Begins, and waits until the undo of everything that an earlier run left behind was begun, not until it ends.

        That takes as long as the journal's files take to read, and `timeout_s` at most.
        """
        self._thread.start()
        if not self._started.wait(timeout_s):
            _log.error("reading what was left behind takes long", timeout_s=timeout_s)

    def give(self, value: bytes | None, traceparent: str | None) -> bool:
        """Takes one record of the commands topic, if it is for this node; returns whether it is."""
        if not value or not addressed_to(value, self._cluster, self._node):
            return False
        rank = _SOON if is_undoing(value) else _LATER
        self._put(rank, lambda: self._executor.receive(value, self._now(), traceparent))
        return True

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Undoes everything and ends; whether nothing is left.

        Each undo is tried once. What takes longer than `timeout_s` goes on until the process ends.
        """
        self._stop_by = time.monotonic() + timeout_s
        self._put(_STOP, lambda: None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._executor.active

    def _run(self) -> None:
        self._guarded(lambda: self._executor.start(self._now()))
        self._started.set()
        next_tick = 0.0
        while self._stop_by is None:
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
            self._work(wait)
        self._guarded(lambda: self._executor.undo_all(self._now(), "agent stopped"))
        while not self._executor.settled and (left := self._stop_by - time.monotonic()) > 0:
            self._work(min(self._interval_s, left), least=_SOON)
            self._guarded(lambda: self._executor.advance(self._now()))

    def _work(self, wait_s: float, *, least: int = _LATER) -> None:
        """Does the next thing, or nothing where none comes in time. What is less urgent than `least` is dropped."""
        try:
            work = self._queue.get(timeout=max(0.0, wait_s))
        except queue.Empty:
            return
        if work.rank <= least:
            self._guarded(work.do)

    def _put(self, rank: int, do: Callable[[], object]) -> None:
        self._queue.put(_Work(rank, next(self._numbers), do))

    def _aside(
        self, name: str, step: Callable[[], Any], then: Callable[[Any, clock.Now], None], _now: clock.Now
    ) -> None:
        def run() -> None:
            result = step()
            self._put(_SOON, lambda: then(result, self._now()))

        try:
            threading.Thread(target=contextvars.copy_context().run, args=(run,), name=name, daemon=True).start()
        except RuntimeError:  # no thread is to be had: it holds up the others then, but an undo is never left out
            _log.exception("a step is run without a thread of its own")
            run()

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception:  # noqa: BLE001  (whatever it was, the next lease must be looked at)
            metrics.ERRORS.labels("executor").inc()
            self.errors += 1
            _log.exception("the executor failed at one step and goes on")
