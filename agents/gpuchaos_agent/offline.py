"""Undoing from the journal alone: no broker, no keys, no agent. What `undo --all` and the dead man's switch do."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuchaos_agent import stack, steps
from gpuchaos_agent.clock import Now
from gpuchaos_agent.inject.base import FaultStrategy
from gpuchaos_agent.journal import Damaged, EntryState, Journal, JournalEntry
from gpuchaos_agent.steps import HANGS_S, Step


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one fault: `problem` is None where it is gone. When: seconds since the epoch."""

    entry: JournalEntry
    problem: str | None
    began: float = 0.0
    ended: float = 0.0


def undo(
    journal: Journal,
    strategies: Mapping[str, FaultStrategy],
    now: Now,
    reason: str,
    *,
    only: Callable[[JournalEntry], bool] = lambda _entry: True,
    within_s: float = HANGS_S[Step.UNDO],
) -> tuple[list[Outcome], list[Damaged]]:
    """Takes back what the journal holds, last injected first; and what could not be read of it, now or ever.

    What takes longer than `within_s` seconds is no success, and goes on while the process lives.
    Nobody is told: the entries stay unreported, and the agent's next start tells.
    """
    undoer = Undoer(journal, strategies)
    aside = journal.aside()  # before the look: it puts back what can be read after all
    begun, damaged = undoer.begin(now, reason, only=only, patience_s=stack.PATIENCE_S)
    damaged += aside
    undoer.wait(within_s)
    known = {outcome.entry.fault_id: outcome for outcome in undoer.take()}
    late = steps.hanging(Step.UNDO, within_s)
    return [known.get(entry.fault_id, Outcome(entry, late)) for entry in begun], damaged


class Undoer:
    """Undoes what a journal holds, each fault in a thread of its own: one that hangs delays no other."""

    def __init__(self, journal: Journal, strategies: Mapping[str, FaultStrategy]) -> None:
        self._journal = journal
        self._strategies = strategies
        self._running: dict[str, threading.Thread] = {}
        self._outcomes: deque[Outcome] = deque()

    def begin(
        self,
        now: Now,
        reason: str,
        *,
        only: Callable[[JournalEntry], bool] = lambda _entry: True,
        mark: Callable[[JournalEntry], bool] = lambda _entry: True,
        patience_s: float = 0.0,
    ) -> tuple[list[JournalEntry], list[Damaged]]:
        """Begins the undo of what is not undone, last injected first; returns that, and what could not be read.

        Of a fault one undo runs at a time. Those that touch the same kind of thing follow each other, for `patience_s`
        seconds in all (`stack`). `mark` says which are noted in the journal as undone.
        """
        entries, damaged = self._journal.read()
        begun: list[JournalEntry] = []
        until = time.monotonic() + patience_s
        for entry in reversed(entries):
            if entry.state is EntryState.UNDONE or not only(entry):
                continue
            touched = stack.touches(entry.fault)
            for later in begun:
                if touched & stack.touches(later.fault):
                    self._join(later.fault_id, until)
            begun.append(entry)
            running = self._running.get(entry.fault_id)
            if running is None or not running.is_alive():
                self._running[entry.fault_id] = self._thread(entry, now, reason, mark(entry))
        return begun, damaged

    def wait(self, within_s: float) -> None:
        """Waits until all have ended, or for `within_s` seconds."""
        until = time.monotonic() + within_s
        for fault_id in self._running:
            self._join(fault_id, until)

    def take(self) -> list[Outcome]:
        """What ended since the last time."""
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]

    def _join(self, fault_id: str, until: float) -> None:
        thread = self._running[fault_id]
        if thread.is_alive():
            thread.join(max(0.0, until - time.monotonic()))

    def _thread(self, entry: JournalEntry, now: Now, reason: str, mark: bool) -> threading.Thread:
        began = time.monotonic()

        def run() -> None:
            with steps.turn(self._journal.folder, entry.fault_id):
                at_first = time.time()
                problem = steps.undo(self._strategies.get(entry.fault), entry)
                if problem is None and mark:
                    at = now.wall + time.monotonic() - began
                    done = {"state": EntryState.UNDONE, "undone_at": at, "reason": reason, "reported": False}
                    problem = _mark(self._journal, entry.model_copy(update=done))
            why = entry.model_copy(update={"reason": reason})
            self._outcomes.append(Outcome(why, problem, at_first, time.time()))

        thread = threading.Thread(target=run, name="undo", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread is to be had: it holds up the others then, but an undo is never left out
            run()
        return thread


def _mark(journal: Journal, entry: JournalEntry) -> str | None:
    try:
        journal.write(entry)
    except OSError as error:
        return f"it is gone, but the journal cannot be written: {error}"
    return None
