from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sim_help import T0, Lab, value

import gpuchaos_agent
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.sim.cluster import SimulatedCluster
from gpuchaos_stream.sim.faults import NotPossibleError
from gpuchaos_stream.sim.organic import CAUSES, LLAMA3_RATE, Organic
from gpuchaos_stream.sim.spec import ClusterSpec


def test_the_table_is_llama_3_s_of_419_interruptions() -> None:
    assert sum(cause.count for cause in CAUSES) == 419
    by_name = {cause.name: cause.count for cause in CAUSES}
    assert (by_name["faulty-gpu"], by_name["hbm3"], by_name["network-switch-cable"]) == (148, 72, 35)
    # 419 failures in 54 days on 16,384 GPUs, 8 a node.
    assert pytest.approx(419 / 54 / (16_384 / 8), rel=0.01) == LLAMA3_RATE


def test_every_fact_has_a_name_that_agents_use() -> None:
    table = Path(gpuchaos_agent.__file__).parent / "data" / "fault_names.tsv"
    known = {line.split("\t")[0] for line in table.read_text().splitlines()}
    assert {cause.fault for cause in CAUSES if cause.fault} <= known


def test_failures_come_at_their_rate_and_in_the_table_s_proportions() -> None:
    cluster = SimulatedCluster(ClusterSpec(nodes=100, cells=4), np.random.default_rng(0))
    organic = Organic(cluster, np.random.default_rng(4), rate=1.0)
    truths = organic.tick(T0) + organic.tick(T0 + 20 * 86_400)
    assert len(truths) == pytest.approx(2000, rel=0.08)
    counts = Counter(truth.fault for truth in truths)
    assert counts["faulty-gpu"] / len(truths) == pytest.approx(148 / 419, abs=0.04)
    assert counts["hbm3"] / len(truths) == pytest.approx(72 / 419, abs=0.04)
    assert {truth.source for truth in truths} == {"organic"}


def test_the_same_seed_has_the_same_failures() -> None:
    def run(seed: int) -> list[str]:
        cluster = SimulatedCluster(ClusterSpec(nodes=10, cells=1), np.random.default_rng(0))
        organic = Organic(cluster, np.random.default_rng(seed), rate=5.0)
        organic.tick(T0)
        return [truth.model_dump_json() for truth in organic.tick(T0 + 86_400)]

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_a_lost_gpu_is_said_by_the_kernel_reads_nothing_and_its_job_moves_to_a_spare() -> None:
    lab = Lab()
    organic = Organic(lab.cluster, np.random.default_rng(0), rate=0.0)
    organic.schedule(lab.now + 2, "faulty-gpu", "gpu/n003/6")
    lab.run(1)
    assert organic.tick(lab.now) == []
    lab.run(1)
    (truth,) = organic.tick(lab.now)
    assert (truth.source, truth.job, truth.experiment_id) == ("organic", "train-c0-0", None)
    frames = lab.run(1)
    (fact,) = lab.facts
    assert (fact.fault, fact.origin, fact.severity, fact.evidence) == (
        "gpu_lost",
        Origin.KERNEL,
        "critical",
        {"xid": 79},
    )
    assert not fact.injected_mark
    assert value(frames["n003"], "gpu", "power_watts", 6) is None
    assert value(frames["n003"], "gpu", "power_watts", 5) is not None
    frames = lab.run(16)
    job = lab.cluster.world.jobs[0]
    assert 3 not in job.rows
    assert job.restarts == 1
    spare = lab.cluster.world.places.sites[job.rows[3]].name
    assert value(frames[spare], "process", "steps_rate") > 0.8


@pytest.mark.parametrize("cause", [cause.name for cause in CAUSES])
def test_every_cause_hurts_somebody_and_the_cluster_lives_on(cause: str) -> None:
    device = {"gpu": "gpu/n001/0", "port": "port/n001/mlx5_0", "node": "node/n001"}
    kind = next(c.device for c in CAUSES if c.name == cause)
    lab = Lab()
    organic = Organic(lab.cluster, np.random.default_rng(0), rate=0.0)
    organic.schedule(lab.now, cause, device[kind])
    (truth,) = organic.tick(lab.now)
    assert truth.harms
    frames = lab.run(25)
    other = value(frames["n005"], "process", "steps_rate")
    assert other is not None
    assert len(frames) >= 11


def test_an_unknown_cause_and_an_unknown_device_are_refused() -> None:
    organic = Organic(Lab().cluster, np.random.default_rng(0))
    with pytest.raises(UserError, match="faulty-gpu"):
        organic.schedule(T0, "faulty-gpus", "gpu/n000/0")
    with pytest.raises(NotPossibleError):
        organic.schedule(T0, "faulty-gpu", "gpu/n000/9")
