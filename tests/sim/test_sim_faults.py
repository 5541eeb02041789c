"""Each fault's consequence appears where it must, and nowhere else, and goes away."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sim_help import T0, Lab, command, value

from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.fault import FaultPhase, Origin
from gpuchaos_stream.events.frame import TelemetryFrame
from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.sim.faults import CONSEQUENCES, IMPOSSIBLE, NotPossibleError, begin, victims
from gpuchaos_stream.sim.spec import ClusterSpec
from gpuchaos_stream.sim.world import What

JOB = tuple(f"n{row:03d}" for row in range(8))


def _steps(frames: dict[str, TelemetryFrame], nodes: Sequence[str] = JOB) -> list[float]:
    return [value(frames[node], "process", "steps_rate", gpu) or 0.0 for node in nodes for gpu in range(8)]


def _undo(lab: Lab, fault_id: str, entity: str) -> None:
    lab.send(command(lab.now, CommandKind.UNDO, entity, fault_id=fault_id))


def test_a_stopped_process_holds_every_rank_of_its_job_in_its_collective() -> None:
    lab = Lab()
    fault = lab.inject("process-stop", "process/n002/4103")
    frames = lab.run(4)
    assert value(frames["n002"], "process", "running", 3) == 0
    assert value(frames["n002"], "process", "running", 2) == 1
    assert set(_steps(frames)) == {0.0}
    assert value(frames["n005"], "gpu", "utilization_ratio", 1) > 0.95
    assert value(frames["n005"], "gpu", "power_watts", 1) < 400
    assert value(frames["n002"], "gpu", "power_watts", 3) < 150
    assert value(frames["n005"], "rdma", "tx_bytes_rate", 1) == 0
    assert value(frames["n000"], "process", "progress_age_seconds") > 2
    _undo(lab, fault, "process/n002/4103")
    frames = lab.run(5)
    assert min(_steps(frames)) > 0.8
    assert value(frames["n002"], "process", "running", 3) == 1


def test_another_job_goes_on_while_one_is_held() -> None:
    lab = Lab(nodes=20, spares=2)
    lab.inject("process-stop", "process/n002/4103")
    frames = lab.run(5)
    others = [f"n{row:03d}" for row in range(8, 16)]
    assert min(_steps(frames, others)) > 0.8


def test_a_dead_port_is_down_and_its_job_waits_and_the_kernel_says_so() -> None:
    lab = Lab()
    fault = lab.inject("rdma-link", "port/n001/mlx5_2")
    lab.run(1)
    assert value(lab.frames["n001"], "rdma", "link_downed_rate", 2) in {0.0, 1.0}
    frames = lab.run(3)
    assert value(frames["n001"], "rdma", "port_active", 2) == 0
    assert value(frames["n001"], "rdma", "rate_bits", 2) is None
    assert value(frames["n001"], "rdma", "port_active", 1) == 1
    assert value(frames["n004"], "rdma", "ack_timeout_rate", 2) > 1
    assert value(frames["n004"], "rdma", "ack_timeout_rate", 3) == 0
    assert set(_steps(frames)) == {0.0}
    assert [(fact.fault, fact.origin, fact.injected_mark) for fact in lab.facts] == [
        ("port_down", Origin.KERNEL, False)
    ]
    _undo(lab, fault, "port/n001/mlx5_2")
    frames = lab.run(5)
    assert value(frames["n001"], "rdma", "port_active", 2) == 1
    assert min(_steps(frames)) > 0.8


def test_a_misaligned_rank_is_a_third_slower_than_its_peers_and_slows_the_gang() -> None:
    lab = Lab()
    fault = lab.inject("numa-misalignment", "process/n003/4101")
    frames = lab.run(4)
    assert value(frames["n003"], "process", "step_time_seconds", 1) == pytest.approx(1.3, abs=0.12)
    assert value(frames["n003"], "process", "step_time_seconds", 2) == pytest.approx(1.0, abs=0.1)
    assert value(frames["n003"], "process", "numa_misaligned_ratio", 1) == 1
    assert value(frames["n003"], "numa", "remote_rate") > 30_000
    assert max(_steps(frames)) < 0.9
    _undo(lab, fault, "process/n003/4101")
    frames = lab.run(4)
    assert value(frames["n003"], "process", "numa_misaligned_ratio", 1) == 0
    assert min(_steps(frames)) > 0.85


def test_a_partitioned_node_falls_silent_hears_nothing_and_is_freed_by_its_own_lease() -> None:
    lab = Lab()
    fault = lab.inject("network-partition", "node/n004", lease_s=6.0)
    frames = lab.run(3)
    assert "n004" not in frames
    assert len(frames) == 11
    assert lab.phases(fault) == ["injected"]
    _undo(lab, fault, "node/n004")
    lab.run(1)
    assert lab.phases(fault) == ["injected"]
    frames = lab.run(6)
    assert "n004" in frames
    assert lab.phases(fault) == ["injected", "undone"]
    assert "lease" in lab.said[-1].reason


def test_a_node_without_power_loses_its_job_to_a_spare_and_comes_back_with_a_new_boot() -> None:
    lab = Lab()
    before = lab.frames["n004"].boot
    fault = lab.inject("power-cycle", "node/n004", boot_s=5.0)
    frames = lab.run(20)
    assert "n004" not in frames
    job = lab.cluster.world.jobs[0]
    assert 4 not in job.rows
    assert job.restarts == 1
    moved = {info.node: info.jobs for info in lab.cluster.infos(lab.now, changed_only=True)}
    assert moved["n004"] == ()
    _undo(lab, fault, "node/n004")
    frames = lab.run(8)
    assert frames["n004"].boot != before
    assert "process" not in {group.kind for group in frames["n004"].layout.groups}


def test_a_lost_storage_path_stops_the_job_only_at_its_next_checkpoint() -> None:
    lab = Lab()
    fault = lab.inject("storage-disconnect", "node/n006")
    frames = lab.run(4)
    assert value(frames["n006"], "node", "pressure_io_ratio") > 0.5
    assert min(_steps(frames)) > 0.8
    frames = lab.run(10)
    assert set(_steps(frames)) == {0.0}
    _undo(lab, fault, "node/n006")
    assert min(_steps(lab.run(5))) > 0.8


def test_a_slow_service_slows_the_job_of_its_node() -> None:
    lab = Lab()
    lab.inject("service-latency", "node/n006", slowdown=1.5)
    assert max(_steps(lab.run(4))) < 0.8


def test_a_marked_memory_error_is_said_by_a_process_and_touches_nothing_else() -> None:
    lab = Lab()
    fault = lab.inject("memory-corruption", "gpu/n001/5", xid=48)
    frames = lab.run(5)
    (fact,) = lab.facts
    assert (fact.phase, fact.fault, fact.origin) == (FaultPhase.OBSERVED, "gpu_ecc_dbe", Origin.PROCESS)
    assert fact.injected_mark
    assert fact.evidence["fault_id"] == fault
    assert fact.experiment_id is None
    assert min(_steps(frames)) > 0.8


def test_health_automation_that_believes_a_memory_error_restarts_the_job_from_its_checkpoint() -> None:
    lab = Lab()
    fault = lab.inject("memory-corruption", "gpu/n001/5", remediate=True)
    frames = lab.run(2)
    assert set(_steps(frames)) == {0.0}
    assert value(frames["n001"], "process", "running", 5) == 0
    assert value(frames["n001"], "gpu", "memory_used_bytes", 5) < 2e9
    _undo(lab, fault, "gpu/n001/5")
    frames = lab.run(15)
    assert lab.cluster.world.jobs[0].restarts == 1
    assert min(_steps(frames)) > 0.8


def test_an_injection_that_goes_wrong_reaches_further_nodes_one_by_one_its_job_s_first() -> None:
    lab = Lab()
    fault = lab.inject("process-stop", "process/n002/4100", spread=9, spread_every_s=2.0)
    seen: list[int] = []
    for _ in range(12):
        frames = lab.run(1)
        seen.append(sum(value(frames[node], "process", "running") == 0 for node in JOB))
    assert seen == sorted(seen)
    assert seen[0] <= 1
    assert 5 <= seen[-1] <= 8
    _undo(lab, fault, "process/n002/4100")
    frames = lab.run(5)
    assert sum(value(frames[node], "process", "running") == 0 for node in JOB) == 0
    assert min(_steps(frames)) > 0.8


def test_victims_are_the_job_then_the_domain_the_rack_and_the_cell() -> None:
    lab = Lab(nodes=40, cells=2, job_nodes=4)
    world = lab.cluster.world
    near = victims(world, 5, 39, jobs_only=False)
    assert len(near) == 39
    assert 5 not in near
    assert set(near[:3]) == {4, 6, 7}
    assert all(world.places.sites[row].cell == "c0" for row in near[:19])
    assert all(world.places.sites[row].cell == "c1" for row in near[19:])


def test_truth_names_the_harm_and_ends_with_the_fault() -> None:
    lab = Lab()
    fault = lab.inject("process-stop", "process/n002/4100", spread=1)
    lab.run(2)
    (truth,) = lab.cluster.truth
    assert (truth.id, truth.source, truth.experiment_id, truth.ended) == (fault, "injected", "exp", None)
    harmed = {(harm.entity, harm.metric) for harm in truth.harms}
    assert {("process/n002/4100", "running"), ("job/train-c0-0", "steps_rate")} <= harmed
    assert sum(entity.startswith("process/") and metric == "running" for entity, metric in harmed) == 2
    _undo(lab, fault, "process/n002/4100")
    lab.run(2)
    assert lab.cluster.truth[0].ended is not None


def test_every_fault_of_the_catalogue_is_either_simulated_or_refused_with_its_reason() -> None:
    assert set(CONSEQUENCES) | set(IMPOSSIBLE) == set(FAULTS)
    for name, consequence in CONSEQUENCES.items():
        assert FAULTS[name].targets == (consequence.kind,)


@pytest.mark.parametrize(
    ("fault", "entity", "params", "why"),
    [
        ("database-outage", "node/n000", {}, "no database"),
        ("no-such-fault", "node/n000", {}, "unknown fault"),
        ("process-stop", "process/n999/4100", {}, "no such node"),
        ("process-stop", "process/n000/1", {}, "no such device"),
        ("process-stop", "gpu/n000/1", {}, "is for a process"),
        ("process-stop", "process/n011/4100", {}, "the node is idle"),
        ("memory-corruption", "gpu/n000/0", {"xid": 79}, "no memory error"),
        ("numa-misalignment", "process/n000/4100", {"slowdown": "much"}, "not a number"),
        ("process-stop", "job/train-c0-0", {}, "no such node"),
    ],
)
def test_what_this_cluster_cannot_do_is_refused_with_the_reason(
    fault: str, entity: str, params: dict[str, str | int], why: str
) -> None:
    world = Lab().cluster.world
    with pytest.raises(NotPossibleError, match=why):
        begin(world, fault, entity, params, owner="f", experiment_id="e", now=T0)


def test_two_faults_on_one_job_hold_it_until_both_are_gone() -> None:
    lab = Lab()
    one = lab.inject("process-stop", "process/n000/4100")
    two = lab.inject("process-stop", "process/n001/4100")
    lab.run(3)
    _undo(lab, one, "process/n000/4100")
    assert set(_steps(lab.run(4))) == {0.0}
    _undo(lab, two, "process/n001/4100")
    assert min(_steps(lab.run(5))) > 0.8


def test_a_stall_longer_than_the_collective_s_timeout_ends_the_ranks() -> None:
    lab = Lab()
    object.__setattr__(lab.cluster.spec, "collective_timeout_s", 5.0)
    lab.inject("process-stop", "process/n000/4100")
    frames = lab.run(9)
    assert value(frames["n003"], "process", "running") == 0
    assert lab.cluster.world.active(0, What.STOPPED)


def test_defaults_are_those_of_the_field() -> None:
    spec = ClusterSpec()
    assert (spec.gpus, spec.collective_timeout_s) == (8, 600.0)
