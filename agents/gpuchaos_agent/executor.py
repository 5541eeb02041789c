"""Commands in, effects and fault events out; and every effect taken back at the end of its lease.

What is believed is decided in `believe.py`, what may be done in `admit.py`, how it is done by a strategy, what is
said in `teller.py`. This file is the order of those steps, and that order is the safety: remember the command,
journal the fault, then touch the node; touch the node, mark the journal, then tell.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from gpuchaos_agent.admit import Limits, Situation, why_not
from gpuchaos_agent.believe import Believer, Refused, addressed_to
from gpuchaos_agent.clock import Now
from gpuchaos_agent.inject.base import Evidence, FaultStrategy
from gpuchaos_agent.journal import EntryState, Journal, JournalEntry, Scalar
from gpuchaos_agent.lease import Leases
from gpuchaos_agent.nonces import Seen
from gpuchaos_agent.teller import Emit, Teller
from gpuchaos_stream.events.command import Command, CommandKind
from gpuchaos_stream.events.fault import FaultPhase
from gpuchaos_stream.events.signing import Refusal

#: A command is remembered longer than it is believed, by more than clocks may differ, seconds.
_REMEMBERED_S: Final = 3600.0
#: How long what is over is remembered, seconds: so long that no command of its time is believed any more.
_FORGOTTEN_S: Final = 24 * 3600.0
_LIMITS: Final = Limits()


class Executor:
    """Carries out commands on one node. Not for two threads. `tick` is called every check interval.

    Time is passed in. `clock` is asked once more after an effect, where it stands or has gone, so that events bear
    that instant; without it they bear the time passed in. `offset` is what to add to the wall clock to get the
    broker's, None while unknown.
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
        self._strategies = strategies
        self._journal = journal
        self._seen = seen
        self._believer = believer
        self._offset = offset
        self._clock = clock
        self._tell = Teller(cluster=cluster, node=node, emit=emit, offset=offset)
        self._leases = Leases()
        self._known: dict[str, JournalEntry] = {}
        self._failing: dict[str, str] = {}
        self._order = 0
        self._situation = Situation(node, limits, strategies, self._known, seen)
        self._do: Final = {
            CommandKind.INJECT: self._inject,
            CommandKind.RENEW: self._renew,
            CommandKind.UNDO: self._end,
            CommandKind.HALT: self._end,
        }

    @property
    def active(self) -> tuple[JournalEntry, ...]:
        """Faults whose effect is or may be there, in order of injection."""
        return self._situation.active

    @property
    def idle(self) -> bool:
        """Whether `tick` has nothing to wait for: nothing stands, nothing is left to tell. From its own thread."""
        return all(entry.state is EntryState.UNDONE and entry.reported for entry in self._known.values())

    @property
    def failing(self) -> Mapping[str, str]:
        """Faults that could not be taken back yet, and why."""
        return dict(self._failing)

    def start(self, now: Now) -> None:
        """Takes back everything that an earlier run of this agent left behind, last injected first."""
        entries, damaged = self._journal.read()
        self._known.update((entry.fault_id, entry) for entry in entries)
        self._order = max((entry.order for entry in entries), default=-1) + 1
        for item in damaged:
            self._tell.damage(item, now.wall)
        for entry in reversed(entries):
            if entry.state is not EntryState.UNDONE:
                rebooted = entry.boot_id != self._boot_id
                self._undo(entry, now, "node rebooted" if rebooted else "agent restarted")
            elif not entry.reported:
                self._report_undone(entry)

    def receive(self, value: bytes | None, now: Now, traceparent: str | None = None) -> None:
        """One record of the commands topic. What is not for this node is passed over; nothing raises."""
        cluster, node = self._tell.cluster, self._tell.node
        if not value or not addressed_to(value, cluster, node):
            return
        try:
            command = self._believer.believe(value, now.wall + (self._offset() or 0.0))
        except Refused as refused:
            self._refuse(refused, now)
            return
        if (command.cluster, command.node) == (cluster, node) and command.kind in self._do:
            self._do[command.kind](command, now, traceparent)

    def tick(self, now: Now) -> None:
        """Takes back every fault whose lease has run out, tries again one that failed, forgets what is long over."""
        for fault_id in self._leases.expired(now.boot):
            if fault_id not in self._failing:
                self._undo(self._known[fault_id], now, "lease expired")
        if self._failing:
            # One of them, in turn: each may take its time, and must not keep the others' leases waiting.
            fault_id, problem = next(iter(self._failing.items()))
            del self._failing[fault_id]
            self._failing[fault_id] = problem
            self._undo(self._known[fault_id], now, self._known[fault_id].reason)
        for entry in [e for e in self._known.values() if e.state is EntryState.UNDONE]:
            if not entry.reported:
                self._report_undone(entry)
            elif now.wall - (entry.undone_at or now.wall) > _FORGOTTEN_S:
                self._journal.remove(entry.fault_id)
                del self._known[entry.fault_id]

    def undo_all(self, now: Now, reason: str) -> bool:
        """Takes everything back, last injected first; whether all of it is gone."""
        for entry in reversed(self.active):
            self._undo(entry, now, reason)
        return not self.active

    # Injecting

    def _inject(self, command: Command, now: Now, traceparent: str | None) -> None:
        if self._is_replay(command, now):
            return
        reason = why_not(command, self._situation)
        try:
            # A refused one as well: sent again a moment later, it must not begin after all.
            self._remember(command, now)
        except OSError as error:
            reason = reason or f"what was carried out cannot be kept on disk: {error}"
        if reason is not None:
            stands = command.fault_id in self._known
            self._tell.answer(command, FaultPhase.REFUSED, now.wall, traceparent, reason=reason, for_fault=not stands)
            return
        strategy = self._strategies[str(command.fault)]
        try:
            entry = self._journalled(command, strategy, now, traceparent)
        except Exception as error:  # noqa: BLE001  (nothing was done yet, so whatever it is, it is a refusal)
            self._tell.answer(
                command, FaultPhase.REFUSED, now.wall, traceparent, reason=f"{type(error).__name__}: {error}"
            )
            return
        self._order += 1
        self._known[entry.fault_id] = entry
        self._leases.grant(entry.fault_id, boot=now.boot, lease_s=entry.lease_s)
        self._bring_about(entry, strategy, now)

    def _journalled(self, command: Command, strategy: FaultStrategy, now: Now, traceparent: str | None) -> JournalEntry:
        fault_id, entity, lease_s = str(command.fault_id), str(command.entity), float(command.lease_s or 0.0)
        entry = JournalEntry(
            fault_id=fault_id,
            experiment_id=str(command.experiment_id),
            command_id=command.id,
            fault=strategy.name,
            entity=entity,
            params=command.params,
            payload=strategy.plan(entity, command.params, fault_id),
            boot_id=self._boot_id,
            order=self._order,
            created=now.wall,
            lease_s=lease_s,
            lease_expires=now.wall + lease_s,
            lease_deadline=now.boot + lease_s,
            traceparent=traceparent,
        )
        self._journal.write(entry)
        return entry

    def _bring_about(self, entry: JournalEntry, strategy: FaultStrategy, now: Now) -> None:
        problem = ""
        evidence = Evidence(moved=False)
        at = now.wall
        try:
            strategy.inject(entry)
            at = self._later(now).wall
            evidence = strategy.evidence(entry)
            done = entry.model_copy(
                update={"state": EntryState.INJECTED, "evidence": evidence.detail, "injected_at": at}
            )
            if evidence.moved:
                self._set(done)
                self._tell.fault(done, FaultPhase.INJECTED, at, command_id=entry.command_id, evidence=evidence.detail)
                return
        except Exception as error:  # noqa: BLE001  (half an effect may be there: it is taken back below)
            problem = f"{type(error).__name__}: {error}"
        problem = problem or "nothing moved"
        self._tell.fault(
            entry,
            FaultPhase.NOT_EFFECTIVE,
            at,
            command_id=entry.command_id,
            reason=problem,
            evidence=evidence.detail,
        )
        self._undo(entry, now, f"not effective: {problem}")

    # Renewing

    def _renew(self, command: Command, now: Now, traceparent: str | None) -> None:
        if self._is_replay(command, now):
            return
        entry = self._known.get(command.fault_id or "")
        reason = self._why_no_renewal(command, entry, now)
        if entry is None or reason is not None:
            self._tell.answer(command, FaultPhase.REFUSED, now.wall, traceparent, reason=reason or "", for_fault=False)
            return
        self._tell.fault(
            self._known[entry.fault_id],
            FaultPhase.RENEWED,
            now.wall,
            command_id=command.id,
            repeat=(command.id,),
        )

    def _why_no_renewal(self, command: Command, entry: JournalEntry | None, now: Now) -> str | None:
        """Renews, or tells why not. What cannot be kept on disk is not renewed: the lease will end."""
        if entry is None or entry.state is not EntryState.INJECTED or entry.fault_id in self._failing:
            return f"nothing to renew: the fault is {entry.state if entry is not None else 'not known'}"
        if command.experiment_id not in (None, entry.experiment_id):
            return "nothing to renew: the fault is another experiment's"
        lease_s = min(command.lease_s or entry.lease_s, self._situation.limits.longest_lease_s)
        try:
            self._remember(command, now)
            deadline = self._leases.renew(entry.fault_id, boot=now.boot, lease_s=lease_s)
            if deadline is None:
                return "too late: the lease has run out"
            expires = now.wall + deadline - now.boot
            self._set(entry.model_copy(update={"lease_deadline": deadline, "lease_expires": expires}))
        except OSError as error:
            return f"it cannot be kept on disk: {error}"
        return None

    # Undoing: nothing here is refused, delayed, or dependent on a disk

    def _end(self, command: Command, now: Now, traceparent: str | None) -> None:
        meant = [e for e in self._known.values() if _is_meant(e, command)]
        standing = [e for e in meant if e.state is not EntryState.UNDONE]
        why = command.cause or command.reason
        self._tell.answer(
            command,
            FaultPhase.ACKNOWLEDGED,
            now.wall,
            traceparent,
            entry=meant[-1] if meant else None,
            reason=why,
            evidence={"faults": len(standing)},
        )
        for entry in reversed(meant):
            if entry.state is not EntryState.UNDONE:
                self._undo(entry, now, f"{command.kind}: {why}" if why else str(command.kind), command=command)
            else:
                self._report_undone(entry, to=command)
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
            self._seen.add(key, until=now.wall + _FORGOTTEN_S, now=now.wall)

    def _undo(self, entry: JournalEntry, now: Now, reason: str, *, command: Command | None = None) -> None:
        by = command.id if command is not None else entry.undone_by
        entry = entry.model_copy(update={"reason": reason, "undone_by": by})
        problem = self._try_undo(entry)
        if problem is not None:
            self._known[entry.fault_id] = entry
            if self._failing.get(entry.fault_id) != problem or command is not None:
                self._tell.fault(
                    entry,
                    FaultPhase.UNDO_FAILED,
                    self._later(now).wall,
                    command_id=by,
                    reason=f"{reason}: {problem}",
                    repeat=(by, problem),
                )
            self._failing[entry.fault_id] = problem
            return
        self._failing.pop(entry.fault_id, None)
        self._leases.end(entry.fault_id)
        done = entry.model_copy(update={"state": EntryState.UNDONE, "undone_at": self._later(now).wall})
        self._known[entry.fault_id] = done
        # Where the disk refuses: it is undone, and the next start will undo it once more, which changes nothing.
        with contextlib.suppress(OSError):
            self._journal.write(done)
        self._report_undone(done)

    def _try_undo(self, entry: JournalEntry) -> str | None:
        strategy = self._strategies.get(entry.fault)
        if strategy is None:
            return f"this agent does not know fault {entry.fault!r}"
        try:
            strategy.undo(entry)
            return None if strategy.verify(entry) else "the effect is still there"
        except Exception as error:  # noqa: BLE001  (it is tried again at the next tick, whatever it was)
            return f"{type(error).__name__}: {error}"

    def _report_undone(self, entry: JournalEntry, *, to: Command | None = None) -> None:
        at = entry.undone_at or entry.created
        held = {"held_s": round(at - entry.injected_at, 3)} if entry.injected_at is not None else {}
        by = to.id if to is not None else entry.undone_by
        again = (by,) if by != entry.undone_by else ()
        self._tell.fault(
            entry, FaultPhase.UNDONE, at, command_id=by, reason=entry.reason, evidence={**held}, repeat=again
        )
        if not entry.reported:
            told = entry.model_copy(update={"reported": True})
            self._known[entry.fault_id] = told
            with contextlib.suppress(OSError):
                self._journal.write(told)

    # Refusing and remembering

    def _refuse(self, refused: Refused, now: Now) -> None:
        """An expired inject is authentic: its sender waits for an answer and gets one, unless it had it before."""
        command = refused.command if refused.refusal == Refusal.EXPIRED else None
        if command is not None and not self._is_known(command):
            self._tell.answer(command, FaultPhase.REFUSED, now.wall, None, reason=f"{refused.refusal}: {refused}")
            return
        refusal = Refusal.REPLAYED if command is not None else refused.refusal
        self._tell.refusal(refusal, str(refused), refused.claims, now.wall, digest=refused.digest)

    def _is_replay(self, command: Command, now: Now) -> bool:
        """Reports a command that was carried out before. The answer that it got is told again, under its own id."""
        if not self._is_known(command):
            return False
        claims: dict[str, Scalar] = {"claimed_kind": command.kind.value, "claimed_command": command.id}
        self._tell.refusal(Refusal.REPLAYED, "it was carried out before", claims, now.wall, digest=command.id)
        entry = self._known.get(command.fault_id or "")
        if entry is not None and entry.command_id == command.id and entry.state is EntryState.INJECTED:
            at = entry.injected_at or entry.created
            self._tell.fault(entry, FaultPhase.INJECTED, at, command_id=command.id, evidence=entry.evidence)
        return True

    def _is_known(self, command: Command) -> bool:
        known = self._known.get(command.fault_id or "")
        if known is not None and known.command_id == command.id:
            return True
        return f"id/{command.id}" in self._seen or f"nonce/{command.nonce}" in self._seen

    def _remember(self, command: Command, now: Now) -> None:
        until = max(command.expires, now.wall) + _REMEMBERED_S
        self._seen.add(f"id/{command.id}", f"nonce/{command.nonce}", until=until, now=now.wall)

    def _set(self, entry: JournalEntry) -> None:
        self._journal.write(entry)
        self._known[entry.fault_id] = entry

    def _later(self, now: Now) -> Now:
        return now if self._clock is None else self._clock()


def _is_meant(entry: JournalEntry, command: Command) -> bool:
    """A command that names a fault means that one alone; one that names an experiment means all of its faults."""
    if command.fault_id:
        return entry.fault_id == command.fault_id
    return command.experiment_id is not None and entry.experiment_id == command.experiment_id


__all__ = ["Emit", "Executor", "Limits"]
