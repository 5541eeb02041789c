"""What the agent's tests share: a node that can suffer, an agent on it that can be killed, and who commands it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuchaos_agent.believe import Believer
from gpuchaos_agent.clock import Now
from gpuchaos_agent.executor import Executor, Limits
from gpuchaos_agent.inject.base import Evidence, FaultStrategy, InjectError
from gpuchaos_agent.journal import Journal, JournalEntry, Scalar
from gpuchaos_agent.nonces import Seen
from gpuchaos_stream.events.base import Authored, stable_id
from gpuchaos_stream.events.command import Command, CommandKind, Role
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.signing import KeyRing, Signer, Verifier

CLUSTER = "c1"
NODE = "n1"
CONTROL = Signer.generate(Role.CONTROL)
OPERATOR = Signer.generate(Role.OPERATOR)
STRANGER = Signer.generate(Role.CONTROL)
RING = KeyRing(keys=(CONTROL.trusted(), OPERATOR.trusted()))
WALL = 1_800_000_000.0


class KilledError(BaseException):
    """kill -9, at the step where it is raised: nothing after it happens, what is on disk stays."""


class FakeParams(Authored):
    depth: int = 1


@dataclass
class FakeNode:
    """The node itself: what is broken on it survives its agent. `step` may raise to kill or to fail.

    `gate` is passed by each step of each fault; it may wait.
    """

    broken: dict[str, str] = field(default_factory=dict)
    undos: list[str] = field(default_factory=list)
    step: Callable[[str], None] = lambda _name: None
    gate: Callable[[str, str], None] = lambda _step, _fault_id: None
    inert: bool = False
    refuse: str | None = None
    stuck: bool = False


class FakeStrategy:
    name = "fake"
    layer = "a dictionary"
    certifies = ("hang-detection",)
    not_certified = ("gpu-failure",)
    params: type[Authored] = FakeParams

    def __init__(self, node: FakeNode) -> None:
        self.node = node

    def unavailable(self) -> str | None:
        return None

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        return self.node.refuse

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:
        return frozenset({target})

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        return ()

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> dict[str, Scalar]:
        self.node.gate("check", fault_id)
        return {"target": target}

    def inject(self, entry: JournalEntry) -> None:
        self.node.step("before inject")
        self.node.gate("injection", entry.fault_id)
        if not self.node.inert:
            self.node.broken[entry.fault_id] = entry.entity
        self.node.step("after inject")

    def evidence(self, entry: JournalEntry) -> Evidence:
        self.node.gate("evidence", entry.fault_id)
        return Evidence(entry.fault_id in self.node.broken, {"target": entry.payload["target"]})

    def undo(self, entry: JournalEntry) -> None:
        self.node.step("before undo")
        self.node.gate("undo", entry.fault_id)
        if self.node.stuck:
            raise InjectError("stuck")
        self.node.undos.append(entry.fault_id)
        self.node.broken.pop(entry.fault_id, None)
        self.node.step("after undo")

    def verify(self, entry: JournalEntry) -> bool:
        return entry.fault_id not in self.node.broken


class Bench:
    """A node, its agent's folder, a clock, and the executor of the agent's present run."""

    def __init__(self, folder: Path, *, limits: Limits | None = None) -> None:
        self.folder = folder
        self.limits = limits or Limits()
        self.node = FakeNode()
        self.boot_id = "boot-1"
        self.now = Now(WALL, 1000.0)
        self.events: list[FaultEvent] = []
        self.traces: list[str | None] = []
        self.executor = self.make()
        self.executor.start(self.now)

    def make(self, strategies: Mapping[str, FaultStrategy] | None = None) -> Executor:
        def emit(event: FaultEvent, traceparent: str | None) -> None:
            self.events.append(event)
            self.traces.append(traceparent)

        return Executor(
            cluster=CLUSTER,
            node=NODE,
            boot_id=self.boot_id,
            strategies={"fake": FakeStrategy(self.node)} if strategies is None else strategies,
            journal=Journal(self.folder / "journal"),
            seen=Seen(self.folder / "seen.jsonl", now=self.now.wall),
            believer=Believer(Verifier(RING)),
            emit=emit,
            limits=self.limits,
        )

    def restart(self) -> None:
        """A new run of the agent on the same disk."""
        self.executor = self.make()
        self.executor.start(self.now)

    def later(self, seconds: float, *, wall: float | None = None) -> None:
        """Time passes; the wall clock by `wall` where somebody set it."""
        self.now = Now(self.now.wall + (seconds if wall is None else wall), self.now.boot + seconds)

    def tick(self) -> None:
        self.executor.tick(self.now)

    def give(self, value: bytes, traceparent: str | None = None) -> list[FaultEvent]:
        """One record; returns what was said because of it."""
        before = len(self.events)
        self.executor.receive(value, self.now, traceparent)
        return self.events[before:]

    def inject(self, fault_id: str = "f1", **fields: Any) -> list[FaultEvent]:
        return self.give(signed(inject(self.now.wall, fault_id, **fields)))

    def said(self, phase: FaultPhase) -> list[FaultEvent]:
        return [event for event in self.events if event.phase is phase]


@dataclass
class Begun:
    """A step that was begun: `run` does it, and `give` tells the executor how it went."""

    name: str
    step: Callable[[], Any]
    then: Callable[[Any, Now], None]
    since: float
    ran: bool = False
    result: Any = None

    @property
    def what(self) -> str:
        return self.name.split()[0]

    @property
    def fault_id(self) -> str:
        return self.name.split()[1]

    def run(self) -> None:
        self.ran, self.result = True, self.step()


class Apart:
    """A runner whose steps begin at once, and end when the test says so, in any order, or never."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.begun: list[Begun] = []
        bench.executor.run_aside(self)

    def __call__(self, name: str, step: Callable[[], Any], then: Callable[[Any, Now], None], now: Now) -> None:
        self.begun.append(Begun(name, step, then, now.boot))

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.begun]

    def finish(self, *names: str) -> list[FaultEvent]:
        """Runs these steps, one after the other; returns what was said because of them."""
        before = len(self._bench.events)
        for name in names:
            found = next(each for each in self.begun if each.name == name)
            if not found.ran:
                found.run()
            self.give(found)
        return self._bench.events[before:]

    def give(self, found: Begun) -> None:
        self.begun.remove(found)
        found.then(found.result, self._bench.now)


def command(kind: CommandKind, wall: float, **fields: Any) -> Command:
    given: dict[str, Any] = {
        "id": fields.pop("id", None) or stable_id(kind, json.dumps(fields, sort_keys=True), wall),
        "time": wall,
        "cluster": CLUSTER,
        "kind": kind,
        "node": NODE,
        "expires": wall + 60,
        **fields,
    }
    given.setdefault("nonce", stable_id("nonce", given["id"], wall))
    return Command(**given)


def inject(wall: float, fault_id: str = "f1", **fields: Any) -> Command:
    given: dict[str, Any] = {
        "id": stable_id("inject", fault_id),
        "fault_id": fault_id,
        "experiment_id": "e1",
        "fault": "fake",
        "entity": f"process/{NODE}/{fault_id}",
        "lease_s": 10.0,
        **fields,
    }
    return command(CommandKind.INJECT, wall, **given)


def signed(what: Command, signer: Signer = CONTROL) -> bytes:
    return signer.sign(what).model_dump_json().encode()
