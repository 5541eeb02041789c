"""One card's readings: finds out which card NVML's number is, then reads it whenever it is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from gpuchaos_agent.collect.base import Fact
from gpuchaos_agent.nvml import codes
from gpuchaos_agent.nvml.reader import CardReader, CardReading
from gpuchaos_agent.nvml.session import Session

#: Handle and number of a card in, its reader out (a new one, or the one it had before a restart).
Find = Callable[[Any, Any, int], CardReader]


class Worker:
    """Reads NVML's card `number` of a generation of the library, as work for a `Crew`.

    `finished` is told, in the crew's thread, of each end.
    """

    def __init__(
        self,
        number: int,
        session: Session,
        find: Find,
        finished: Callable[[Worker], None],
        monotonic: Callable[[], float],
    ) -> None:
        self.number = number
        #: The generation whose card `reader` and `handle` are; None before it is known which card that is.
        self.generation: int | None = None
        self.reader: CardReader | None = None
        self.handle: Any = None
        #: When it was read (`monotonic`) and what; None while there is nothing of this generation.
        self.result: tuple[float, CardReading] | None = None
        #: NVML's error where the card does not even say which it is, 0 otherwise.
        self.nameless = 0
        #: NVML's error where the library must be started anew, 0 otherwise.
        self.broken = 0
        self.late = False
        #: Whether the last reading found out which card it is: whoever listens to it must be told.
        self.identified = False
        self._session = session
        self._find = find
        self._finished = finished
        self._monotonic = monotonic
        self._target: int | None = None
        self._lock = threading.Lock()
        self._now = 0.0
        self._since: float | None = None
        self._closed = False
        self._facts: tuple[Fact, ...] = ()

    @property
    def busy_for(self) -> float | None:
        """Seconds since a reading was begun that has not ended, None while there is none."""
        since = self._since
        return None if since is None else self._monotonic() - since

    @property
    def doing(self) -> str:
        """What is being asked at this moment."""
        return self.reader.asking.doing if self.reader is not None else "which card it is"

    @property
    def settled(self) -> bool:
        """Whether it is known which card this number is in the present generation, or that it cannot be known."""
        return self._target is None or self.generation == self._target or self.nameless != 0

    @property
    def healthy(self) -> bool:
        """Whether its last reading is of a card that answers; so is a number that is no card's."""
        if self._target is None:
            return True
        return self.result is not None and not self.result[1].code and not self.nameless

    def new_facts(self) -> tuple[Fact, ...]:
        """The facts of the last reading, the first time."""
        facts, self._facts = self._facts, ()
        return facts

    def assign(self, generation: int | None) -> None:
        """The library was started anew: the card must be found again. None: there is no such number any more."""
        with self._lock:
            self._target = generation
            self.nameless = 0

    def ask(self, now: float) -> Iterator[Callable[[], None]]:
        """The work of a reading; none while the last is under way. `now` is the node's clock, seconds."""
        with self._lock:
            if self._since is not None:
                self.late = True
                return
            if self._closed or self._target is None:
                return
            self._now = now
            self._since = self._monotonic()
        yield self._run

    def close(self) -> None:
        """Reads no more; a reading under way is not waited for."""
        self._closed = True

    def _run(self) -> None:
        if self._closed:
            return
        self._once()
        with self._lock:
            self._since = None
            self.late = False
        self._finished(self)

    def _once(self) -> None:
        target = self._target
        if target is None:
            self.reader, self.handle, self.result = None, None, None
            return
        try:
            with self._session.use(target) as nvml:
                if self.generation != target:
                    self._identify(nvml, target)
                reader = self.reader
                if reader is not None:
                    reading = reader.read(nvml, self.handle, self._now, self._monotonic())
                    self.result = (self._monotonic(), reading)
                    self._facts = reading.facts
        except codes.NotRunningError:
            return
        except codes.LibraryError as error:
            self.broken = error.code
        except codes.CardError as error:
            self.nameless = error.code
        except Exception as error:  # noqa: BLE001  (a thread that dies would read as a hang)
            said = f"reading failed: {type(error).__name__}: {error}"[:200]
            self.result = (self._monotonic(), CardReading.nothing(absent=said))

    def _identify(self, nvml: Any, target: int) -> None:
        self.generation, self.reader, self.handle, self.result = None, None, None, None
        try:
            self.handle = nvml.nvmlDeviceGetHandleByIndex(self.number)
        except nvml.NVMLError as error:
            code = codes.code_of(error)
            if code in codes.RESTART:
                raise codes.LibraryError(code) from error
            raise codes.CardError(code) from error
        self.reader = self._find(nvml, self.handle, self.number)
        self.generation = target
        self.nameless = 0
        self.identified = True
