"""The faults of this node from their journal entry to their end: which step each is at, and which comes next.

Every step runs aside (`run`), so that one that takes its time or hangs delays no other fault's. What is decided here,
between the steps, is for one thread, and takes no time. Of one fault there is one step at a time, with one exception:
beside an injection or a look for evidence that hangs, the fault is undone all the same, from the journal, as another
process would. While the injection may still act the fault is not told as undone; when it has returned the fault is
undone once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from gpuchaos_agent import stack, steps
from gpuchaos_agent.clock import Now
from gpuchaos_agent.inject.base import Evidence, FaultStrategy
from gpuchaos_agent.journal import EntryState, Journal, JournalEntry, Scalar
from gpuchaos_agent.lease import Leases
from gpuchaos_agent.steps import HANGS_S, Clock, Step
from gpuchaos_agent.teller import Teller
from gpuchaos_agent.traces import Traces
from gpuchaos_stream.events.fault import FaultPhase

_R = TypeVar("_R")

#: How long what is over is remembered, seconds: so long that no command of its time is believed any more.
FORGOTTEN_S: Final = 24 * 3600.0


@dataclass(slots=True)
class _Course:
    """How far one fault is. `hung` are steps that have not returned in time; of these only an undo is still `step`."""

    step: Step | None = None
    since: float = 0.0
    hung: set[Step] = field(default_factory=set)
    ending: bool = False
    due: bool = False  # its undo is to begin
    patient_until: float = 0.0  # until then its undo lets those of later faults go first
    asked_by: list[str] = field(default_factory=list)  # commands that wait for its end
    unanswered: list[str] = field(default_factory=list)  # of these, the ones that have heard of no failure either
    problem: str | None = None
    trace: str | None = None  # of the command that asked last for its end

    @property
    def held(self) -> bool:
        """Undone as far as can be: the rest is for when its injection has returned."""
        return Step.INJECT in self.hung and self.problem == steps.hanging(Step.INJECT)


class Standing:
    """The faults that the journal holds. Not for two threads, but for `active`, `failing` and `hanging`."""

    def __init__(
        self,
        *,
        strategies: Mapping[str, FaultStrategy],
        journal: Journal,
        tell: Teller,
        traces: Traces,
        clock: Clock = None,
    ) -> None:
        self.run: steps.Runner = steps.at_once
        self.known: dict[str, JournalEntry] = {}
        self.leases = Leases()
        self._strategies = strategies
        self._journal = journal
        self._tell = tell
        self._traces = traces
        self._clock = clock
        self._courses: dict[str, _Course] = {}

    @property
    def active(self) -> tuple[JournalEntry, ...]:
        """Faults whose effect is or may be there, in order of injection."""
        return tuple(e for e in list(self.known.values()) if e.state is not EntryState.UNDONE)

    @property
    def idle(self) -> bool:
        """Whether nothing stands, and nothing is left to tell."""
        return not self._courses and all(entry.reported for entry in self.known.values())

    @property
    def settled(self) -> bool:
        """Whether no step runs and none is due."""
        return not any(course.step or course.due for course in self._courses.values())

    @property
    def failing(self) -> dict[str, str]:
        """Faults that could not be taken back yet, and why."""
        return {fault_id: c.problem for fault_id, c in list(self._courses.items()) if c.problem is not None}

    @property
    def hanging(self) -> dict[str, str]:
        """Faults of which a step hangs, and which."""
        hung = {fault_id: list(course.hung) for fault_id, course in list(self._courses.items())}
        return {fault_id: ", ".join(map(steps.hanging, which)) for fault_id, which in hung.items() if which}

    def is_ending(self, fault_id: str) -> bool:
        """Whether a fault is being taken back, or is to be as soon as its injection has returned."""
        course = self._courses.get(fault_id)
        return course is not None and course.ending

    def keep(self, entry: JournalEntry) -> None:
        """Takes the entry's new state, on disk first.

        Raises:
            OSError: the disk refuses; nothing has changed.
        """
        self._journal.write(entry)
        self.known[entry.fault_id] = entry

    def restore(self, entries: list[JournalEntry]) -> None:
        """Takes what an earlier run left. What is not undone must be ended (`end`), what is not reported, told."""
        for entry in entries:
            self.known[entry.fault_id] = entry
            if entry.state is not EntryState.UNDONE:
                self._courses[entry.fault_id] = _Course()

    # Injecting

    def begin(self, entry: JournalEntry, now: Now) -> None:
        """Brings about a fault whose entry is kept."""
        self.leases.grant(entry.fault_id, deadline=entry.lease_deadline)
        course = self._courses[entry.fault_id] = _Course()
        strategy, then = self._strategies[entry.fault], partial(self._injected, entry.fault_id)
        self._go(entry, course, Step.INJECT, lambda: steps.inject(strategy, entry, self._clock), then, now)

    def _go(
        self,
        entry: JournalEntry,
        course: _Course,
        step: Step,
        do: Callable[[], _R],
        then: Callable[[_R, Now], None],
        now: Now,
    ) -> None:
        course.step, course.since = step, now.boot
        by = course.trace if step is Step.UNDO else None
        self.run(f"{step} {entry.fault_id}", self._traces.of(step, entry, do, by=by), then, now)

    def _injected(self, fault_id: str, result: tuple[str | None, Now | None], now: Now) -> None:
        problem, at = result
        course = self._courses[fault_id]
        if Step.INJECT in course.hung:
            course.hung.remove(Step.INJECT)  # an undo that runs meanwhile may have come too early for all of it
        else:
            course.step = None
        if course.ending:
            course.due = True
            self.advance(now)
        elif problem is not None:
            self._void(fault_id, problem, now)
        else:
            entry = self.known[fault_id]
            strategy, then = self._strategies[entry.fault], partial(self._looked, fault_id, course, (at or now).wall)
            self._go(entry, course, Step.EVIDENCE, lambda: steps.evidence(strategy, entry), then, now)

    def _looked(self, fault_id: str, course: _Course, at: float, result: tuple[str | None, Evidence], now: Now) -> None:
        problem, evidence = result
        if Step.EVIDENCE in course.hung:
            course.hung.remove(Step.EVIDENCE)
            return
        course.step = None
        if course.ending:
            self.advance(now)
            return
        entry = self.known[fault_id]
        done = {"state": EntryState.INJECTED, "evidence": evidence.detail, "injected_at": at}
        if problem is None:
            try:
                self.keep(entry.model_copy(update=done))
            except OSError as error:
                problem = f"it cannot be kept on disk: {error}"
        if problem is None:
            self.tell_injected(fault_id)
        else:
            self._void(fault_id, problem, now, at=at, evidence=evidence.detail)

    def tell_injected(self, fault_id: str) -> None:
        """Says that a fault stands; a repeat is recognised as one."""
        entry = self.known[fault_id]
        at = entry.injected_at or entry.created
        self._tell.fault(entry, FaultPhase.INJECTED, at, command_id=entry.command_id, evidence=entry.evidence)

    def _void(
        self,
        fault_id: str,
        problem: str,
        now: Now,
        *,
        at: float | None = None,
        evidence: dict[str, Scalar] | None = None,
    ) -> None:
        """It is not what was asked for: said, and taken back."""
        entry = self.known[fault_id]
        self._tell.fault(
            entry,
            FaultPhase.NOT_EFFECTIVE,
            now.wall if at is None else at,
            command_id=entry.command_id,
            reason=problem,
            evidence=evidence,
        )
        self.end(fault_id, f"not effective: {problem}", now)
        self.advance(now)

    # Undoing: nothing here is refused, delayed by another fault for longer than the stack's patience, or dependent on
    # a disk

    def end(
        self,
        fault_id: str,
        reason: str,
        now: Now,
        *,
        by: str | None = None,
        trace: str | None = None,
        patient: bool = False,
    ) -> None:
        """Has a fault taken back with the next `advance`, or as soon as its injection has returned.

        `by` is the command that asks, `trace` its `traceparent`. `patient` lets the undos of later faults that touch
        the same kind of thing go first, for a while (`stack`).
        """
        entry, course = self.known[fault_id], self._courses[fault_id]
        if not course.ending or (by is not None and entry.undone_by is None):
            self.known[fault_id] = entry.model_copy(update={"reason": reason, "undone_by": by or entry.undone_by})
        if by is not None:
            course.trace = trace
            course.unanswered.append(by)
            if by not in course.asked_by:
                course.asked_by.append(by)
        until = now.boot + (stack.PATIENCE_S if patient else 0.0)
        course.patient_until = min(until, course.patient_until) if course.ending else until
        course.ending = True
        if course.held or Step.UNDO in course.hung:
            self._say_failed(fault_id, course, course.problem or "", now)
        elif course.step is not Step.UNDO:
            course.due = True

    def advance(self, now: Now) -> None:
        """Begins every undo that is due and waits for nothing, last injected first."""
        for entry in reversed(self.active):
            course = self._courses.get(entry.fault_id)
            if course is not None and course.due and course.step is None and not self._waits(entry, course, now):
                course.due = False
                then = partial(self._undone, entry.fault_id)
                self._go(entry, course, Step.UNDO, self._undoing(self.known[entry.fault_id]), then, now)

    def _waits(self, entry: JournalEntry, course: _Course, now: Now) -> bool:
        if now.boot >= course.patient_until:
            return False
        touched = stack.touches(entry.fault)
        return any(
            other.order > entry.order and self._may_come_soon(other.fault_id) and touched & stack.touches(other.fault)
            for other in self.active
        )

    def _may_come_soon(self, fault_id: str) -> bool:
        course = self._courses[fault_id]
        return course.ending and course.problem is None

    def _undoing(self, entry: JournalEntry) -> Callable[[], tuple[str | None, Now | None]]:
        def undo() -> tuple[str | None, Now | None]:
            with steps.turn(self._journal.folder, entry.fault_id):
                problem = steps.undo(self._strategies.get(entry.fault), entry)
            return problem, self._clock() if self._clock is not None else None

        return undo

    def _undone(self, fault_id: str, result: tuple[str | None, Now | None], now: Now) -> None:
        problem, at = result
        course = self._courses[fault_id]
        course.step = None
        course.hung.discard(Step.UNDO)
        if problem is None and Step.INJECT in course.hung:
            problem = steps.hanging(Step.INJECT)
        if problem is not None:
            self._say_failed(fault_id, course, problem, at or now)
        elif not course.due:
            del self._courses[fault_id]
            self.leases.end(fault_id)
            undone = {"state": EntryState.UNDONE, "undone_at": (at or now).wall}
            done = self.known[fault_id] = self.known[fault_id].model_copy(update=undone)
            # Where the disk refuses: it is undone, and the next start will undo it once more, which changes nothing.
            with contextlib.suppress(OSError):
                self._journal.write(done)
            self.report(fault_id)
            for by in course.asked_by:
                if by != done.undone_by:
                    self.report(fault_id, to=by)
        self.advance(now)

    def _say_failed(self, fault_id: str, course: _Course, problem: str, now: Now) -> None:
        """Tells each command that asks, and once whatever else happens, for each problem."""
        entry = self.known[fault_id]
        asking: list[str | None] = [*course.unanswered] or ([entry.undone_by] if course.problem != problem else [])
        course.problem, course.unanswered = problem, []
        for by in asking:
            reason = f"{entry.reason}: {problem}"
            self._tell.fault(
                entry, FaultPhase.UNDO_FAILED, now.wall, command_id=by, reason=reason, repeat=(by, problem)
            )

    def report(self, fault_id: str, *, to: str | None = None) -> None:
        """Says that a fault is undone: of itself once, and to a command that asks besides the one that ended it."""
        entry = self.known[fault_id]
        at = entry.undone_at or entry.created
        held = {"held_s": round(at - entry.injected_at, 3)} if entry.injected_at is not None else {}
        by = to or entry.undone_by
        again = (by,) if by != entry.undone_by else ()
        self._tell.fault(
            entry, FaultPhase.UNDONE, at, command_id=by, reason=entry.reason, evidence={**held}, repeat=again
        )
        if not entry.reported:
            told = self.known[fault_id] = entry.model_copy(update={"reported": True})
            with contextlib.suppress(OSError):
                self._journal.write(told)

    # As time passes

    def tick(self, now: Now) -> None:
        """Ends what is past its lease, tries again what failed, sees what hangs, forgets what is long over."""
        for fault_id in self.leases.expired(now.boot):
            self._expire(fault_id, now)
        for fault_id, course in list(self._courses.items()):
            if course.step is not None and course.step not in course.hung:
                if now.boot - course.since >= HANGS_S[course.step]:
                    self._hangs(fault_id, course, course.step, now)
            elif course.ending and course.step is None and not course.held:
                course.due = True
        self.advance(now)
        for entry in [e for e in self.known.values() if e.state is EntryState.UNDONE]:
            if not entry.reported:
                self.report(entry.fault_id)
            elif now.wall - (entry.undone_at or now.wall) > FORGOTTEN_S:
                self._journal.remove(entry.fault_id)
                del self.known[entry.fault_id]

    def _expire(self, fault_id: str, now: Now) -> None:
        course = self._courses[fault_id]
        if course.ending:
            course.patient_until = now.boot
        elif self.known[fault_id].state is EntryState.PLANNED:
            self._void(fault_id, "lease expired before it was seen to stand", now)
        else:
            self.end(fault_id, "lease expired", now)

    def _hangs(self, fault_id: str, course: _Course, step: Step, now: Now) -> None:
        """What hangs is not waited for. An undo is: another one beside it would wait for the same thing."""
        course.hung.add(step)
        self._traces.hangs(step, self.known[fault_id], course.since, now, steps.hanging(step))
        if step is Step.UNDO:
            self._say_failed(fault_id, course, steps.hanging(step), now)
            return
        course.step = None
        if not course.ending:
            self._void(fault_id, steps.hanging(step), now)
