"""The stages before it for real: simulated frames through the detector, then attribution against the ground truth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from gpuchaos_stream.correlate.correlator import Correlator
from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.detect.signals import signal_of
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.codec import unpack
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin
from gpuchaos_stream.sim.cluster import SimulatedCluster
from gpuchaos_stream.sim.faults import begin
from gpuchaos_stream.sim.organic import Organic
from gpuchaos_stream.sim.spec import ClusterSpec
from gpuchaos_stream.topology.topology import Topology

T0 = 1_700_000_000.0
INJECT = T0 + 90.0
UNDO = INJECT + 20.0
END = INJECT + 60.0


class Run:
    """Two cells of 16 nodes, one fault at `INJECT` that is undone at `UNDO`, and perhaps a real failure beside it."""

    def __init__(
        self,
        fault: str,
        target: str,
        params: Mapping[str, str | float | int | bool | None],
        real: tuple[float, str, str] | None = None,
    ) -> None:
        rng = np.random.default_rng(7)
        self.cluster = SimulatedCluster(ClusterSpec(cluster="test", nodes=32, cells=2), rng)
        self.organic = Organic(self.cluster, rng, rate=0.0)
        if real is not None:
            self.organic.schedule(*real)
        self.topology, self.detector = Topology(), Detector()
        self.correlator = Correlator(self.topology)
        self.fault, self.target, self.params = fault, target, params
        self.seen: dict[str, Anomaly] = {}
        self.correlator.declare("e1", (target,))
        for info in self.cluster.infos(T0):
            self.topology.apply(info)
        for second in range(int(END - T0)):
            self._second(T0 + second)

    def _second(self, now: float) -> None:
        if now == INJECT:
            begun = begin(
                self.cluster.world, self.fault, self.target, self.params, owner="f1", experiment_id="e1", now=now
            )
            for effect in begun.effects:
                self.cluster.world.add(effect)
            self._tell(FaultPhase.INJECTED, now)
            if begun.signal is not None:
                self.cluster.observe(
                    FaultEvent(
                        id="written",
                        time=now,
                        cluster="test",
                        phase=FaultPhase.OBSERVED,
                        fault=begun.signal.fault,
                        node=self.target.split("/")[1],
                        entity=self.target,
                        severity=begun.signal.severity,
                        origin=Origin.PROCESS if begun.signal.marked else Origin.KERNEL,
                        injected_mark=begun.signal.marked,
                        evidence=begun.signal.evidence,
                    )
                )
        if now == UNDO:
            self.cluster.world.remove("f1")
            self._tell(FaultPhase.UNDONE, now)
        self.organic.tick(now)
        for fact in self.cluster.facts():
            signal = signal_of(fact)
            assert signal is not None
            self._feed(signal)
        for event in self.detector.feed([unpack(encoded.value) for encoded in self.cluster.step(now)], now + 0.1):
            if isinstance(event, Anomaly):
                self._feed(event)
        for info in self.cluster.infos(now, changed_only=True):
            self.topology.apply(info)

    def _feed(self, anomaly: Anomaly) -> None:
        self.seen[anomaly.anomaly_id] = anomaly
        self.correlator.feed(anomaly)

    def _tell(self, phase: FaultPhase, now: float) -> None:
        self.correlator.feed(
            FaultEvent(
                id=f"f1-{phase}",
                time=now,
                cluster="test",
                phase=phase,
                fault=self.fault,
                node=self.target.split("/")[1],
                entity=self.target,
                fault_id="f1",
                experiment_id="e1",
            )
        )

    @property
    def charged(self) -> set[tuple[str, str]]:
        return {(each.entity, each.metric) for each in self.correlator.attributed("e1")}

    @property
    def not_charged(self) -> list[str]:
        return [
            f"{each.entity} {each.metric} +{each.start - INJECT:.1f}: {each.sentence}"
            for each in self.correlator.unattributed(0)
        ]


@pytest.mark.parametrize(
    ("fault", "target", "shows"),
    [
        ("process-stop", "process/n003/4101", ("process/n003/4101", "running")),
        ("memory-corruption", "gpu/n003/1", ("gpu/n003/1", "gpu_ecc_contained")),
        ("rdma-link", "port/n003/mlx5_1", ("port/n003/mlx5_1", "port_active")),
        ("numa-misalignment", "process/n003/4101", ("process/n003/4101", "numa_misaligned_ratio")),
        ("network-partition", "node/n003", ("node/n003", "telemetry_stale")),
        ("power-cycle", "node/n003", ("node/n003", "telemetry_stale")),
        ("storage-disconnect", "node/n003", ("job/train-c0-0", "steps_rate")),
        ("service-latency", "node/n003", ("job/train-c0-0", "steps_rate")),
    ],
)
def test_all_that_a_simulated_fault_does_is_charged_to_it(fault: str, target: str, shows: tuple[str, str]) -> None:
    run = Run(fault, target, {})
    assert shows in run.charged
    assert run.not_charged == []


def test_a_spreading_fault_is_counted_node_by_node() -> None:
    run = Run("process-stop", "process/n000/4100", {"spread": 5, "spread_every_s": 2.0})
    radius = run.correlator.blast_radius("e1", END)
    assert (radius.nodes, radius.gpus, radius.jobs, radius.cells) == (5, 5, 0, 0)
    growth = [run.correlator.blast_radius("e1", INJECT + second).nodes for second in range(20)]
    assert growth == sorted(growth)
    assert growth[0] == 0


@pytest.mark.parametrize("victim", ["gpu/n020/2", "gpu/n009/0", "gpu/n001/5"])
def test_a_real_failure_during_an_experiment_is_told_apart_with_all_that_follows(victim: str) -> None:
    # n020: another cell; n009: another job of the same cell; n001: the very job that the experiment stops.
    run = Run("process-stop", "process/n003/4101", {}, real=(INJECT + 4.0, "faulty-gpu", victim))
    assert ("process/n003/4101", "running") in run.charged
    assert (victim, "gpu_lost") not in run.charged
    assert any(each.entity == victim for each in run.correlator.critical_unattributed(INJECT + 10.0))
    if victim != "gpu/n001/5":
        assert all(f"/{victim.split('/')[1]}/" not in entity for entity, _ in run.charged)
