"""The steps of a fault that may take their time: what is asked of a strategy, wherever that runs. None raises.

A step that ends by itself ends within `HANGS_S`; one that does not is hanging, and is not waited for any longer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from gpuchaos_agent.clock import Now
from gpuchaos_agent.inject import netns
from gpuchaos_agent.inject.base import Evidence, FaultStrategy
from gpuchaos_agent.journal import JournalEntry


class Step(StrEnum):
    """A step, as it is called where it hangs."""

    CHECK = "check"
    INJECT = "injection"
    EVIDENCE = "evidence"
    UNDO = "undo"


#: After this a step hangs, seconds. The slowest are power-cycle's: an order and the looks until it is seen take up to
#: 60 s, and its undo after a kill as long, then 15 s until the power is on. Evidence may take half a second
#: (`FaultStrategy`), and more where a time-out of a tool is in it.
HANGS_S: Final = {Step.CHECK: 60.0, Step.INJECT: 60.0, Step.EVIDENCE: 10.0, Step.UNDO: 90.0}

#: Given which step of which fault, the step, what takes its result with the time then, and the time now.
Runner = Callable[[str, Callable[[], Any], Callable[[Any, Now], None], Now], None]
#: The time where a step has ended; None leaves it to whoever takes the result.
Clock = Callable[[], Now] | None

_notes: Final[ContextVar[list[tuple[str, float]] | None]] = ContextVar("notes", default=None)
_guard: Final = threading.Lock()
_turns: Final[WeakValueDictionary[tuple[Path, str], threading.Lock]] = WeakValueDictionary()


def at_once(_name: str, step: Callable[[], Any], then: Callable[[Any, Now], None], now: Now) -> None:
    """The runner that waits for the step."""
    then(step(), now)


def inject(strategy: FaultStrategy, entry: JournalEntry, clock: Clock) -> tuple[str | None, Now | None]:
    """What went wrong, or None, and when."""
    try:
        strategy.inject(entry)
    except Exception as error:  # noqa: BLE001  (half an effect may be there: it is taken back)
        return _text(error), None
    return None, clock() if clock is not None else None


def evidence(strategy: FaultStrategy, entry: JournalEntry) -> tuple[str | None, Evidence]:
    """What went wrong, or None, and what moved."""
    try:
        found = strategy.evidence(entry)
    except Exception as error:  # noqa: BLE001  (an effect of which nothing is known: it is taken back)
        return _text(error), Evidence(moved=False)
    return None if found.moved else "nothing moved", found


def undo(strategy: FaultStrategy | None, entry: JournalEntry) -> str | None:
    """Why a fault is not gone, or None."""
    if strategy is None:
        return f"this agent does not know fault {entry.fault!r}"
    try:
        problem = netns.elsewhere(entry)
        if problem is not None:
            return problem
        strategy.undo(entry)
        _note("taken back; verifying")
        return None if strategy.verify(entry) else "the effect is still there"
    except Exception as error:  # noqa: BLE001  (it is tried again, and the others must be undone as well)
        return _text(error)


def turn(journal: Path, fault_id: str) -> threading.Lock:
    """For one undo of a fault at a time in this process, whoever began it."""
    with _guard:
        return _turns.setdefault((journal, fault_id), threading.Lock())


def hanging(step: Step, after_s: float | None = None) -> str:
    """Says that a step has not returned for `after_s` seconds, `HANGS_S` if not given; the same words ever after."""
    return f"its {step} has not returned for {HANGS_S[step] if after_s is None else after_s:g} s"


@contextlib.contextmanager
def noting() -> Iterator[list[tuple[str, float]]]:
    """Gives what happens within a step that is taken here, and when, seconds since the epoch."""
    notes: list[tuple[str, float]] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def _note(what: str) -> None:
    notes = _notes.get()
    if notes is not None:
        notes.append((what, time.time()))


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
