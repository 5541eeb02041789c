"""Commands in, effects and fault events out; and every effect taken back at the end of its lease.

What is believed is decided in `believe.py`, what may be done in `admit.py`, how far each fault is in `standing.py`, how
it is done by a strategy, what is said in `teller.py`. The order of those steps is the safety: remember the command,
journal the fault, then touch the node; touch the node, mark the journal, then tell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from gpuchaos_agent import steps
from gpuchaos_agent.admit import Limits, Situation, prepare, unfit
from gpuchaos_agent.believe import Believer, Refused, addressed_to
from gpuchaos_agent.clock import Now
from gpuchaos_agent.inject.base import FaultStrategy, Payload
from gpuchaos_agent.journal import Damaged, EntryState, Journal, JournalEntry, Scalar
from gpuchaos_agent.nonces import Seen
from gpuchaos_agent.standing import FORGOTTEN_S, Standing
from gpuchaos_agent.steps import HANGS_S, Step
from gpuchaos_agent.teller import Emit, Teller
from gpuchaos_agent.traces import Traces
from gpuchaos_stream.events.command import Command, CommandKind
from gpuchaos_stream.events.fault import FaultPhase
from gpuchaos_stream.events.signing import Refusal

#: A command is remembered longer than it is believed, by more than clocks may differ, seconds.
_REMEMBERED_S: Final = 3600.0
_LIMITS: Final = Limits()
_TOO_LATE: Final = "its lease ran out before it could begin"


@dataclass(slots=True)
class _Asked:
    """An inject whose target is looked at, since `since`; nothing is on the node yet. `over`: refused meanwhile."""

    command: Command
    entry: JournalEntry
    traceparent: str | None
    since: float
    over: bool = False
    hung: bool = False


class Executor:
    """Carries out commands on one node. Not for two threads. `tick` is called every check interval.

    Time is passed in. `clock` is asked once more after an effect, where it stands or has gone, so that events bear
    that instant; without it they bear the time passed in. `offset` is what to add to the wall clock to get the
    broker's, None while unknown. Whatever may take its time is a step, and waited for, unless `run_aside` says how to
    run steps beside this.
    """

    def __init__(
        self,
        *,
        cluster: str,
        node: str,
        boot_id: str,
        strategies: Mapping[str, FaultStrategy],
        journal: Journal,
        seen: Seen,
        believer: Believer,
        emit: Emit,
        offset: Callable[[], float | None] = lambda: None,
        clock: Callable[[], Now] | None = None,
        limits: Limits = _LIMITS,
    ) -> None:
        self._boot_id = boot_id
        self._journal = journal
        self._seen = seen
        self._believer = believer
        self._offset = offset
        self._tell = Teller(cluster=cluster, node=node, emit=emit, offset=offset)
        self._traces = Traces(cluster=cluster, node=node, offset=offset)
        self._standing = Standing(
            strategies=strategies, journal=journal, tell=self._tell, clock=clock, traces=self._traces
        )
        self._asked: dict[str, _Asked] = {}
        self._order = 0
        self._situation = Situation(node, limits, strategies, self._standing.known, seen, journal.aside)
        self._do: Final = {
            CommandKind.INJECT: self._inject,
            CommandKind.RENEW: self._renew,
            CommandKind.UNDO: self._end,
            CommandKind.HALT: self._end,
        }

    def run_aside(self, runner: steps.Runner) -> None:
        """Has every step run by `runner`, which gives the results back on this executor's own thread."""
        self._standing.run = runner

    @property
    def active(self) -> tuple[JournalEntry, ...]:
        """Faults whose effect is or may be there, in order of injection."""
        return self._standing.active

    @property
    def idle(self) -> bool:
        """Whether `tick` has nothing to wait for: nothing stands, nothing is left to tell. From its own thread."""
        return not self._asked and self._standing.idle

    @property
    def settled(self) -> bool:
        """Whether no step runs that could change the node, and none is due. From its own thread."""
        return self._standing.settled

    @property
    def failing(self) -> Mapping[str, str]:
        """Faults that could not be taken back yet, and why."""
        return self._standing.failing

    @property
    def unread(self) -> list[Damaged]:
        """Files of the journal that cannot be read and that no person has settled: their faults may stand."""
        return self._journal.aside()

    @property
    def hanging(self) -> Mapping[str, str]:
        """Faults of which a step has not returned in time, and which step."""
        checks = {fault_id: steps.hanging(Step.CHECK) for fault_id, a in list(self._asked.items()) if a.hung}
        return {**checks, **self._standing.hanging}

    def start(self, now: Now) -> None:
        """Takes back everything that an earlier run of this agent left behind, last injected first."""
        self._journal.aside()  # before the look: it puts back what can be read after all
        entries, damaged = self._journal.read()
        self._standing.restore(entries)
        self._order = max((entry.order for entry in entries), default=-1) + 1
        for item in damaged:
            self._tell.damage(item, now.wall)
        for entry in entries:
            if entry.state is not EntryState.UNDONE:
                rebooted = entry.boot_id != self._boot_id
                reason = "node rebooted" if rebooted else "agent restarted"
                self._standing.end(entry.fault_id, reason, now, patient=True)
            elif not entry.reported:
                self._standing.report(entry.fault_id)
        self._standing.advance(now)

    def receive(self, value: bytes | None, now: Now, traceparent: str | None = None) -> None:
        """One record of the commands topic. What is not for this node is passed over; nothing raises."""
        cluster, node = self._tell.cluster, self._tell.node
        if not value or not addressed_to(value, cluster, node):
            return
        try:
            command = self._believer.believe(value, now.wall + (self._offset() or 0.0))
        except Refused as refused:
            self._refuse(refused, now, traceparent)
            return
        if (command.cluster, command.node) == (cluster, node) and command.kind in self._do:
            self._do[command.kind](command, now, traceparent)

    def tick(self, now: Now) -> None:
        """Takes back every fault whose lease has run out, tries again one that failed, forgets what is long over."""
        for asked in list(self._asked.values()):
            asked.hung = now.boot - asked.since >= HANGS_S[Step.CHECK]
            if now.boot >= asked.entry.lease_deadline:
                self._call_off(asked, _TOO_LATE, now)
        self._standing.tick(now)

    def advance(self, now: Now) -> None:
        """Begins the undos whose turn has come."""
        self._standing.advance(now)

    def undo_all(self, now: Now, reason: str) -> bool:
        """Takes everything back, last injected first; whether all of it is gone."""
        for asked in list(self._asked.values()):
            self._call_off(asked, reason, now)
        for entry in self.active:
            self._standing.end(entry.fault_id, reason, now, patient=True)
        self._standing.advance(now)
        return not self.active

    # Injecting

    def _inject(self, command: Command, now: Now, traceparent: str | None) -> None:
        if self._is_replay(command, now):
            return
        at = replace(self._situation, known=self._with_asked())
        reason = unfit(command, at)
        try:
            # A refused one as well: sent again a moment later, it must not begin after all.
            self._remember(command, now)
        except OSError as error:
            reason = reason or f"what was carried out cannot be kept on disk: {error}"
        if reason is None:
            try:
                asked = _Asked(command, self._entry(command, now, traceparent), traceparent, now.boot)
            except ValueError as error:
                reason = f"{type(error).__name__}: {error}"
        self._traces.received(command, traceparent, now, reason)
        if reason is not None:
            stands = command.fault_id in self._standing.known or command.fault_id in self._asked
            self._tell.answer(command, FaultPhase.REFUSED, now.wall, traceparent, reason=reason, for_fault=not stands)
            return
        self._asked[asked.entry.fault_id] = asked
        name = f"{Step.CHECK} {asked.entry.fault_id}"
        do = self._traces.of(Step.CHECK, asked.entry, lambda: prepare(command, at))
        self._standing.run(name, do, partial(self._prepared, asked), now)

    def _with_asked(self) -> dict[str, JournalEntry]:
        """As they are now: what is asked for holds its place before it has begun."""
        return {**self._standing.known, **{fault_id: asked.entry for fault_id, asked in self._asked.items()}}

    def _entry(self, command: Command, now: Now, traceparent: str | None) -> JournalEntry:
        """Without what only the node knows. Its lease runs from now: it pays for every look at the node."""
        lease_s = float(command.lease_s or 0.0)
        return JournalEntry(
            fault_id=str(command.fault_id),
            experiment_id=str(command.experiment_id),
            command_id=command.id,
            fault=str(command.fault),
            entity=str(command.entity),
            params=command.params,
            boot_id=self._boot_id,
            order=self._order,
            created=now.wall,
            lease_s=lease_s,
            lease_expires=now.wall + lease_s,
            lease_deadline=now.boot + lease_s,
            traceparent=traceparent,
        )

    def _prepared(self, asked: _Asked, result: tuple[str | None, Payload], now: Now) -> None:
        del self._asked[asked.entry.fault_id]
        if asked.over:
            return
        reason, payload = result
        if now.boot >= asked.entry.lease_deadline:
            reason = reason or _TOO_LATE
        entry = asked.entry.model_copy(update={"payload": payload, "order": self._order})
        if reason is None:
            try:
                with self._traces.writing(entry):
                    self._standing.keep(entry)
            except OSError as error:
                reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            self._tell.answer(asked.command, FaultPhase.REFUSED, now.wall, asked.traceparent, reason=reason)
            return
        self._order += 1
        self._standing.begin(entry, now)

    def _call_off(self, asked: _Asked, reason: str, now: Now) -> None:
        """It will not begin. Its place stays taken until the look at the node has returned, which may hang."""
        if not asked.over:
            asked.over = True
            self._tell.answer(asked.command, FaultPhase.REFUSED, now.wall, asked.traceparent, reason=reason)

    # Renewing

    def _renew(self, command: Command, now: Now, traceparent: str | None) -> None:
        if self._is_replay(command, now):
            return
        entry = self._standing.known.get(command.fault_id or "")
        reason = self._why_no_renewal(command, entry, now)
        if entry is None or reason is not None:
            self._tell.answer(command, FaultPhase.REFUSED, now.wall, traceparent, reason=reason or "", for_fault=False)
            return
        self._tell.fault(
            self._standing.known[entry.fault_id],
            FaultPhase.RENEWED,
            now.wall,
            command_id=command.id,
            repeat=(command.id,),
        )

    def _why_no_renewal(self, command: Command, entry: JournalEntry | None, now: Now) -> str | None:
        """Renews, or tells why not. What cannot be kept on disk is not renewed: the lease will end."""
        if entry is None or entry.state is EntryState.UNDONE:
            return f"nothing to renew: the fault is {entry.state if entry is not None else 'not known'}"
        if self._standing.is_ending(entry.fault_id):
            return "nothing to renew: the fault is being taken back"
        if command.experiment_id not in (None, entry.experiment_id):
            return "nothing to renew: the fault is another experiment's"
        lease_s = min(command.lease_s or entry.lease_s, self._situation.limits.longest_lease_s)
        try:
            self._remember(command, now)
            deadline = self._standing.leases.renew(entry.fault_id, boot=now.boot, lease_s=lease_s)
            if deadline is None:
                return "too late: the lease has run out"
            expires = now.wall + deadline - now.boot
            self._standing.keep(entry.model_copy(update={"lease_deadline": deadline, "lease_expires": expires}))
        except OSError as error:
            return f"it cannot be kept on disk: {error}"
        return None

    # Ending: nothing here is refused, delayed, or dependent on a disk

    def _end(self, command: Command, now: Now, traceparent: str | None) -> None:
        meant = [e for e in self._standing.known.values() if _is_meant(e, command)]
        standing = [e for e in meant if e.state is not EntryState.UNDONE]
        why = command.cause or command.reason
        reason = f"{command.kind}: {why}" if why else str(command.kind)
        if standing:
            self._traces.received(command, traceparent, now)
        self._tell.answer(
            command,
            FaultPhase.ACKNOWLEDGED,
            now.wall,
            traceparent,
            entry=meant[-1] if meant else None,
            reason=why,
            evidence={"faults": len(standing)},
        )
        for asked in [a for a in self._asked.values() if _is_meant(a.entry, command)]:
            self._call_off(asked, f"{reason}, before it could begin", now)
        for entry in reversed(meant):
            if entry.state is not EntryState.UNDONE:
                self._standing.end(entry.fault_id, reason, now, by=command.id, trace=traceparent, patient=True)
            else:
                self._standing.report(entry.fault_id, to=command.id)
        self._standing.advance(now)
        if command.fault_id and not meant:
            self._tell.answer(
                command,
                FaultPhase.UNDONE,
                now.wall,
                traceparent,
                reason="not on this node",
                evidence={"was_there": False},
            )
        # An undo that cannot be remembered is an undo all the same; a repeat finds nothing to do.
        with contextlib.suppress(OSError):
            self._never_again(command, now)

    def _never_again(self, command: Command, now: Now) -> None:
        """An inject that arrives after its end (overtaken, or sent again) must not begin."""
        key = f"ended-fault/{command.fault_id}" if command.fault_id else f"ended/{command.experiment_id}"
        if key not in self._seen:
            self._seen.add(key, until=now.wall + FORGOTTEN_S, now=now.wall)

    # Refusing and remembering

    def _refuse(self, refused: Refused, now: Now, traceparent: str | None) -> None:
        """An expired inject is authentic: its sender waits for an answer and gets one, unless it had it before."""
        command = refused.command if refused.refusal == Refusal.EXPIRED else None
        if command is not None and not self._is_known(command):
            reason = f"{refused.refusal}: {refused}"
            self._traces.received(command, traceparent, now, reason)
            self._tell.answer(command, FaultPhase.REFUSED, now.wall, None, reason=reason)
            return
        refusal = Refusal.REPLAYED if command is not None else refused.refusal
        self._tell.refusal(refusal, str(refused), refused.claims, now.wall, digest=refused.digest)

    def _is_replay(self, command: Command, now: Now) -> bool:
        """Reports a command that was carried out before. The answer that it got is told again, under its own id."""
        if not self._is_known(command):
            return False
        claims: dict[str, Scalar] = {"claimed_kind": command.kind.value, "claimed_command": command.id}
        self._tell.refusal(Refusal.REPLAYED, "it was carried out before", claims, now.wall, digest=command.id)
        entry = self._standing.known.get(command.fault_id or "")
        if entry is not None and entry.command_id == command.id and entry.state is EntryState.INJECTED:
            self._standing.tell_injected(entry.fault_id)
        return True

    def _is_known(self, command: Command) -> bool:
        known = self._standing.known.get(command.fault_id or "")
        if known is not None and known.command_id == command.id:
            return True
        return f"id/{command.id}" in self._seen or f"nonce/{command.nonce}" in self._seen

    def _remember(self, command: Command, now: Now) -> None:
        until = max(command.expires, now.wall) + _REMEMBERED_S
        self._seen.add(f"id/{command.id}", f"nonce/{command.nonce}", until=until, now=now.wall)


def _is_meant(entry: JournalEntry, command: Command) -> bool:
    """A command that names a fault means that one alone; one that names an experiment means all of its faults."""
    if command.fault_id:
        return entry.fault_id == command.fault_id
    return command.experiment_id is not None and entry.experiment_id == command.experiment_id


__all__ = ["Emit", "Executor", "Limits"]
