"""The whole loop without a broker: simulated cluster, detector, control loop, agents, on event time alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sim_help import CONTROL, RING, T0

from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.detect.signals import signal_of
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.codec import unpack
from gpuchaos_stream.events.experiment import ExperimentState, Status
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.events.observation import Tick
from gpuchaos_stream.events.signing import Verifier
from gpuchaos_stream.experiments.client import start_command
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.guard.rules import load as load_rules
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.loop.cluster import ClusterLoop
from gpuchaos_stream.sim.agents import SimulatedAgents
from gpuchaos_stream.sim.cluster import SimulatedCluster
from gpuchaos_stream.sim.organic import Organic
from gpuchaos_stream.sim.script import Failure, Script
from gpuchaos_stream.sim.spec import ClusterSpec


class Whole:
    """Moved forward by hand, four settles a simulated second."""

    def __init__(
        self,
        cluster: str,
        *,
        seed: int = 1,
        rules: Path | None = None,
        failures: tuple[Failure, ...] = (),
        nodes: int = 64,
        **shape: float,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.name = cluster
        self.now = T0
        self.cluster = SimulatedCluster(ClusterSpec(cluster=cluster, nodes=nodes, cells=4, **shape), rng)
        self.agents = SimulatedAgents(self.cluster, Verifier(RING), rng.spawn(1)[0])
        self.organic = Organic(self.cluster, rng.spawn(1)[0], rate=0.0)
        self.script = Script(failures, self.organic, T0)
        self.detector = Detector()
        self.loop = ClusterLoop(cluster, load_rules([rules or shipped_rules()]))
        self.states: dict[str, ExperimentState] = {}
        self.incidents: dict[str, Incident] = {}
        self.anomalies: list[Anomaly] = []
        self.decisions: list[str] = []
        for info in self.cluster.infos(self.now):
            self.loop.feed(info)

    def start(self, plan: Plan) -> str:
        """Starts a plan; its experiment's id."""
        experiment_id = f"{plan.name}-1"
        command = start_command(plan, cluster=self.name, experiment_id=experiment_id, now=self.now)
        self.loop.command(command, now=self.now)
        return experiment_id

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            for _ in range(4):
                self.now += 0.25
                self._settle()
            self._detect()

    def run_until_finished(self, *ids: str, limit_s: float = 120.0) -> list[ExperimentState]:
        end = self.now + limit_s
        while self.now < end and not all(i in self.states and self.states[i].status is Status.FINISHED for i in ids):
            self.run(1)
        return [self.states[i] for i in ids]

    def _detect(self) -> None:
        frames = [unpack(frame.value) for frame in self.cluster.step(self.now)]
        for event in [*self.detector.feed(frames, self.now), *self.detector.tick(self.now)]:
            if isinstance(event, Anomaly):
                self.anomalies.append(event)
            self.loop.feed(event)
        for info in self.cluster.infos(self.now, changed_only=True):
            self.loop.feed(info)

    def _settle(self) -> None:
        self.organic.tick(self.now)
        for event in [*self.agents.tick(self.now), *self.cluster.facts()]:
            self._fault(event)
        self.loop.feed(Tick(id=f"tick-{self.now}", time=self.now, cluster=self.name))
        settled = self.loop.settle(self.now)
        self.decisions += [f"{d.cause}:{d.action}" for d in settled.decisions]
        for command, _ in settled.commands:
            for event in self.agents.command(CONTROL.sign(command), self.now):
                self._fault(event)
        for topic, event, _ in settled.events:
            self._note(topic.name, event)

    def _fault(self, event: FaultEvent) -> None:
        self.script.feed(event)
        self.loop.feed(event)
        if event.phase is FaultPhase.OBSERVED and (signal := signal_of(event)) is not None:
            self.loop.feed(signal)

    def _note(self, topic: str, event: Event) -> None:
        if topic == topics.EXPERIMENTS.name and isinstance(event, ExperimentState):
            self.states[event.id] = event
        elif isinstance(event, Incident):
            self.incidents[event.id] = event
