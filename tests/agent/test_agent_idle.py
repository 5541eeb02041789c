"""Nobody looks several times a second while nothing stands; what begins then is looked at as often as ever."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from agent_kit import CLUSTER, NODE, WALL, Bench, FakeStrategy, inject, signed

from gpuchaos_agent import clock, deadman, hands
from gpuchaos_agent.clock import Now
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.journal import EntryState, Journal

DEADLINE_S = 30.0
NEVER_S = 3600.0


def test_a_lease_that_begins_while_the_hands_sleep_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hands, "IDLE_S", NEVER_S)
    bench = Bench(tmp_path)
    steps = {name: threading.Event() for name in ("after inject", "after undo")}
    bench.node.step = lambda name: steps[name].set() if name in steps else None
    its = hands.Hands(bench.executor, cluster=CLUSTER, node=NODE, interval_s=0.02, now=lambda: bench.now)
    its.start()
    assert bench.executor.idle
    assert its.give(signed(inject(WALL, lease_s=5.0)), None)
    assert steps["after inject"].wait(DEADLINE_S)
    assert not bench.executor.idle
    bench.later(5.5)
    assert steps["after undo"].wait(DEADLINE_S)
    assert its.stop()
    assert bench.executor.idle


def test_a_fault_that_begins_while_the_dead_man_sleeps_is_taken_back_in_the_agents_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadman, "IDLE_S", NEVER_S)
    looks, undone = threading.Semaphore(0), threading.Event()
    bench = Bench(tmp_path)
    monkeypatch.setattr("gpuchaos_agent.deadman.registry.build", lambda _env: {"fake": FakeStrategy(bench.node)})
    plain = deadman._Substitute.look

    def look(substitute: deadman._Substitute) -> bool:
        stands = plain(substitute)
        looks.release()
        return stands

    monkeypatch.setattr("gpuchaos_agent.deadman._Substitute.look", look)
    bench.node.step = lambda name: undone.set() if name == "after undo" else None
    journal = Journal(tmp_path / "journal")
    reading, writing = os.pipe()
    env = Env(node=NODE, boot_id=bench.boot_id)
    watching = threading.Thread(target=deadman.watch, args=(journal, env, 0.02), kwargs={"pipe": reading}, daemon=True)
    watching.start()
    assert looks.acquire(timeout=DEADLINE_S), "the first look is at once"
    bench.now = Now(WALL, clock.now().boot - 60)  # of an agent that hung a minute ago
    bench.inject(lease_s=1.0)
    assert undone.wait(DEADLINE_S)
    os.close(writing)
    watching.join(DEADLINE_S)
    os.close(reading)
    entries, _ = journal.read()
    assert [entry.state for entry in entries] == [EntryState.UNDONE]
    assert not bench.node.broken


def test_without_notices_the_dead_man_looks_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadman, "IDLE_S", NEVER_S)
    monkeypatch.setattr("gpuchaos_agent.deadman.Notice.fileno", lambda _: None)
    looks = threading.Semaphore(0)

    def look(*_: object) -> bool:
        looks.release()
        return False

    monkeypatch.setattr("gpuchaos_agent.deadman._Substitute.look", look)
    reading, writing = os.pipe()
    env = Env(node=NODE, boot_id="b")
    journal = Journal(tmp_path / "journal")
    watching = threading.Thread(target=deadman.watch, args=(journal, env, 0.02), kwargs={"pipe": reading}, daemon=True)
    watching.start()
    for _ in range(3):
        assert looks.acquire(timeout=DEADLINE_S)
    os.close(writing)
    watching.join(DEADLINE_S)
    os.close(reading)
