"""Shared by the experiments' tests: plans, commands, and agents that obey them in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpuchaos_stream.events.base import entity_node, stable_id
from gpuchaos_stream.events.command import Command, CommandKind
from gpuchaos_stream.events.experiment import ExperimentState, Status, Verdict
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.incident import RecoveryOutcome, RecoveryRecord
from gpuchaos_stream.events.observation import CheckState
from gpuchaos_stream.experiments.machine import Machine
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.experiments.triggers import View

EXPERIMENT = "hang-1"
OK = {"pace": CheckState.OK}
BAD = {"pace": CheckState.BAD}


def plan_data(**changes: Any) -> dict[str, Any]:
    """A good plan as a document; `changes` replace its top-level fields."""
    return {
        "api_version": "gpuchaos/v1",
        "kind": "Experiment",
        "name": "hang",
        "description": "a rank hangs",
        "owner": "sre",
        "fault": {"name": "process-stop", "certifies": ["hang-detection"]},
        "targets": {"entities": ["process/n1/10", "process/n2/20"]},
        "duration": "20s",
        "lease": "6s",
        "undo": {"method": "automatic", "deadline": "10s"},
        "limits": {"gpus": 8, "nodes": 1, "jobs": 0, "gpu_seconds": 100},
        "settle": "3s",
        "steady_state": {
            "hold": "5s",
            "checks": [
                {"name": "pace", "telemetry": {"of": "job/llama", "metric": "steps_rate", "op": ">=", "value": 0.5}}
            ],
        },
        "objectives": {"ttd": "5s", "ttm": "30s", "ttr": "40s"},
    } | changes


def plan(**changes: Any) -> Plan:
    return Plan.model_validate(plan_data(**changes))


def published(
    cluster: str, experiment_id: str, status: Status, verdict: Verdict | None = None, **fields: Any
) -> ExperimentState:
    """A state as the control plane publishes it now."""
    return ExperimentState(
        id=experiment_id,
        time=time.time(),
        cluster=cluster,
        name="hang",
        owner="sre",
        status=status,
        verdict=verdict,
        plan=plan().model_dump(mode="json"),
        started=1_700_000_000.0,
        **fields,
    )


def start(experiment_id: str = EXPERIMENT, *, at: float = 0.0, **changes: Any) -> Command:
    return Command(
        id=stable_id("start", experiment_id),
        time=at,
        cluster="c",
        kind=CommandKind.START,
        expires=at + 60,
        nonce="12345678",
        experiment_id=experiment_id,
        plan=plan_data(**changes),
    )


def recovered(**fields: Any) -> RecoveryRecord:
    met = {"ttd": True, "ttm": True, "ttr": True}
    return RecoveryRecord(outcome=RecoveryOutcome.RECOVERED, ttd=1.0, ttm=21.0, ttr=22.0, met=met).model_copy(
        update=fields
    )


def view(experiment_id: str = EXPERIMENT, steady: dict[str, CheckState] | None = None, **fields: Any) -> View:
    return View(steady={experiment_id: OK if steady is None else steady}, **fields)


@dataclass
class Agent:
    """One node's agent: keeps a fault while its lease is renewed, remembers it over a kill, answers everything."""

    node: str
    alive: bool = True
    faults: dict[str, tuple[Command, float]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    injected: list[str] = field(default_factory=list)
    refuse: str = ""
    ineffective: bool = False
    deaf_to_undo: bool = False
    _said: int = 0

    def tick(self, now: float) -> list[FaultEvent]:
        out = []
        for fault_id, (command, expires) in list(self.faults.items()):
            if self.alive and now >= expires:
                del self.faults[fault_id]
                out.append(self.say(command, FaultPhase.UNDONE, now, reason="lease expired"))
        return out

    def restart(self, now: float) -> list[FaultEvent]:
        self.alive = True
        found = [self.say(command, FaultPhase.UNDONE, now, reason="restart") for command, _ in self.faults.values()]
        self.faults.clear()
        return found

    def obey(self, command: Command, now: float) -> list[FaultEvent]:
        if not self.alive:
            return []
        fault_id = command.fault_id or ""
        match command.kind:
            case CommandKind.INJECT:
                return self._inject(command, fault_id, now)
            case CommandKind.RENEW if fault_id in self.faults:
                self.faults[fault_id] = (self.faults[fault_id][0], now + (command.lease_s or 0))
                return [self.say(command, FaultPhase.RENEWED, now)]
            case CommandKind.UNDO if not self.deaf_to_undo:
                self.ended.add(fault_id)
                was_there = self.faults.pop(fault_id, None) is not None
                evidence: dict[str, Any] = {} if was_there else {"was_there": False}
                return [
                    self.say(command, FaultPhase.ACKNOWLEDGED, now),
                    self.say(command, FaultPhase.UNDONE, now, evidence=evidence),
                ]
        return []

    def _inject(self, command: Command, fault_id: str, now: float) -> list[FaultEvent]:
        if self.refuse:
            return [self.say(command, FaultPhase.REFUSED, now, reason=self.refuse)]
        if self.ineffective:
            return [self.say(command, FaultPhase.NOT_EFFECTIVE, now), self.say(command, FaultPhase.UNDONE, now)]
        if now > command.expires or fault_id in self.ended or fault_id in self.faults or fault_id in self.injected:
            return []
        self.faults[fault_id] = (command, now + (command.lease_s or 0))
        self.injected.append(fault_id)
        return [self.say(command, FaultPhase.INJECTED, now)]

    def say(self, command: Command, phase: FaultPhase, now: float, **fields: Any) -> FaultEvent:
        self._said += 1
        return FaultEvent(
            id=f"{self.node}-{self._said}",
            time=now,
            cluster="c",
            phase=phase,
            fault="process-stop",
            node=self.node,
            entity=command.entity or f"node/{self.node}",
            fault_id=command.fault_id,
            experiment_id=command.experiment_id,
            command_id=command.id,
            **fields,
        )


class World:
    """A machine and the agents of its targets, joined by a wire that can be cut."""

    def __init__(self, **changes: Any) -> None:
        self.machine = Machine()
        self.agents = {node: Agent(node) for node in ("n1", "n2")}
        self.now = 0.0
        self.sent: list[Command] = []
        self.cut = False
        self.heard: list[FaultEvent] = []
        self._table: dict[str, bytes] = {}
        self._unsaved: list[Callable[[], object]] = []
        self.view = view()
        self._take(lambda: self.machine.start(start(**changes), 0.0))

    @property
    def state(self) -> ExperimentState:
        state = self.machine.state(EXPERIMENT)
        assert state is not None
        return state

    @property
    def faults(self) -> int:
        return sum(len(agent.faults) for agent in self.agents.values())

    def kinds(self) -> list[CommandKind]:
        return [command.kind for command in self.sent]

    def step(self, seconds: float = 0.25) -> list[Command]:
        """Time passes; agents check their leases; the machine settles, is saved, and its commands arrive."""
        self.now += seconds
        self.hear([event for agent in self.agents.values() for event in agent.tick(self.now)])
        commands = self.machine.settle(self.now, self.view)
        self.save()
        self.sent += commands
        if not self.cut:
            for command in commands:
                self.hear(self.agents[entity_node(command.entity or "") or ""].obey(command, self.now))
        return commands

    def hear(self, events: list[FaultEvent]) -> None:
        self.heard += events
        for event in events:
            self._take(partial(self._feed, event))

    def stop(self) -> None:
        self._take(lambda: self.machine.stop(EXPERIMENT))

    def heal(self) -> None:
        """Every agent runs again, and the wire is whole."""
        self.cut = False
        for agent in self.agents.values():
            if not agent.alive:
                self.hear(agent.restart(self.now))

    def _feed(self, event: FaultEvent) -> None:
        self.machine.feed(event)

    def _take(self, what: Callable[[], object]) -> None:
        self._unsaved.append(what)
        what()

    def until(self, seconds: float) -> None:
        """Steps of a quarter of a second up to `seconds` of the world's clock."""
        while self.now < seconds:
            self.step()

    def save(self) -> None:
        self._unsaved.clear()
        for key, value in self.machine.dirty().items():
            if value is None:
                self._table.pop(key, None)
            else:
                self._table[key] = value

    def crash(self) -> None:
        """The worker is killed; another takes over from the table, and is given again what was not committed."""
        self.machine = Machine()
        self.machine.load(self._table)
        for what in list(self._unsaved):
            what()
