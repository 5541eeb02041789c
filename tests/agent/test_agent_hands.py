"""The hands' thread with threads for the steps: whatever hangs in one of them, the rest goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_kit import CLUSTER, NODE, RING, WALL, Bench, FakeStrategy, command, inject, signed
from lab.waiting import until

from gpuchaos_agent import clock, deadman, offline
from gpuchaos_agent.believe import Believer
from gpuchaos_agent.clock import Now
from gpuchaos_agent.executor import Executor
from gpuchaos_agent.hands import Hands
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.power_cycle import PowerCycle
from gpuchaos_agent.inject.process_stop import ProcessStop, read_process
from gpuchaos_agent.journal import EntryState, Journal
from gpuchaos_agent.nonces import Seen
from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.signing import Verifier

sys.path.insert(0, str(Path(__file__).parents[1] / "inject"))

import bmc_kit

P = FaultPhase
DEADLINE_S = 30.0


class Gates:
    """Steps wait at their gate while it is closed: `gates.close("undo f1")`."""

    def __init__(self) -> None:
        self._closed: dict[str, threading.Event] = {}
        self.reached: list[str] = []

    def __call__(self, step: str, fault_id: str) -> None:
        name = f"{step} {fault_id}"
        gate = self._closed.get(name)
        self.reached.append(name)
        if gate is not None:
            gate.wait(4 * DEADLINE_S)

    def close(self, name: str) -> None:
        self._closed[name] = threading.Event()

    def open(self, name: str) -> None:
        self._closed.pop(name).set()

    def open_all(self) -> None:
        for name in list(self._closed):
            self.open(name)


class Crew:
    """A bench whose executor has hands. `left` are faults that an earlier run of the agent left behind."""

    def __init__(self, folder: Path, *left: str) -> None:
        self.bench = Bench(folder)
        for name in left:
            self.bench.inject(name)
        self.gates = self.bench.node.gate = Gates()
        self.bench.executor = self.bench.make()
        now = lambda: self.bench.now  # noqa: E731
        self.hands = Hands(self.bench.executor, cluster=CLUSTER, node=NODE, interval_s=0.02, now=now)

    def inject(self, fault_id: str, **fields: object) -> None:
        assert self.hands.give(signed(inject(WALL, fault_id, **fields)), None)

    def stand(self, *names: str) -> None:
        for name in names:
            self.inject(name)
            self.hear(P.INJECTED, name)

    def ask(self, kind: CommandKind, **fields: object) -> None:
        assert self.hands.give(signed(command(kind, self.bench.now.wall, **fields)), None)

    def hear(self, phase: FaultPhase, fault_id: str | None = None) -> FaultEvent:
        found = lambda: [e for e in self.bench.said(phase) if fault_id in (None, e.fault_id)]  # noqa: E731
        return until(found, DEADLINE_S)[0]

    def reach(self, name: str) -> None:
        until(lambda: name in self.gates.reached, DEADLINE_S)


class Stopping:
    """A stop under way."""

    def __init__(self, hands: Hands, timeout_s: float) -> None:
        self._said: list[bool] = []
        self._thread = threading.Thread(target=lambda: self._said.append(hands.stop(timeout_s)))
        self._thread.start()

    def clean(self) -> bool:
        self._thread.join(DEADLINE_S)
        return self._said[0]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    its = Crew(tmp_path)
    its.hands.start()
    yield its
    its.gates.open_all()
    its.hands.stop(DEADLINE_S)


def step_threads() -> list[str]:
    steps = ("check ", "injection ", "evidence ", "undo ")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(steps)]


@pytest.mark.parametrize("hanging", ["check f1", "injection f1", "evidence f1"])
def test_while_one_fault_is_being_injected_another_is_injected_renewed_and_halted(crew: Crew, hanging: str) -> None:
    crew.gates.close(hanging)
    crew.inject("f1")
    crew.reach(hanging)
    crew.stand("f2")
    crew.ask(CommandKind.RENEW, fault_id="f2", lease_s=20.0)
    crew.hear(P.RENEWED, "f2")
    crew.ask(CommandKind.HALT, fault_id="f2")
    crew.hear(P.UNDONE, "f2")
    assert crew.gates.reached[-1] != "undo f1"
    crew.gates.open(hanging)
    crew.hear(P.INJECTED, "f1")


def test_while_one_undo_hangs_another_lease_ends_in_time(crew: Crew) -> None:
    crew.stand("f1", "f2")
    crew.gates.close("undo f2")
    crew.ask(CommandKind.HALT, fault_id="f2")
    crew.reach("undo f2")
    crew.bench.later(10.0)
    crew.hear(P.UNDONE, "f1")
    assert "f2" in crew.bench.node.broken
    crew.gates.open("undo f2")
    crew.hear(P.UNDONE, "f2")


def test_a_halt_is_acknowledged_while_its_injection_runs_and_undone_right_after(crew: Crew) -> None:
    crew.gates.close("injection f1")
    crew.inject("f1")
    crew.reach("injection f1")
    crew.ask(CommandKind.HALT, experiment_id="e1")
    crew.hear(P.ACKNOWLEDGED)
    assert "undo f1" not in crew.gates.reached
    crew.gates.open("injection f1")
    crew.hear(P.UNDONE, "f1")
    assert crew.gates.reached == ["check f1", "injection f1", "undo f1"]


def test_while_nothing_stands_there_is_no_thread_for_a_step(crew: Crew) -> None:
    crew.stand("f1")
    until(lambda: not step_threads())
    crew.ask(CommandKind.HALT, experiment_id="e1")
    crew.hear(P.UNDONE)
    until(lambda: not step_threads())


def test_without_a_thread_to_be_had_an_undo_is_carried_out_all_the_same(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew.stand("f1")

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", none_left)
    crew.ask(CommandKind.HALT, experiment_id="e1")
    crew.hear(P.UNDONE)
    assert not crew.bench.node.broken


def test_a_stop_undoes_what_it_can_and_waits_no_longer_than_it_may(crew: Crew) -> None:
    crew.stand("f1", "f2", "f3")
    crew.gates.close("undo f3")
    stopping = Stopping(crew.hands, 3.0)
    crew.reach("undo f3")
    crew.bench.later(5.0)  # the patience of the others with f3
    assert stopping.clean() is False
    assert set(crew.bench.node.broken) == {"f3"}


def test_a_stop_waits_for_an_injection_that_runs_and_undoes_it(crew: Crew) -> None:
    crew.gates.close("injection f1")
    crew.inject("f1")
    crew.reach("injection f1")
    stopping = Stopping(crew.hands, DEADLINE_S)
    crew.gates.open("injection f1")
    assert stopping.clean() is True
    assert not crew.bench.node.broken


def test_a_stop_with_an_undo_that_fails_does_not_wait_for_it_to_succeed(crew: Crew) -> None:
    crew.stand("f1")
    crew.bench.node.stuck = True
    began = time.monotonic()
    assert crew.hands.stop(DEADLINE_S) is False
    assert time.monotonic() - began < DEADLINE_S / 2


def test_a_start_waits_for_nothing_that_takes_long_and_the_rest_is_undone(tmp_path: Path) -> None:
    crew = Crew(tmp_path, "f1", "f2")
    crew.gates.close("undo f2")
    began = time.monotonic()
    crew.hands.start(DEADLINE_S)
    assert time.monotonic() - began < DEADLINE_S / 2
    crew.bench.later(5.0)  # the patience of f1 with f2
    crew.hear(P.UNDONE, "f1")
    assert set(crew.bench.node.broken) == {"f2"}
    crew.gates.open("undo f2")
    crew.hear(P.UNDONE, "f2")
    assert crew.hands.stop()


# With the agent down


def test_undoing_from_the_journal_leaves_what_hangs_and_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    gates = bench.node.gate = Gates()
    bench.inject("f1")
    bench.inject("f2")
    gates.close("undo f2")
    journal, strategies = Journal(tmp_path / "journal"), {"fake": FakeStrategy(bench.node)}
    outcomes, _ = offline.undo(journal, strategies, bench.now, "by hand", within_s=2.0)
    assert [(o.entry.fault_id, o.problem) for o in outcomes] == [
        ("f2", "its undo has not returned for 2 s"),
        ("f1", None),
    ]
    gates.open("undo f2")
    until(lambda: all(entry.state is EntryState.UNDONE for entry in journal.read()[0]))


def test_what_a_start_is_still_undoing_from_the_journal_is_not_undone_beside_it(tmp_path: Path) -> None:
    crew = Crew(tmp_path, "f1")
    bench, gates = crew.bench, crew.gates
    gates.close("undo f1")
    offline.undo(Journal(tmp_path / "journal"), {"fake": FakeStrategy(bench.node)}, bench.now, "start", within_s=0.0)
    crew.reach("undo f1")
    crew.hands.start()
    until(lambda: "undo f1" in step_threads())
    assert gates.reached.count("undo f1") == 1
    gates.open("undo f1")
    crew.hear(P.UNDONE, "f1")
    assert crew.hands.stop()


@pytest.fixture
def substitute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, Gates, deadman._Substitute]:
    bench = Bench(tmp_path)
    bench.node.gate = gates = Gates()
    monkeypatch.setattr("gpuchaos_agent.clock.now", lambda: bench.now)
    env = Env(node=NODE, boot_id=bench.boot_id)
    journal = Journal(tmp_path / "journal")
    return bench, gates, deadman._Substitute(journal, {"fake": FakeStrategy(bench.node)}, env, 0.1)


def test_an_undo_that_hangs_keeps_the_dead_man_from_no_other_fault(
    substitute: tuple[Bench, Gates, deadman._Substitute],
) -> None:
    bench, gates, its = substitute
    bench.inject("f1", lease_s=20.0)
    bench.inject("f2", lease_s=10.0)
    gates.close("undo f2")
    bench.later(11)
    assert its.look()
    bench.later(10)
    assert its.look()
    until(lambda: "f1" not in bench.node.broken)
    assert gates.reached.count("undo f2") == 1
    gates.open("undo f2")
    until(lambda: not bench.node.broken)
    until(lambda: not its.look())


def test_what_an_agent_that_lives_is_only_injecting_is_undone_and_still_left_for_it_to_undo(
    substitute: tuple[Bench, Gates, deadman._Substitute],
) -> None:
    bench, gates, its = substitute
    bench.inject("f1", lease_s=10.0)
    journal = Journal(bench.folder / "journal")
    (entry,), _ = journal.read()
    journal.write(entry.model_copy(update={"state": EntryState.PLANNED}))
    bench.now = Now(bench.now.wall + 11, bench.now.boot + 11)
    assert its.look()
    until(lambda: not bench.node.broken)
    bench.node.broken["f1"] = entry.entity  # the injection goes on
    assert its.look()
    assert gates.reached.count("undo f1") == 1, "not at every look"
    bench.later(deadman.AGAIN_S)
    assert its.look()
    until(lambda: not bench.node.broken)
    assert journal.read()[0][0].state is EntryState.PLANNED


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def test_a_process_is_let_go_while_a_slow_controller_is_waited_for(
    tmp_path: Path, victim: subprocess.Popen[bytes]
) -> None:
    service = bmc_kit.Unruly(allowed=["On", "ForceOff"], delay_s=3.0)
    boot_id, procfs = clock.boot_id(), Path("/proc")
    events: list[FaultEvent] = []

    def hear(phase: FaultPhase, fault_id: str) -> FaultEvent:
        return until(lambda: [e for e in events if (e.phase, e.fault_id) == (phase, fault_id)], DEADLINE_S)[0]

    def stopped(pid: int) -> bool:
        process = read_process(procfs, pid)
        return process is not None and process.state == "T"

    with bmc_kit.unruly(service) as url:
        env = Env(
            node=NODE,
            boot_id=boot_id,
            job_of=lambda _pid: "llama",
            bmcs={"n2": bmc_kit.access(url, tmp_path)},
        )
        executor = Executor(
            cluster=CLUSTER,
            node=NODE,
            boot_id=boot_id,
            strategies={"power-cycle": PowerCycle(env), "process-stop": ProcessStop(env)},
            journal=Journal(tmp_path / "journal"),
            seen=Seen(tmp_path / "seen.jsonl", now=clock.now().wall),
            believer=Believer(Verifier(RING)),
            emit=lambda event, _trace: events.append(event),
            clock=clock.now,
        )
        hands = Hands(executor, cluster=CLUSTER, node=NODE, interval_s=0.05)
        hands.start()
        wall = clock.now().wall
        hands.give(signed(inject(wall, "p1", fault="process-stop", entity=f"process/{NODE}/{victim.pid}")), None)
        hear(P.INJECTED, "p1")
        assert stopped(victim.pid)
        slow = inject(wall, "c1", fault="power-cycle", entity="node/n2", experiment_id="e2", lease_s=60.0)
        hands.give(signed(slow), None)
        until(lambda: service.orders == ["ForceOff"])
        hands.give(signed(command(CommandKind.HALT, wall, experiment_id="e1")), None)
        hear(P.UNDONE, "p1")
        assert not stopped(victim.pid)
        assert service.power == "On", "the slow one has not happened yet"
        assert hear(P.INJECTED, "c1").evidence["order"] == "off"
        hands.give(signed(command(CommandKind.HALT, wall, id="h2", experiment_id="e2")), None)
        hear(P.UNDONE, "c1")
        assert service.now() == "On"
        assert hands.stop()
