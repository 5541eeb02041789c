"""Undoing from the journal alone: no broker, no keys, no agent. What `undo --all` and the dead man's switch do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuchaos_agent.clock import Now
from gpuchaos_agent.inject.base import FaultStrategy
from gpuchaos_agent.journal import Damaged, EntryState, Journal, JournalEntry


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one fault: `problem` is None where it is gone."""

    entry: JournalEntry
    problem: str | None


def undo(
    journal: Journal,
    strategies: Mapping[str, FaultStrategy],
    now: Now,
    reason: str,
    *,
    only: Callable[[JournalEntry], bool] = lambda _entry: True,
) -> tuple[list[Outcome], list[Damaged]]:
    """Takes back what the journal holds, last injected first, and what could not be read of it.

    Nobody is told: the entries stay unreported, and the agent's next start tells.
    """
    entries, damaged = journal.read()
    outcomes: list[Outcome] = []
    for entry in reversed(entries):
        if entry.state is not EntryState.UNDONE and only(entry):
            problem = _try(strategies.get(entry.fault), entry)
            if problem is None:
                done = {"state": EntryState.UNDONE, "undone_at": now.wall, "reason": reason, "reported": False}
                problem = _mark(journal, entry.model_copy(update=done))
            outcomes.append(Outcome(entry, problem))
    return outcomes, damaged


def _try(strategy: FaultStrategy | None, entry: JournalEntry) -> str | None:
    if strategy is None:
        return f"this agent does not know fault {entry.fault!r}"
    try:
        strategy.undo(entry)
        return None if strategy.verify(entry) else "the effect is still there"
    except Exception as error:  # noqa: BLE001  (the others must be undone as well)
        return f"{type(error).__name__}: {error}"


def _mark(journal: Journal, entry: JournalEntry) -> str | None:
    try:
        journal.write(entry)
    except OSError as error:
        return f"it is gone, but the journal cannot be written: {error}"
    return None
