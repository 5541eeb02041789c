from __future__ import annotations

import math

import numpy as np
import pytest
from sim_help import T0, Lab, value

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.codec import unpack, unpack_full
from gpuchaos_stream.events.metrics import METRICS
from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.sim.cluster import SimulatedCluster
from gpuchaos_stream.sim.organic import Organic
from gpuchaos_stream.sim.spec import ClusterSpec


def _frames(seed: int, ticks: int = 5) -> list[bytes]:
    cluster = SimulatedCluster(ClusterSpec(nodes=9, cells=2), np.random.default_rng(seed))
    return [frame.value for tick in range(ticks) for frame in cluster.step(T0 + tick)]


def test_the_same_seed_makes_the_same_frames_and_another_makes_others() -> None:
    assert _frames(7) == _frames(7)
    assert _frames(7) != _frames(8)


def test_every_frame_is_one_that_the_contract_reads_and_every_metric_is_known() -> None:
    for packed in _frames(1, ticks=2):
        frame = unpack_full(packed)
        for group in frame.layout.groups:
            assert all((group.kind, metric) in METRICS for metric in group.metrics)


def test_a_busy_node_sends_some_240_numbers_and_an_idle_one_has_no_processes() -> None:
    lab = Lab()
    busy, idle = lab.frames["n000"], lab.frames["n011"]
    assert 220 <= busy.layout.width <= 260
    assert "process" not in {group.kind for group in idle.layout.groups}
    assert lab.cluster.world.job_at(11) is None


def test_event_time_is_the_broker_s_although_each_node_s_clock_is_off_by_some_milliseconds() -> None:
    cluster = SimulatedCluster(ClusterSpec(nodes=16, cells=1), np.random.default_rng(3))
    frames = [unpack(frame.value) for frame in cluster.step(T0)]
    assert all(math.isclose(frame.event_time, T0, abs_tol=1e-6) for frame in frames)
    assert len({frame.time for frame in frames}) == 16


def test_sequence_numbers_count_the_frames_of_one_boot() -> None:
    cluster = SimulatedCluster(ClusterSpec(nodes=2, cells=1), np.random.default_rng(3))
    frames = [unpack(frame.value) for tick in range(3) for frame in cluster.step(T0 + tick) if frame.node == "n000"]
    assert [frame.seq for frame in frames] == [0, 1, 2]
    assert len({frame.boot for frame in frames}) == 1


def test_a_healthy_job_steps_at_its_rhythm_with_full_gpus() -> None:
    frames = Lab(seed=5).run(20)
    for node in ("n000", "n007"):
        assert value(frames[node], "process", "steps_rate") == pytest.approx(1.0, abs=0.12)
        assert value(frames[node], "gpu", "utilization_ratio") > 0.9
        assert value(frames[node], "gpu", "power_watts") > 500
        assert value(frames[node], "rdma", "tx_bytes_rate") > 15e9


def test_node_infos_tell_the_place_and_the_job_of_every_device() -> None:
    lab = Lab(nodes=32, cells=2)
    infos = {info.node: info for info in lab.cluster.infos(T0)}
    assert len(infos) == 32
    first = infos["n000"]
    assert (first.cell, len(first.gpus), len(first.ports)) == ("c0", 8, 8)
    assert {gpu.job for gpu in first.gpus} == set(first.jobs) == {"train-c0-0"}
    rails = {info.ports[3].rail for info in infos.values() if info.cell == "c0"}
    assert rails == {"c0-r3"}
    assert infos["n016"].cell == "c1"
    assert {*first.faults_possible, *first.faults_impossible} == set(FAULTS), "each is possible, or has its reason"
    assert first.faults_impossible["database-outage"] == "no database is simulated"


def test_after_the_first_call_only_changed_places_are_told() -> None:
    lab = Lab()
    assert len(lab.cluster.infos(T0, changed_only=True)) == 12
    assert lab.cluster.infos(T0 + 1, changed_only=True) == []


@pytest.mark.parametrize("sizes", [{"nodes": 0}, {"nodes": 2, "cells": 3}, {"spares": -1}, {"gpus": 0}])
def test_a_cluster_of_no_size_is_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(UserError):
        ClusterSpec(**sizes)


def test_spares_of_a_cell_stay_idle_and_jobs_never_span_cells() -> None:
    places = SimulatedCluster(ClusterSpec(nodes=64, cells=4), np.random.default_rng(0)).world.places
    used = [row for _, rows in places.jobs for row in rows]
    assert len(used) == len(set(used)) == 56
    for _, rows in places.jobs:
        assert len({places.sites[row].cell for row in rows}) == 1


def test_with_no_failures_there_is_no_truth_and_no_fact() -> None:
    lab = Lab()
    organic = Organic(lab.cluster, np.random.default_rng(0), rate=0.0)
    for tick in range(1000):
        assert organic.tick(T0 + tick) == []
    assert lab.cluster.truth == []
    assert lab.facts == []


def test_a_large_cluster_sends_one_frame_of_its_own_for_each_node() -> None:
    cluster = SimulatedCluster(ClusterSpec(nodes=250, cells=10), np.random.default_rng(0))
    frames = cluster.step(T0)
    assert len({frame.node for frame in frames}) == 250
    assert len({frame.value[-200:] for frame in frames}) == 250
