"""Blast radius: what counts as hurt beyond the targets, level by level, now, ever and over time."""

from __future__ import annotations

import pytest
from correlate_builders import T0, correlator, injected, number, undone
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.correlate.correlator import Correlator
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.incident import LEVELS, BlastRadius
from gpuchaos_stream.topology.topology import Topology


def spread(*anomalies: Anomaly, entity: str = "process/n0/100", name: str = "process-stop") -> Correlator:
    subject = correlator()
    subject.declare("e1", (entity,))
    subject.feed(injected(entity=entity, name=name))
    for anomaly in anomalies:
        subject.feed(anomaly)
    return subject


def levels(radius: BlastRadius) -> dict[str, int]:
    return {level: count for level in LEVELS if (count := getattr(radius, level))}


def test_harm_to_the_target_its_node_and_its_job_is_not_spread() -> None:
    subject = spread(
        number("process/n0/100", "running", 1.0),
        number("gpu/n0/3", "utilization_ratio", 2.0),  # its node fails as one
        number("job/alpha", "steps_rate", 3.0),
    )
    assert len(subject.attributed("e1")) == 3
    assert subject.blast_radius("e1", T0 + 10.0) == BlastRadius()


def test_other_nodes_of_the_targets_job_are_spread() -> None:
    subject = spread(number("gpu/n1/0", "utilization_ratio", 2.0), number("gpu/n2/1", "utilization_ratio", 2.0))
    radius = subject.blast_radius("e1", T0 + 10.0)
    # n1 shares the target's rack and domain, n2 does not; all are in its cell and job.
    assert levels(radius) == {"gpus": 2, "nodes": 2, "racks": 1, "nvlink_domains": 1}
    assert radius.entities == ("gpu/n1/0", "gpu/n2/1")


def test_a_hurt_port_counts_its_rail_and_another_cell_and_job_count_where_they_are_left() -> None:
    # The target is on n3 (cell c0, job beta); n4 is beta's other node, in cell c1.
    subject = spread(number("port/n4/mlx5_1", "tx_bytes_rate", 2.0), entity="process/n3/1")
    assert levels(subject.blast_radius("e1", T0 + 10.0)) == {
        "nodes": 1,
        "cells": 1,
        "racks": 1,
        "rails": 1,
        "nvlink_domains": 1,
    }


def test_another_job_that_is_hurt_counts_as_a_job_and_not_as_its_gpus() -> None:
    subject = spread(entity="node/n3", name="database-outage")
    subject.feed(number("job/beta", "steps_rate", 30.0))
    subject.declare("e1", ("node/n6",))  # say that an idle node was the target
    assert levels(subject.blast_radius("e1", T0 + 40.0)) == {"jobs": 1}


def test_hurt_processes_stand_for_gpus_but_not_beside_them_and_not_beyond_what_the_node_has() -> None:
    subject = spread(
        number("process/n1/1", "steps_rate", 2.0),
        number("process/n1/2", "steps_rate", 2.0),
        number("gpu/n1/0", "utilization_ratio", 2.0),
    )
    assert subject.blast_radius("e1", T0 + 10.0).gpus == 2
    for pid in range(3, 12):
        subject.feed(number(f"process/n1/{pid}", "steps_rate", 2.0))
    assert subject.blast_radius("e1", T0 + 10.0).gpus == 4


def test_a_silent_node_is_hurt_with_all_its_gpus_and_unknown() -> None:
    subject = spread(
        number("node/n1", "telemetry_stale", 2.0, severity=Severity.ERROR), entity="node/n1", name="network-partition"
    )
    subject.declare("e1", ("node/n0",))
    radius = subject.blast_radius("e1", T0 + 10.0)
    assert (radius.nodes, radius.gpus, radius.unknown_nodes) == (1, 4, 1)


def test_a_target_whose_telemetry_stopped_is_unknown_whatever_stopped_it() -> None:
    subject = spread(number("node/n0", "telemetry_stale", 2.0, severity=Severity.ERROR))
    assert subject.attributed("e1") == ()
    assert subject.blast_radius("e1", T0 + 10.0).unknown_nodes == 1
    subject.feed(number("node/n0", "telemetry_stale", 2.0, end=11.0, severity=Severity.ERROR))
    assert subject.blast_radius("e1", T0 + 12.0).unknown_nodes == 0


def test_a_silent_cell_makes_its_target_nodes_unknown() -> None:
    subject = spread(number("cell/c0", "telemetry_stale", 2.0, severity=Severity.ERROR))
    assert subject.blast_radius("e1", T0 + 10.0).unknown_nodes == 1


def test_information_hurts_nobody() -> None:
    subject = spread(number("gpu/n1/0", "utilization_ratio", 2.0, severity=Severity.INFO))
    assert subject.blast_radius("e1", T0 + 10.0) == BlastRadius()


def test_what_no_experiment_explains_is_in_no_blast_radius() -> None:
    subject = spread(number("gpu/n5/0", "utilization_ratio", 2.0))
    assert subject.blast_radius("e1", T0 + 10.0) == BlastRadius()
    assert subject.total(T0 + 10.0) == BlastRadius()


def test_gpu_seconds_are_the_integral_over_hurt_gpus_each_counted_once() -> None:
    subject = spread(
        number("gpu/n1/0", "utilization_ratio", 2.0, end=6.0),
        number("gpu/n1/0", "power_watts", 4.0, end=10.0),  # the same GPU: 2…10
        number("gpu/n2/0", "utilization_ratio", 5.0),  # 5…
    )
    assert subject.blast_radius("e1", T0 + 5.0).gpu_seconds == pytest.approx(3.0)
    assert subject.blast_radius("e1", T0 + 12.0).gpu_seconds == pytest.approx(8.0 + 7.0)
    assert subject.blast_radius("e1", T0 + 12.0).gpus_now == 1
    assert subject.blast_radius("e1", T0 + 12.0).gpus == 2
    assert subject.blast_radius("e1", T0 + 5.0).gpus_now == 2


def test_the_target_job_may_be_named_and_then_all_of_its_nodes_are_the_target() -> None:
    subject = spread(number("gpu/n1/0", "utilization_ratio", 2.0))
    subject.declare("e1", ("job/alpha",))
    assert subject.blast_radius("e1", T0 + 10.0) == BlastRadius()


def test_the_total_counts_what_two_experiments_hurt_once_and_leaves_out_those_that_are_over() -> None:
    subject = spread(number("gpu/n1/0", "utilization_ratio", 2.0, end=12.0))
    subject.declare("e2", ("process/n2/1",))
    subject.feed(injected(3.0, fault_id="f2", experiment="e2", entity="process/n2/1"))
    subject.feed(number("gpu/n1/0", "power_watts", 4.0, end=12.0))  # charged to one of the two, the same GPU
    subject.feed(number("gpu/n1/1", "power_watts", 4.0, end=12.0))
    total = subject.total(T0 + 20.0)
    assert (total.gpus, total.nodes) == (2, 1)
    assert total.gpu_seconds == pytest.approx(10.0 + 8.0)
    subject.end("e1", T0 + 15.0)
    subject.end("e2", T0 + 15.0)
    assert subject.total(T0 + 20.0) == BlastRadius()


def test_an_experiment_that_was_never_declared_has_the_entities_of_its_faults_as_targets() -> None:
    subject = correlator()
    subject.feed(injected())
    subject.feed(number("gpu/n0/0", "utilization_ratio", 2.0))
    subject.feed(number("gpu/n1/0", "utilization_ratio", 2.0))
    assert subject.blast_radius("e1", T0 + 5.0).gpus == 1
    assert subject.total(T0 + 5.0).gpus == 1
    subject.feed(undone(6.0))
    assert subject.total(T0 + 7.0).gpus == 0


def test_hurt_processes_of_a_node_that_is_not_known_are_not_left_uncounted() -> None:
    subject = Correlator(Topology())
    subject.declare("e1", ("node/x1",))
    subject.feed(injected(entity="node/x1", name="power-cycle"))
    subject.feed(number("process/x1/7", "running", 2.0))
    subject.declare("e1", ("node/x2",))
    assert subject.blast_radius("e1", T0 + 5.0).gpus == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["gpu/n1/0", "gpu/n1/1", "gpu/n2/0"]), st.integers(0, 40), st.integers(1, 40)),
        max_size=12,
    ),
    st.integers(0, 60),
)
def test_gpu_seconds_agree_with_counting_each_second(harms: list[tuple[str, int, int]], now: int) -> None:
    subject = spread()
    metrics = ("utilization_ratio", "power_watts", "sm_clock_hertz")
    spans: dict[tuple[str, str, int], int] = {}
    for index, (entity, start, length) in enumerate(harms):
        metric = metrics[index % 3]
        subject.feed(number(entity, metric, float(start), end=float(start + length)))
        key = (entity, metric, start)
        spans[key] = max(spans.get(key, 0), length)
    charged = {(each.entity, each.metric, each.start - T0) for each in subject.attributed("e1")}
    assert len(charged) == len(spans)
    expected = sum(
        any(e == entity and start <= second < start + length for (e, _, start), length in spans.items())
        for entity in ("gpu/n1/0", "gpu/n1/1", "gpu/n2/0")
        for second in range(now)
    )
    assert subject.blast_radius("e1", T0 + now).gpu_seconds == pytest.approx(expected)
