"""A control plane in one hand: signed commands to agents, and what they tell of their faults."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kill_ground import NODE

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import Command, CommandKind, Role
from gpuchaos_stream.events.envelope import command_record, from_value
from gpuchaos_stream.events.fault import FaultPhase
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.house import House

CLUSTER = "kills"


class Control:
    """Sends to the one agent of the house."""

    def __init__(self, house: House, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._bus = Bus(house.settings, client_id="control")
        self._signer = Signer.load(house.key(Role.CONTROL))
        self._told: list[Any] = []
        runner.run(self._bus.start())
        self._events = runner.run(self._bus.subscribe([topics.FAULTS.name], "earliest"))

    def send(self, kind: CommandKind, **fields: Any) -> None:
        now = time.time()
        made = Command(
            id=uuid.uuid4().hex,
            time=now,
            cluster=CLUSTER,
            node=NODE,
            kind=kind,
            expires=now + 60,
            nonce=uuid.uuid4().hex,
            **fields,
        )
        self._runner.run(self._bus.send(command_record(made, self._signer, source="/test")))

    def undone_is_told(self, fault_id: str, within_s: float = 90.0) -> None:
        """Waits until the agent has told that the fault is gone."""
        deadline = time.monotonic() + within_s
        while not any(e.fault_id == fault_id and e.phase is FaultPhase.UNDONE for e in self._told):
            assert time.monotonic() < deadline, [(e.phase, e.reason) for e in self._told if e.fault_id == fault_id]
            self._told += [from_value(raw.topic, raw.value) for raw in self._runner.run(self._events.batch(0.2))]

    def refusals(self, fault_id: str) -> list[str]:
        """Why the fault was refused, as far as is told."""
        return [str(e.reason) for e in self._told if e.fault_id == fault_id and e.phase is FaultPhase.REFUSED]

    def close(self) -> None:
        self._runner.run(self._events.stop())
        self._runner.run(self._bus.stop())


@contextmanager
def control(house: House) -> Iterator[Control]:
    with asyncio.Runner() as runner:
        made = Control(house, runner)
        try:
            yield made
        finally:
            made.close()
