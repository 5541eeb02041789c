"""A collector beside the tick: a source that hangs is said, and holds up nobody else.

A read of a dead NFS mount, of a firmware register, or of a driver call cannot be cancelled. So it is not waited for:
the tick goes on, and what the source said too late is taken with the next one while it is fresh.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuchaos_agent.collect.base import Collector, Follower, Reading

#: A reading that came late is given out for this long, seconds; older numbers are unknown.
STALE_AFTER_S: Final = 2.5


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a collector: `whole` for a reading, otherwise only the facts of a `drain`. `at` is monotonic."""

    reading: Reading
    whole: bool
    asked: float
    at: float

    @property
    def took(self) -> float:
        """Seconds from asking to answering."""
        return self.at - self.asked


class Aside:
    """One collector's calls, one at a time, as work for a `Crew`. All methods are for one caller's thread.

    `failed` is told of each exception; `monotonic` measures how long a call takes, seconds.
    """

    def __init__(
        self,
        collector: Collector,
        *,
        failed: Callable[[Collector, Exception], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.collector = collector
        self._follower = collector if isinstance(collector, Follower) else None
        self._failed = failed
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._answers: deque[Answer] = deque()
        self._asked: float | None = None
        self._closing = False
        self._closed = False

    @property
    def waited(self) -> float | None:
        """Seconds since a call was begun that has not answered, None while none is under way."""
        asked = self._asked
        return None if asked is None else self._monotonic() - asked

    def read(self, now: float) -> Iterator[Callable[[], None]]:
        """The work of a reading; none while the collector is still at its last call."""
        yield from self._ask(lambda: self.collector.read(now), whole=True)

    def drain(self, now: float) -> Iterator[Callable[[], None]]:
        """The work of asking a follower for what is new; none while it is still at its last call."""
        follower = self._follower
        if follower is not None:
            yield from self._ask(lambda: Reading(facts=follower.drain(now)), whole=False)

    def answers(self, timeout: float) -> list[Answer]:
        """What was answered since the last call of this; waits up to `timeout` seconds for a call under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._asked is None, timeout=max(0.0, timeout))
            found = list(self._answers)
            self._answers.clear()
            return found

    def commit(self) -> None:
        """Commits a follower, unless it is at work or has said what was not yet taken: that is not safe yet."""
        follower = self._follower
        with self._changed:
            if self._asked is not None or self._answers or follower is None:
                return
            try:
                follower.commit()
            except Exception as error:  # noqa: BLE001  (the position is kept next time)
                self._failed(self.collector, error)

    def close(self) -> Iterator[Callable[[], None]]:
        """The work of closing; none while the collector is at its last call, which then ends with closing it."""
        with self._changed:
            self._closing = True
            if self._asked is not None:
                return
        yield self._close

    def closed(self, timeout: float) -> bool:
        """Whether it is closed; waits up to `timeout` seconds for it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed, timeout=max(0.0, timeout))

    def _ask(self, call: Callable[[], Reading], *, whole: bool) -> Iterator[Callable[[], None]]:
        with self._changed:
            if self._asked is not None:
                return
            self._asked = asked = self._monotonic()
        yield lambda: self._answer(call, asked, whole=whole)

    def _answer(self, call: Callable[[], Reading], asked: float, *, whole: bool) -> None:
        try:
            reading = call()
        except Exception as error:  # noqa: BLE001  (a source that fails must not stop the others)
            self._failed(self.collector, error)
            name = self.collector.name
            absent = {name: f"collector failed: {type(error).__name__}: {error}"} if whole else {}
            reading = Reading(absent=absent)
        with self._changed:
            self._answers.append(Answer(reading, whole, asked, self._monotonic()))
            self._asked = None
            closing = self._closing
            self._changed.notify_all()
        if closing:
            self._close()

    def _close(self) -> None:
        try:
            self.collector.close()
        except Exception as error:  # noqa: BLE001  (closing is best effort, and the others must be closed as well)
            self._failed(self.collector, error)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
