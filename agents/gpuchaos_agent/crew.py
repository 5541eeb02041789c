"""One thread that does all the work in turn; another takes over whenever one piece of it hangs.

A thread for each source would be as safe, and wake them all at once every second only to wait for each other: half of
what the agent cost.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

#: A piece of work that takes longer than this does not hold up those behind it, seconds.
PATIENCE_S: Final = 0.03


class Crew:
    """Runs work in daemon threads called `name`.

    Work must not raise. What hangs keeps its thread, and that thread is of use again when it comes back.
    """

    def __init__(self, name: str, *, patience_s: float = PATIENCE_S) -> None:
        self._name = name
        self._patience_s = patience_s
        self._queue: deque[Callable[[], None]] = deque()
        lock = threading.Lock()
        self._more = threading.Condition(lock)
        self._still = threading.Condition(lock)
        self._taker: threading.Thread | None = None
        self._spare: list[threading.Thread] = []
        self._working = False
        self._done = 0
        self._closed = False

    def run(self, works: Iterable[Callable[[], None]], timeout_s: float) -> None:
        """Does `works` in order. Returns when all are done but those that hang, or after `timeout_s` seconds."""
        until = time.monotonic() + timeout_s
        with self._more:
            self._queue.extend(works)
            if not self._queue:
                return
            if self._taker is None:
                self._appoint()
            self._more.notify_all()
            while self._queue or self._working:
                left, seen = until - time.monotonic(), self._done
                if left <= 0:
                    return
                self._still.wait(min(left, self._patience_s))
                if self._done == seen and self._working:
                    if not self._queue:
                        return
                    self._appoint()

    def close(self) -> None:
        """Ends the threads, each after what it is at; they are not waited for."""
        with self._more:
            self._closed = True
            self._more.notify_all()

    def _appoint(self) -> None:
        """Another thread goes on with the queue."""
        self._working = False
        if self._spare:
            self._taker = self._spare.pop()
            self._more.notify_all()
            return
        self._taker = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._taker.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._more:
                while self._taker is not me or not self._queue:
                    if self._closed:
                        return
                    self._more.wait()
                work = self._queue.popleft()
                self._working = True
            work()
            with self._more:
                if self._taker is not me:
                    self._spare.append(me)
                    continue
                self._done += 1
                self._working = False
                if not self._queue:
                    self._still.notify_all()
