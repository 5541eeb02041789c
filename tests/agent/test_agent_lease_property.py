"""DESIGN §6.1 and §6.3: no fault outlives its lease plus one check interval, whatever is killed; no undo is blocked."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from agent_kit import Bench, KilledError, command, signed
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuchaos_agent.journal import Journal, JournalEntry
from gpuchaos_agent.nonces import Seen
from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase

INTERVAL = 0.25
FAULTS = ("f1", "f2", "f3")
#: Where a kill may come: before or after each thing that the executor does to the disk or to the node.
KILLS = [
    *(("before journal", n) for n in range(4)),
    *(("after journal", n) for n in range(4)),
    *(("emit", n) for n in range(3)),
    *((f"{when} {what}", 0) for when in ("before", "after") for what in ("inject", "undo", "seen")),
]
MAYBE_KILL = st.sampled_from([None, None, *KILLS, *[("after inject", 0)] * 3])


@pytest.fixture(autouse=True)
def disk_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is the process that is killed, not the machine: what was written is there."""
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)


class AgentLife(RuleBasedStateMachine):
    """Commands, time, clock steps, kills at any step, restarts, reboots; the node is looked at after each tick."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="agent-life-"))
        self.kill_at: tuple[str, int] | None = None
        self.alive = True
        self.bench = Bench(self.folder)
        self.bench.node.step = self.step
        self.granted: dict[str, float] = {}
        self.experiment_of: dict[str, str] = {}
        self.number = 0
        self.sent: list[tuple[bytes, CommandKind, str | None, float]] = []
        self.arrived: set[bytes] = set()
        self._arm()

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def step(self, name: str) -> None:
        if self.kill_at is not None and self.kill_at[0] == name:
            if self.kill_at[1] == 0:
                self.kill_at = None
                raise KilledError(name)
            self.kill_at = (name, self.kill_at[1] - 1)

    def _arm(self) -> None:
        machine, executor = self, self.bench.executor

        class SteppingJournal(Journal):
            def write(self, entry: JournalEntry) -> None:
                machine.step("before journal")
                super().write(entry)
                machine.step("after journal")

        class SteppingSeen(Seen):
            def add(self, *keys: str, until: float, now: float) -> None:
                machine.step("before seen")
                super().add(*keys, until=until, now=now)
                machine.step("after seen")

        executor._journal.__class__ = SteppingJournal
        executor._seen.__class__ = SteppingSeen
        said = executor._tell._emit

        def emit(event: FaultEvent, traceparent: str | None) -> None:
            machine.step("emit")
            said(event, traceparent)

        executor._tell._emit = emit

    def _do(self, what: Callable[[], object]) -> None:
        try:
            what()
        except KilledError:
            self.alive = False

    def _send(self, sent: tuple[bytes, CommandKind, str | None, float]) -> None:
        """Gives a record to the agent. What it may grant: a lease to what it breaks, once, and more while that runs."""
        if not self.alive:
            return
        value, kind, fault, lease = sent
        at, broken = self.bench.now.boot, self.bench.node.broken
        before = set(broken)
        if kind is CommandKind.RENEW and value not in self.arrived and at < self.granted.get(str(fault), 0.0):
            self.granted[str(fault)] = max(self.granted[str(fault)], at + lease)
        self.arrived.add(value)
        self._do(lambda: self.bench.give(value))
        for name in set(broken) - before:
            assert (kind, name) == (CommandKind.INJECT, fault)
            assert name not in self.granted, "what was undone never comes back"
            self.granted[name] = at + lease

    def _name(self) -> str:
        self.number += 1
        return f"command-{self.number}"

    @rule(fault=st.sampled_from(FAULTS), lease=st.floats(0.5, 20), kill=MAYBE_KILL)
    @precondition(lambda self: self.alive)
    def inject(self, fault: str, lease: float, kill: tuple[str, int] | None) -> None:
        self.kill_at = kill
        fault, experiment = f"{fault}-{self.number // 3}", f"e{self.number // 6}"
        experiment = self.experiment_of.setdefault(fault, experiment)
        given = {"fault": "fake", "entity": f"process/n1/{fault}", "lease_s": lease}
        self._command(CommandKind.INJECT, fault_id=fault, experiment_id=experiment, **given)

    @rule(pick=st.randoms(use_true_random=False), lease=st.floats(0.5, 20))
    @precondition(lambda self: self.alive and self.granted)
    def renew(self, pick: Random, lease: float) -> None:
        fault = pick.choice(sorted(self.granted))
        self._command(CommandKind.RENEW, fault_id=fault, lease_s=lease)

    @rule(pick=st.randoms(use_true_random=False), kill=MAYBE_KILL)
    @precondition(lambda self: self.alive and self.granted)
    def halt(self, pick: Random, kill: tuple[str, int] | None) -> None:
        self.kill_at = kill
        experiment = self.experiment_of[pick.choice(sorted(self.granted))]
        self._command(CommandKind.HALT, experiment_id=experiment)
        if self.alive:
            assert not [f for f in self.bench.node.broken if self.experiment_of[f] == experiment]

    @rule(pick=st.randoms(use_true_random=False), kill=MAYBE_KILL)
    @precondition(lambda self: self.alive and self.granted)
    def undo(self, pick: Random, kill: tuple[str, int] | None) -> None:
        self.kill_at = kill
        fault = pick.choice(sorted(self.granted))
        self._command(CommandKind.UNDO, fault_id=fault)
        if self.alive:
            assert fault not in self.bench.node.broken

    @rule(pick=st.randoms(use_true_random=False))
    @precondition(lambda self: self.alive and self.sent)
    def replay(self, pick: Random) -> None:
        self._send(pick.choice(self.sent))

    @rule(pick=st.randoms(use_true_random=False))
    @precondition(lambda self: self.alive and any(kind is CommandKind.RENEW for _, kind, _, _ in self.sent))
    def replay_a_renewal(self, pick: Random) -> None:
        self._send(pick.choice([sent for sent in self.sent if sent[1] is CommandKind.RENEW]))

    @rule(seconds=st.floats(0.1, 4) | st.floats(0.01, 30), step=st.sampled_from([0.0] * 6 + [-600.0, 600.0]))
    def time_passes(self, seconds: float, step: float) -> None:
        self.bench.later(seconds, wall=seconds + step)
        self._tick()

    @rule()
    @precondition(lambda self: self.alive)
    def kill(self) -> None:
        self.alive = False

    @rule(reboot=st.booleans())
    @precondition(lambda self: not self.alive)
    def start(self, reboot: bool) -> None:
        self.kill_at = None
        if reboot:
            self.bench.boot_id = f"boot-{self.number}-{self.bench.boot_id}"
        self.bench.executor = self.bench.make()
        self._arm()
        self.bench.executor.start(self.bench.now)
        self.alive = True
        assert not self.bench.node.broken, "a start leaves nothing behind"

    @invariant()
    def no_fault_outlives_its_lease(self) -> None:
        if not self.alive:
            return
        self._do(lambda: self.bench.executor.tick(self.bench.now))
        if self.alive:
            over = [f for f in self.bench.node.broken if self.granted[f] <= self.bench.now.boot]
            assert not over

    @invariant()
    def every_effect_on_the_node_is_in_the_journal(self) -> None:
        journalled = {path.stem for path in (self.folder / "journal").glob("*.json")}
        assert set(self.bench.node.broken) <= journalled

    @invariant()
    def what_is_told_as_undone_is_gone(self) -> None:
        told = {event.fault_id for event in self.bench.said(FaultPhase.UNDONE)}
        assert not told & set(self.bench.node.broken)

    def _tick(self) -> None:
        if self.alive:
            self._do(self.bench.tick)

    def _command(self, kind: CommandKind, **fields: Any) -> None:
        value = signed(command(kind, self.bench.now.wall, id=self._name(), **fields))
        self.sent.append((value, kind, fields.get("fault_id"), fields.get("lease_s", 0.0)))
        self._send(self.sent[-1])


AgentLife.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestNoFaultOutlivesItsLeaseWhateverIsKilled = AgentLife.TestCase
