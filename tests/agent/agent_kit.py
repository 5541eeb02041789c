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
from gpuchaos_agent.inject.base import Evidence, InjectError
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
    """The node itself: what is broken on it survives its agent. `step` may raise to kill or to fail."""

    broken: dict[str, str] = field(default_factory=dict)
    undos: list[str] = field(default_factory=list)
    step: Callable[[str], None] = lambda _name: None
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
        return {"target": target}

    def inject(self, entry: JournalEntry) -> None:
        self.node.step("before inject")
        if not self.node.inert:
            self.node.broken[entry.fault_id] = entry.entity
        self.node.step("after inject")

    def evidence(self, entry: JournalEntry) -> Evidence:
        return Evidence(entry.fault_id in self.node.broken, {"target": entry.payload["target"]})

    def undo(self, entry: JournalEntry) -> None:
        self.node.step("before undo")
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

    def make(self) -> Executor:
        def emit(event: FaultEvent, traceparent: str | None) -> None:
            self.events.append(event)
            self.traces.append(traceparent)

        return Executor(
            cluster=CLUSTER,
            node=NODE,
            boot_id=self.boot_id,
            strategies={"fake": FakeStrategy(self.node)},
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
