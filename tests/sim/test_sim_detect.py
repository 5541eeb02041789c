"""The simulation against the detector: a healthy cluster is healthy, and what is hurt is found and nobody else."""

from __future__ import annotations

import pytest
from sim_help import Lab, Scalar, command

from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyPhase
from gpuchaos_stream.events.codec import unpack
from gpuchaos_stream.events.command import CommandKind


class Watched(Lab):
    """A lab whose frames go through a detector as well."""

    def __init__(self, seed: int, **sizes: int) -> None:
        self.detector = Detector()
        self.anomalies: list[Anomaly] = []
        super().__init__(seed, **sizes)

    def watch(self, seconds: int) -> None:
        for _ in range(seconds):
            for _ in range(4):
                self.now += 0.25
                self.said += self.agents.tick(self.now)
            frames = [unpack(frame.value) for frame in self.cluster.step(self.now)]
            found = self.detector.feed(frames, self.now)
            self.anomalies += [event for event in found if isinstance(event, Anomaly)]

    def of_phase(self, phase: AnomalyPhase) -> set[tuple[str, str]]:
        return {(a.entity, a.metric) for a in self.anomalies if a.phase is phase}


@pytest.mark.parametrize("seed", [1, 2])
def test_ten_healthy_minutes_of_64_nodes_raise_nothing(seed: int) -> None:
    lab = Watched(seed, nodes=64, cells=4)
    lab.watch(600)
    assert lab.anomalies == []


@pytest.mark.parametrize(
    ("fault", "entity", "params"),
    [
        ("process-stop", "process/n002/4103", {}),
        ("process-stop", "process/n002/4103", {"spread": 3}),
        ("rdma-link", "port/n001/mlx5_2", {}),
        ("numa-misalignment", "process/n003/4101", {}),
        ("memory-corruption", "gpu/n001/5", {"remediate": True}),
        ("power-cycle", "node/n004", {"boot_s": 5}),
        ("storage-disconnect", "node/n006", {}),
        ("service-latency", "node/n004", {"slowdown": 1.3}),
    ],
)
def test_what_truly_was_hurt_is_found_the_other_job_is_not_and_all_of_it_ends(
    fault: str, entity: str, params: dict[str, Scalar]
) -> None:
    lab = Watched(4, nodes=20)
    lab.watch(40)
    fault_id = lab.inject(fault, entity, lease_s=500.0, **params)
    lab.watch(20)
    lab.send(command(lab.now, CommandKind.UNDO, entity, fault_id=fault_id))
    lab.watch(40)
    (truth,) = lab.cluster.truth
    opened = lab.of_phase(AnomalyPhase.OPENED)
    # The signal of a memory-corruption is a fact of the kernel log: the detector of numbers cannot see it.
    wanted = {(h.entity, h.metric) for h in truth.harms if not h.metric.startswith("gpu_") and h.metric != "port_down"}
    assert wanted <= opened
    others = {f"n{row:03d}" for row in range(8, 20)}
    assert not [found for found in opened if found[0] == "job/train-c0-1" or found[0].split("/")[1] in others]
    assert lab.of_phase(AnomalyPhase.CLOSED) == opened
    assert lab.detector.open_anomalies == 0
