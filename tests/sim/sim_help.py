"""Small clusters and signed commands for the tests of the simulation."""

from __future__ import annotations

import numpy as np

from gpuchaos_stream.events.codec import unpack_full
from gpuchaos_stream.events.command import Command, CommandKind, Role, SignedCommand
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.events.frame import TelemetryFrame
from gpuchaos_stream.events.signing import KeyRing, Signer, Verifier
from gpuchaos_stream.sim.agents import SimulatedAgents
from gpuchaos_stream.sim.cluster import SimulatedCluster
from gpuchaos_stream.sim.spec import ClusterSpec

Scalar = str | float | int | bool

T0 = 1_800_000_000.0

CONTROL = Signer.generate(Role.CONTROL)
OPERATOR = Signer.generate(Role.OPERATOR)
STRANGER = Signer.generate(Role.CONTROL)
RING = KeyRing(keys=(CONTROL.trusted(), OPERATOR.trusted()))


class Lab:
    """A simulated cluster with its agents, moved forward by hand."""

    def __init__(self, seed: int = 1, **sizes: int) -> None:
        rng = np.random.default_rng(seed)
        self.cluster = SimulatedCluster(ClusterSpec(cluster="lab", **{"nodes": 12, "cells": 1, **sizes}), rng)
        self.agents = SimulatedAgents(self.cluster, Verifier(RING), rng.spawn(1)[0])
        self.now = T0
        self.said: list[FaultEvent] = []
        self.facts: list[FaultEvent] = []
        self.frames: dict[str, TelemetryFrame] = {}
        self.run(1)

    def run(self, seconds: float) -> dict[str, TelemetryFrame]:
        """Ticks of the agents four times a second, frames once; the last frames by node."""
        end = self.now + seconds
        while self.now < end:
            for _ in range(4):
                self.now += 0.25
                self.said += self.agents.tick(self.now)
            sent = self.cluster.step(self.now)
            self.facts += self.cluster.facts()
            self.frames = {frame.node: unpack_full(frame.value) for frame in sent}
        return self.frames

    def send(self, signed: SignedCommand) -> list[FaultEvent]:
        answers = self.agents.command(signed, self.now)
        self.said += answers
        return answers

    def inject(self, fault: str, entity: str, *, lease_s: float = 60.0, **params: Scalar) -> str:
        fault_id = f"f-{fault}-{entity.replace('/', '.')}"
        self.send(
            command(
                self.now, CommandKind.INJECT, entity, fault=fault, fault_id=fault_id, lease_s=lease_s, params=params
            )
        )
        return fault_id

    def phases(self, fault_id: str) -> list[str]:
        return [event.phase.value for event in self.said if event.fault_id == fault_id]


def command(
    now: float, kind: CommandKind, entity: str, *, signer: Signer = CONTROL, n: object = 0, **fields: object
) -> SignedCommand:
    """A signed command to the node of `entity`."""
    node = entity.split("/")[1]
    fault_id = fields.get("fault_id")
    body = {
        "id": f"{kind}-{fault_id}-{node}-{n}",
        "time": now,
        "cluster": "lab",
        "kind": kind,
        "expires": now + 60.0,
        "nonce": f"nonce-{kind}-{fault_id}-{node}-{n}",
        "node": node,
        "experiment_id": "exp",
        "entity": entity,
        **fields,
    }
    return signer.sign(Command.model_validate(body))


def value(frame: TelemetryFrame, kind: str, metric: str, device: int = 0) -> float | None:
    """One number of a frame."""
    for group, columns in zip(frame.layout.groups, frame.values, strict=True):
        if group.kind == kind:
            return columns[group.metrics.index(metric)][device]
    raise KeyError(kind)
