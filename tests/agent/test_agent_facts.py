"""What was seen is told: whatever a fact holds, and whatever a source can be waited on by."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuchaos_agent import config
from gpuchaos_agent.collect.base import Fact, Reading
from gpuchaos_agent.runtime import SETTLED_AFTER, Agent
from gpuchaos_agent.snapshot import Snapshot
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.frame import Kind
from gpuchaos_stream.stream.settings import KafkaSettings


class Source:
    """A follower whose facts are put in by hand; `safe` is how many a restart would not bring again."""

    kinds: tuple[Kind, ...] = ()

    def __init__(self, name: str, descriptor: int | None = None) -> None:
        self.name = name
        self.descriptor = descriptor
        self.waiting: list[Fact] = []
        self.given = self.safe = 0
        self.committed = threading.Event()

    def read(self, now: float) -> Reading:
        return Reading(facts=self.drain(now))

    def fileno(self) -> int | None:
        return self.descriptor

    def drain(self, now: float) -> tuple[Fact, ...]:
        facts, self.waiting = tuple(self.waiting), []
        self.given += len(facts)
        return facts

    def commit(self) -> None:
        self.safe = self.given
        self.committed.set()

    def close(self) -> None:
        """Nothing is held open."""


def fact(key: str, time: float = 1.0) -> Fact:
    return Fact(key=key, fault="gpu_lost", severity=Severity.CRITICAL, time=time)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    settings = config.load(None, node="n1", state_dir=tmp_path, deadman=False, collectors=("place",), interval=30.0)
    made = Agent(settings, KafkaSettings())
    made._frames_made = SETTLED_AFTER  # no memory of the tests' own process is given back
    yield made
    made._snapshot.close()
    made._eyes.shutdown()
    made._spool.close()
    made._lock.close()


def told(folder: Path) -> int:
    path = folder / "outbox.jsonl"
    return len([json.loads(line) for line in path.read_text().splitlines()]) if path.exists() else 0


async def test_a_fact_that_cannot_be_said_takes_none_behind_it_along(agent: Agent, tmp_path: Path) -> None:
    await agent._tell_facts([fact("a"), fact("b", time=-1.0), fact("c")])
    assert told(tmp_path) == 2


async def test_no_position_is_kept_for_facts_that_are_not_told_yet(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("log", os.eventfd(0, os.EFD_NONBLOCK))
    agent._snapshot = Snapshot([source])
    ahead = []
    commit = source.commit

    def watched() -> None:
        commit()
        ahead.append(source.safe - told(tmp_path))

    monkeypatch.setattr(source, "commit", watched)
    following = asyncio.create_task(agent._follow())
    for round_ in range(50):
        source.waiting = [fact(f"{round_}/{n}") for n in range(20)]
        frame = asyncio.create_task(agent._frame())
        await asyncio.sleep(0)
        source.waiting.append(fact(f"{round_}/late"))
        os.eventfd_write(source.descriptor or 0, 1)
        await frame
    following.cancel()
    os.close(source.descriptor or 0)
    assert ahead
    assert max(ahead) <= 0


async def test_a_source_that_cannot_be_waited_on_keeps_no_other_waiting(agent: Agent, tmp_path: Path) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    bell = os.eventfd(0)
    good = Source("good", bell)
    agent._snapshot = Snapshot([Source("null", null), good])
    following = asyncio.create_task(agent._follow())
    good.waiting.append(fact("a"))
    os.eventfd_write(bell, 1)
    assert await asyncio.to_thread(good.committed.wait, 10), "its fact was not told"
    assert not following.done()
    following.cancel()
    await asyncio.wait([following])
    os.close(null)
    os.close(bell)
    assert told(tmp_path) == 1
