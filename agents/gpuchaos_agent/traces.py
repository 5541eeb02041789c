"""What the agent's hands do, as spans of the experiment's trace: which step, on what, how long, and why it failed.

A step hangs below the command that asked for it, which is one of the same trace; where nobody asked (a lease that ran
out, an agent that was killed) below the fault, whose trace the journal keeps. Renewals are no steps.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from opentelemetry.trace import SpanKind

from gpuchaos_agent import steps
from gpuchaos_agent.clock import Now
from gpuchaos_agent.journal import JournalEntry
from gpuchaos_agent.offline import Outcome
from gpuchaos_agent.steps import Step
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import Command
from gpuchaos_stream.observe import tracing

_R = TypeVar("_R", bound=tuple[Any, Any])

SERVICE: Final = "gpuchaos-agent"
_SCOPE: Final = "gpuchaos.inject"
_RECEIVE: Final[dict[str, Any]] = tracing.messaging(topics.COMMANDS.name, "receive")


class Traces:
    """Speaks for one node; `cluster` None where it is not known.

    `offset` is what to add to the node's wall clock to get the broker's, None while unknown.
    """

    def __init__(self, *, cluster: str | None, node: str, offset: Callable[[], float | None] = lambda: None) -> None:
        self._cluster = cluster
        self._node = node
        self._offset = offset

    def of(self, step: str, entry: JournalEntry, do: Callable[[], _R], *, by: str | None = None) -> Callable[[], _R]:
        """`do`, traced: a step of a fault, whose result begins with what went wrong, or None.

        `by` is the `traceparent` of the command that asked, where it is not the inject.
        """
        if entry.traceparent is None or not tracing.enabled():
            return do

        def traced() -> _R:
            with steps.noting() as notes:
                begin = time.time()
                result = do()
            self.done(step, entry, begin, time.time(), result[0], by=by, notes=notes)
            return result

        return traced

    @contextlib.contextmanager
    def writing(self, entry: JournalEntry) -> Iterator[None]:
        """Within, the entry is written to the journal."""
        begin, problem = time.time(), None
        try:
            yield
        except OSError as error:
            problem = str(error)
            raise
        finally:
            self.done("journal", entry, begin, time.time(), problem)

    def hangs(self, step: str, entry: JournalEntry, since: float, now: Now, problem: str) -> None:
        """A step that began at `since`, on the boot-time clock, has not returned in time. If it does its span comes."""
        self.done(f"{step} hangs", entry, now.wall - (now.boot - since), now.wall, problem)

    def undone(self, outcomes: Iterable[Outcome]) -> None:
        """What was undone where nothing was traced yet."""
        for each in outcomes:
            if each.ended:  # else it goes on
                self.done(Step.UNDO, each.entry, each.began, each.ended, each.problem)

    def done(
        self,
        step: str,
        entry: JournalEntry,
        begin: float,
        end: float,
        problem: str | None,
        *,
        by: str | None = None,
        notes: Iterable[tuple[str, float]] = (),
    ) -> None:
        """A step that is over, from `begin` to `end` on the node's wall clock."""
        if entry.traceparent is None or not tracing.enabled():
            return
        offset = self._offset() or 0.0
        same = by is not None and tracing.same_trace(by, entry.traceparent)
        # An undo that succeeds does so once, whoever sees to it; what is told twice is one span.
        undone = step == Step.UNDO and problem is None
        tracing.past(
            step,
            begin + offset,
            end + offset,
            parent=by if same else entry.traceparent,
            own=tracing.of(entry.traceparent, "undone", entry.fault_id) if undone else None,
            links=(entry.traceparent,) if same else (by,),
            events=[(what, at + offset) for what, at in notes],
            error=problem,
            scope=_SCOPE,
            experiment_id=entry.experiment_id,
            fault_id=entry.fault_id,
            node=self._node,
            gpuchaos={
                "cluster": self._cluster,
                "fault": entry.fault,
                "entity": entry.entity,
                "lease_s": entry.lease_s,
                "command_id": entry.undone_by if step.startswith("undo") else entry.command_id,
                "caused_by": (entry.reason or None) if step.startswith("undo") else "inject",
            },
        )

    def received(self, command: Command, traceparent: str | None, now: Now, problem: str | None = None) -> None:
        """A command has come, from when it was made; `problem` says why it is not carried out."""
        if traceparent is None or not tracing.enabled():
            return
        at = now.wall + (self._offset() or 0.0)
        tracing.past(
            f"receive {command.kind.value}",
            min(command.time, at),
            at,
            parent=traceparent,
            error=problem,
            kind=SpanKind.CONSUMER,
            scope=_SCOPE,
            experiment_id=command.experiment_id,
            fault_id=command.fault_id,
            node=self._node,
            **_RECEIVE,
            gpuchaos={
                "cluster": self._cluster,
                "fault": command.fault,
                "entity": command.entity,
                "command_id": command.id,
                "cause": command.cause or None,
                "reason": command.reason or None,
            },
        )
