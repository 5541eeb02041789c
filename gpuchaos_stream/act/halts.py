"""Halts: requested → acknowledged by each agent → undone → confirmed by telemetry, or escalated.

One halt per experiment; what else goes wrong while it runs is noted in it. Everything about it is made of
experiment and cause, so that a repeat, a replay or a second worker makes the same halt and the same
commands. Commands are repeated until answered and limited by nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from gpuchaos_stream.act.record import Answer, FaultMark, HaltFile, HaltProgress, Mark
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.command import Command, CommandKind
from gpuchaos_stream.events.experiment import Halt, HaltState
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.guard.decision import OPERATOR, Decision

PREFIX: Final = "act/"

#: Seconds after which an unanswered halt is sent again, with the same id.
RESEND_S: Final = 2.0
#: Seconds for which an agent may believe a halt; each repeat begins anew.
VALID_S: Final = 60.0
#: Seconds to the end of the undo when the plan sets no deadline.
DEADLINE_S: Final = 30.0
#: Seconds from the undo to its confirmation by telemetry when the caller sets no deadline.
CONFIRM_S: Final = 600.0

#: What a fault event says about the presence of its fault.
_MARKS: Final[dict[FaultPhase, Mark]] = {
    FaultPhase.INJECTED: Mark.PRESENT,
    FaultPhase.NOT_EFFECTIVE: Mark.PRESENT,
    FaultPhase.UNDO_FAILED: Mark.FAILED,
    FaultPhase.UNDONE: Mark.GONE,
}
#: The phases in which an agent answers a halt. A refusal is no answer: the halt is sent again.
_ANSWERS: Final = frozenset({FaultPhase.ACKNOWLEDGED, FaultPhase.UNDO_FAILED, FaultPhase.UNDONE})


class Halts:
    """The halts of one cluster (`Stateful`, prefix `act/`). `now` is event time in epoch seconds."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._files: dict[str, HaltFile] = {}
        self._dirty: set[str] = set()
        #: Command id → when it was last sent. Not saved: after a restart, what is not answered goes out at once.
        self._sent: dict[str, float] = {}

    def request(
        self,
        decision: Decision,
        nodes: Iterable[str],
        now: float,
        *,
        dry_run: bool = False,
        deadline_s: float = DEADLINE_S,
        confirm_s: float = CONFIRM_S,
    ) -> Halt:
        """The halt of `decision.experiment_id` for this cause, made if it is not there yet.

        `nodes` are those of all its targets: each is told. On an experiment that is halting already, another
        cause is noted in that halt's `also`, and that halt is returned. With `dry_run` a record is made for
        each cause, and nothing is ever sent.

        Raises:
            ValueError: the decision names no experiment.
        """
        experiment_id = decision.experiment_id
        if experiment_id is None:
            raise ValueError("a halt is of one experiment; see enforce.py for halt_all")
        file = self._file(experiment_id)
        if file.progress is not None and not dry_run:
            return self._also(file.progress, decision.cause)
        halt = Halt(
            id=stable_id("halt", experiment_id, decision.cause),
            experiment_id=experiment_id,
            cause=decision.cause,
            reason=decision.reason,
            state=HaltState.REQUESTED,
            dry_run=dry_run,
            requested=now,
        )
        if dry_run:
            return self._rehearse(file, halt)
        present = {mark.node for mark in file.faults.values() if mark.mark is not Mark.GONE}
        file.progress = HaltProgress(
            halt=halt, nodes=sorted({*nodes, *present}), deadline_s=deadline_s, confirm_s=confirm_s
        )
        self._touch(experiment_id)
        self._advance(file, file.progress, now)
        return file.progress.halt

    def feed(self, event: FaultEvent) -> None:
        """Learns which faults are there, and what agents answer. A repeated event changes nothing."""
        if event.experiment_id is None:
            return
        mark = _MARKS.get(event.phase)
        if mark is not None and event.fault_id is not None:
            self._mark(self._file(event.experiment_id), event, event.fault_id, mark)
        if event.phase in _ANSWERS and event.command_id is not None:
            answers = self._file(event.experiment_id).answers
            if event.command_id not in answers:
                answers[event.command_id] = Answer(at=event.event_time, agent=event.time)
                self._touch(event.experiment_id)

    def settle(self, now: float, confirmed: Callable[[str], bool]) -> list[Command]:
        """Moves every halt on, and gives the commands to sign and send now.

        `confirmed(experiment_id)` says whether telemetry shows the effects gone.
        """
        commands: list[Command] = []
        for experiment_id, file in self._files.items():
            progress = file.progress
            if progress is None:
                continue
            self._advance(file, progress, now)
            halt = progress.halt
            if halt.undone is not None and halt.confirmed is None and confirmed(experiment_id):
                self._update(progress, confirmed=now)
                self._advance(file, progress, now)
            commands += self._wanted(file, progress, now)
        due = [command for command in commands if now - self._sent.get(command.id, -RESEND_S) >= RESEND_S]
        wanted = {command.id for command in commands}
        self._sent = {key: time for key, time in self._sent.items() if key in wanted}
        self._sent.update((command.id, now) for command in due)
        return due

    def halt(self, experiment_id: str) -> Halt | None:
        """The experiment's halt, or None."""
        file = self._files.get(experiment_id)
        return file.progress.halt if file and file.progress else None

    def halts(self, experiment_id: str) -> tuple[Halt, ...]:
        """The experiment's halt and its rehearsed ones, as published with the experiment's state."""
        file = self._files.get(experiment_id)
        if file is None:
            return ()
        return (*([file.progress.halt] if file.progress else []), *file.rehearsed)

    def halting(self, experiment_id: str) -> bool:
        """Whether a real halt of the experiment was requested, however far it has come."""
        return self.halt(experiment_id) is not None

    def requested_since(self, time: float) -> int:
        """How many real halts were requested after `time` (exclusive): the breaker's rate.

        Ask with the later of ten minutes ago and `Breaker.reset_at`.
        """
        # What a person stops is a person's choice, and no sign of trouble.
        halts = (file.progress.halt for file in self._files.values() if file.progress is not None)
        return sum(halt.requested > time and not halt.cause.startswith(OPERATOR) for halt in halts)

    def close(self, experiment_id: str) -> None:
        """The experiment is finished: a halt that was undone needs no more answers, and `forget` may drop it."""
        file = self._files.get(experiment_id)
        if file and file.progress and not file.progress.closed:
            file.progress.closed = True
            self._touch(experiment_id)

    def forget(self, before: float) -> None:
        """Drops experiments of which nothing was heard since `before`, those with an open halt excepted.

        `before` must be older than the breaker's ten minutes.
        """
        for experiment_id, file in list(self._files.items()):
            progress = file.progress
            if progress is not None and not progress.closed:
                continue
            times = [mark.at for mark in file.faults.values()] + [answer.at for answer in file.answers.values()]
            for halt in self.halts(experiment_id):
                times += [t for t in (halt.requested, halt.undone, halt.confirmed, halt.escalated) if t is not None]
            if max(times, default=0.0) < before:
                del self._files[experiment_id]
                self._touch(experiment_id)

    def _rehearse(self, file: HaltFile, halt: Halt) -> Halt:
        known = next((past for past in file.rehearsed if past.id == halt.id), None)
        if known is None:
            file.rehearsed.append(halt)
            self._touch(halt.experiment_id)
        return known or halt

    def _also(self, progress: HaltProgress, cause: str) -> Halt:
        if cause != progress.halt.cause and cause not in progress.halt.also:
            self._update(progress, also=(*progress.halt.also, cause))
        return progress.halt

    def _mark(self, file: HaltFile, event: FaultEvent, fault_id: str, mark: Mark) -> None:
        known = file.faults.get(fault_id)
        if known is not None and known.mark.rank >= mark.rank:
            return
        injected = event.time if mark is Mark.PRESENT else known.injected if known else None
        file.faults[fault_id] = FaultMark(node=event.node, mark=mark, at=event.event_time, injected=injected)
        self._touch(str(event.experiment_id))

    def _advance(self, file: HaltFile, progress: HaltProgress, now: float) -> None:
        """Times and state of the halt, derived from the answers and the faults alone."""
        halt = progress.halt
        nodes = progress.nodes = sorted({*progress.nodes, *(m.node for m in file.faults.values())})
        answers = [_answer(file, halt, node) for node in nodes]
        answered = [answer.at for answer in answers if answer is not None]
        waiting = tuple(node for node in nodes if not _rid(file, halt, node))
        acknowledged, undone, confirmed = halt.acknowledged, halt.undone, halt.confirmed
        if acknowledged is None and len(answered) == len(nodes):
            acknowledged = max(answered, default=halt.requested)
        if waiting:
            undone = confirmed = None
        elif undone is None:
            undone = max([*answered, *(mark.at for mark in file.faults.values()), halt.requested])
        failed = any(mark.mark is Mark.FAILED for mark in file.faults.values())
        late = undone is None and now - halt.requested > progress.deadline_s
        unconfirmed = undone is not None and confirmed is None and now - undone > progress.confirm_s
        escalated = failed or late or unconfirmed
        state = (
            HaltState.ESCALATED
            if escalated
            else HaltState.CONFIRMED
            if confirmed is not None
            else HaltState.UNDONE
            if undone is not None
            else HaltState.ACKNOWLEDGED
            if acknowledged is not None
            else HaltState.REQUESTED
        )
        self._update(
            progress,
            state=state,
            waiting_for=waiting,
            acknowledged=acknowledged,
            undone=undone,
            confirmed=confirmed,
            escalated=now if escalated and halt.escalated is None else halt.escalated,
        )

    def _wanted(self, file: HaltFile, progress: HaltProgress, now: float) -> list[Command]:
        """The commands that are not answered yet; once escalated, also those that were, until the faults are gone."""
        halt = progress.halt
        if progress.closed and halt.undone is not None:
            return []
        insist = halt.state is HaltState.ESCALATED
        commands = [
            self._command(halt, node, None, now)
            for node in progress.nodes
            if _answer(file, halt, node) is None or (insist and node in halt.waiting_for)
        ]
        for fault_id, mark in file.faults.items():
            answer = _answer(file, halt, mark.node)
            if mark.mark is Mark.GONE or answer is None or mark.injected is None or mark.injected <= answer.agent:
                continue
            # An injection that was under way when its node answered the halt: it is told by the fault's name.
            commands.append(self._command(halt, mark.node, fault_id, now))
        return commands

    def _command(self, halt: Halt, node: str, fault_id: str | None, now: float) -> Command:
        command_id = halt_command_id(halt.experiment_id, halt.cause, node, fault_id)
        return Command(
            id=command_id,
            time=now,
            cluster=self._cluster,
            kind=CommandKind.HALT,
            expires=now + VALID_S,
            nonce=stable_id("nonce", command_id),
            node=node,
            experiment_id=halt.experiment_id,
            fault_id=fault_id,
            cause=halt.cause,
            reason=halt.reason,
            issued_by="guard",
        )

    def _file(self, experiment_id: str) -> HaltFile:
        return self._files.setdefault(experiment_id, HaltFile())

    def _update(self, progress: HaltProgress, **update: object) -> None:
        halt = progress.halt.model_copy(update=update)
        if halt != progress.halt:
            progress.halt = halt
            self._touch(halt.experiment_id)

    def _touch(self, experiment_id: str) -> None:
        self._dirty.add(experiment_id)

    def dirty(self) -> dict[str, bytes | None]:
        """See `Stateful`."""
        changed: dict[str, bytes | None] = {}
        for experiment_id in self._dirty:
            file = self._files.get(experiment_id)
            changed[PREFIX + experiment_id] = file.model_dump_json().encode() if file else None
        self._dirty.clear()
        return changed

    def load(self, items: Mapping[str, bytes]) -> None:
        """See `Stateful`."""
        self._dirty.clear()
        self._sent.clear()
        self._files = {
            key.removeprefix(PREFIX): HaltFile.model_validate_json(value)
            for key, value in items.items()
            if key.startswith(PREFIX)
        }


def halt_command_id(experiment_id: str, cause: str, node: str, fault_id: str | None = None) -> str:
    """The id of the halt command to `node`; with `fault_id` that of a fault which came after the node's answer."""
    return stable_id("halt", experiment_id, cause, node, *([fault_id] if fault_id else []))


def _answer(file: HaltFile, halt: Halt, node: str) -> Answer | None:
    return file.answers.get(halt_command_id(halt.experiment_id, halt.cause, node))


def _rid(file: HaltFile, halt: Halt, node: str) -> bool:
    """Whether the node is rid of the experiment: no fault there, and it has answered or had one that is gone."""
    marks = [mark.mark for mark in file.faults.values() if mark.node == node]
    if any(mark is not Mark.GONE for mark in marks):
        return False
    return bool(marks) or _answer(file, halt, node) is not None
