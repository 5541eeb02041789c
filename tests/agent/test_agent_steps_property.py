"""DESIGN §6.1 and §6.3 where every step of every fault takes as long as it likes, fails, or never returns.

Nothing outlives its lease unless a step of its own has not returned or its undo failed and was told; no fault's steps
wait for another's; of one fault there is one step at a time, unless the first one hangs; each fault is told as undone
once, to each who asked.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from agent_kit import Apart, Begun, Bench, command, signed
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.journal import EntryState, Journal
from gpuchaos_agent.stack import PATIENCE_S
from gpuchaos_agent.steps import HANGS_S, Step
from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.fault import FaultPhase

FAULTS = ("f1", "f2", "f3", "f4")
OUTCOMES = st.sampled_from(["well", "well", "well", "fails before", "fails after"])


@pytest.fixture(autouse=True)
def disk_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is the process that is killed, not the machine: what was written is there."""
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)


class StepsOfFaults(RuleBasedStateMachine):
    """Commands, time, steps that act, return, fail or hang in any order, restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="agent-steps-"))
        self.bench = Bench(self.folder)
        self.bench.node.step = self.step
        self.apart = Apart(self.bench)
        self.outcome = "well"
        self.number = 0
        self.patient_until = 0.0
        self.until: dict[str, float] = {}  # end of the lease of what was asked for
        self.ended: set[str] = set()
        self.experiment_of: dict[str, str] = {}

    def teardown(self) -> None:
        self.settle()
        shutil.rmtree(self.folder)

    def step(self, name: str) -> None:
        """Fails where it was drawn so: before or after the effect, or before or after it is taken back."""
        if name.split(maxsplit=1)[0] == self.outcome.removeprefix("fails "):
            self.outcome = "well"
            raise InjectError("drawn")

    def send(self, kind: CommandKind, **fields: Any) -> None:
        self.number += 1
        self.bench.give(signed(command(kind, self.bench.now.wall, id=f"command-{self.number}", **fields)))

    def run(self, begun: Begun, outcome: str) -> None:
        self.outcome = outcome
        begun.run()
        self.outcome = "well"

    # What happens

    @rule(fault=st.sampled_from(FAULTS), lease=st.floats(0.5, 120))
    def inject(self, fault: str, lease: float) -> None:
        fault = f"{fault}-{self.number // 8}"
        experiment = self.experiment_of.setdefault(fault, f"e{self.number // 16}")
        new = fault not in self.until
        given = {"fault": "fake", "entity": f"process/n1/{fault}", "lease_s": lease}
        self.send(CommandKind.INJECT, fault_id=fault, experiment_id=experiment, **given)
        if new:
            self.until[fault] = self.bench.now.boot + lease

    @rule(pick=st.randoms(use_true_random=False), lease=st.floats(0.5, 120))
    @precondition(lambda self: self.until)
    def renew(self, pick: Random, lease: float) -> None:
        fault = pick.choice(sorted(self.until))
        renewed = len(self.bench.said(FaultPhase.RENEWED))
        self.send(CommandKind.RENEW, fault_id=fault, lease_s=lease)
        if len(self.bench.said(FaultPhase.RENEWED)) > renewed:
            assert self.bench.now.boot < self.until[fault]
            self.until[fault] = max(self.until[fault], self.bench.now.boot + lease)

    @rule(pick=st.randoms(use_true_random=False), whole=st.booleans())
    @precondition(lambda self: self.until)
    def end(self, pick: Random, whole: bool) -> None:
        fault = pick.choice(sorted(self.until))
        experiment = self.experiment_of[fault]
        if whole:
            self.send(CommandKind.HALT, experiment_id=experiment)
            self.ended |= {f for f in self.until if self.experiment_of[f] == experiment}
        else:
            self.send(CommandKind.UNDO, fault_id=fault)
            self.ended.add(fault)
        assert self.bench.events[-1].phase in set(FaultPhase)
        acknowledged = self.bench.said(FaultPhase.ACKNOWLEDGED)
        assert acknowledged[-1].command_id == f"command-{self.number}", "at once, whatever runs"

    @rule(pick=st.randoms(use_true_random=False), outcome=OUTCOMES)
    @precondition(lambda self: any(not each.ran for each in self.apart.begun))
    def act(self, pick: Random, outcome: str) -> None:
        """A step does what it does, and its thread has not told yet."""
        self.run(pick.choice([each for each in self.apart.begun if not each.ran]), outcome)

    @rule(pick=st.randoms(use_true_random=False), outcome=OUTCOMES)
    @precondition(lambda self: self.apart.begun)
    def finish(self, pick: Random, outcome: str) -> None:
        found = pick.choice(self.apart.begun)
        if not found.ran:
            self.run(found, outcome)
        self.apart.give(found)

    @rule(seconds=st.floats(0.1, 4) | st.floats(1, 130))
    def time_passes(self, seconds: float) -> None:
        self.bench.later(seconds)
        self.bench.tick()
        self.look_at_leases()

    @rule(reboot=st.booleans())
    def restart(self, reboot: bool) -> None:
        """The process ends with all its threads; whatever they did is done."""
        if reboot:
            self.bench.boot_id = f"boot-{self.number}-{self.bench.boot_id}"
        self.bench.executor = self.bench.make()
        self.apart = Apart(self.bench)
        self.bench.executor.start(self.bench.now)
        self.ended |= set(self.until)
        self.patient_until = self.bench.now.boot + PATIENCE_S
        self.look_at_leases()

    # What always holds

    def look_at_leases(self) -> None:
        """After a tick: what should be gone has a step of its own under way, or has failed and that was told.

        What a start finds may wait for the undo of another, but not for long.
        """
        undoing = any(each.what == Step.UNDO for each in self.apart.begun)
        if undoing and self.bench.now.boot < self.patient_until:
            return
        for fault in self.bench.node.broken:
            if self.until[fault] <= self.bench.now.boot:
                under_way = {each.what for each in self.apart.begun if each.fault_id == fault}
                assert under_way & {Step.UNDO, Step.INJECT, Step.EVIDENCE}, f"{fault} is left alone"
                if Step.INJECT not in under_way and Step.EVIDENCE not in under_way:
                    assert Step.UNDO in under_way

    @invariant()
    def of_one_fault_there_is_one_step_at_a_time(self) -> None:
        now = self.bench.now.boot
        for fault in {each.fault_id for each in self.apart.begun}:
            its = [each for each in self.apart.begun if each.fault_id == fault]
            waited_for = [e for e in its if e.what == Step.UNDO or now - e.since < HANGS_S[Step(e.what)]]
            assert len(waited_for) <= 1, [each.name for each in its]

    @invariant()
    def every_effect_on_the_node_is_in_the_journal_as_one_to_undo(self) -> None:
        entries, _ = Journal(self.folder / "journal").read()
        assert set(self.bench.node.broken) <= {e.fault_id for e in entries if e.state is not EntryState.UNDONE}

    @invariant()
    def what_is_told_as_undone_is_gone_and_nothing_of_it_can_come_back(self) -> None:
        told = {event.fault_id for event in self.bench.said(FaultPhase.UNDONE) if event.fault != "unknown"}
        told &= {e.fault_id for e in self.bench.said(FaultPhase.UNDONE) if "was_there" not in e.evidence}
        assert not told & set(self.bench.node.broken)
        assert not told & {each.fault_id for each in self.apart.begun if each.what == Step.INJECT}

    @invariant()
    def no_fault_is_told_as_undone_twice_to_the_same(self) -> None:
        told = {event.id: (event.fault_id, event.command_id) for event in self.bench.said(FaultPhase.UNDONE)}
        assert len(set(told.values())) == len(told)

    def settle(self) -> None:
        """When everything returns at last and nothing fails, all is gone after the leases, and all of it was told."""
        self.bench.later(1000)
        for _ in range(50):
            self.bench.tick()
            for begun in list(self.apart.begun):
                if begun in self.apart.begun:
                    self.finish_well(begun)
        assert not self.bench.node.broken
        assert self.bench.executor.idle
        assert not self.bench.executor.failing
        assert not self.bench.executor.hanging
        entries, _ = Journal(self.folder / "journal").read()
        undone = {event.fault_id for event in self.bench.said(FaultPhase.UNDONE)}
        assert {entry.fault_id for entry in entries} <= undone

    def finish_well(self, begun: Begun) -> None:
        if not begun.ran:
            self.run(begun, "well")
        self.apart.give(begun)


StepsOfFaults.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEveryFaultEndsWhateverItsStepsDo = StepsOfFaults.TestCase
