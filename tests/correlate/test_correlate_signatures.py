"""The table of signatures speaks of things that exist, and the score keeps its promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from correlate_builders import T0, cluster, number
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.correlate import signatures
from gpuchaos_stream.correlate.records import anomaly_record
from gpuchaos_stream.correlate.score import Cause, Config, score, timing
from gpuchaos_stream.correlate.signatures import CLOSENESS, INJECTED, OBSERVED
from gpuchaos_stream.events.metrics import METRICS
from gpuchaos_stream.topology.place import RELATIONS

NAMES = Path(__file__).parents[2] / "agents/gpuchaos_agent/data/fault_names.tsv"
#: Said by the detect stage and by no input.
OF_DETECT = {"device_missing", "telemetry_stale"}


def known_names() -> set[str]:
    lines = NAMES.read_text("utf-8").splitlines()
    facts = {line.split("\t")[0] for line in lines if line and not line.startswith("#")}
    return facts | OF_DETECT | {metric for _, metric in METRICS}


def test_every_name_in_the_table_is_a_metric_or_a_known_fact() -> None:
    for signature in (*INJECTED.values(), *OBSERVED.values()):
        assert {name for name, _ in signature.index} <= known_names(), signature.cause
    assert set(OBSERVED) <= known_names()


def test_every_kind_in_the_table_is_a_kind_of_entity() -> None:
    kinds = {"gpu", "port", "numa", "process", "node", "nvlink", "job", "cell", "rack", "rail", "domain"}
    for signature in (*INJECTED.values(), *OBSERVED.values()):
        assert {kind for _, kind in signature.index} <= kinds, signature.cause


def test_the_faults_of_the_design_each_have_a_signature() -> None:
    assert set(INJECTED) == {
        "process-stop",
        "network-partition",
        "rdma-link",
        "numa-misalignment",
        "memory-corruption",
        "power-cycle",
        "storage-disconnect",
        "database-outage",
        "service-latency",
        "certificate-expiry",
    }


def test_no_injected_fault_is_expected_to_make_the_kernel_speak_of_a_broken_gpu_without_a_mark() -> None:
    for signature in INJECTED.values():
        for (name, _), expected in signature.index.items():
            assert not name.startswith("gpu_") or expected.marked, (signature.cause, name)


def test_each_expectation_passes_the_threshold_at_its_typical_time_by_its_nearest_way() -> None:
    hops = {relation.through: relation.hops for relation in RELATIONS}
    for signature in (*INJECTED.values(), *OBSERVED.values()):
        for key, expected in signature.index.items():
            nearest = CLOSENESS[min(hops[each] for each in expected.through)]
            assert expected.weight * nearest >= Config().threshold, (signature.cause, key)
            assert 0.0 < expected.weight <= 1.0
            assert 0.0 < expected.typical_s <= expected.latest_s, (signature.cause, key)


@given(st.floats(-1e3, 1e4), st.floats(0.1, 600.0), st.floats(0.0, 1800.0), st.floats(0.1, 10.0))
def test_the_time_score_is_within_0_and_1_and_0_outside_its_window(
    delay: float, typical: float, more: float, slack: float
) -> None:
    value = timing(delay, typical, typical + more, slack)
    assert 0.0 <= value <= 1.0
    assert (value == 0.0) == (delay < -slack or delay > typical + more)


@given(st.sampled_from(sorted(INJECTED)), st.sampled_from(sorted(METRICS)), st.floats(-5, 2000), st.integers(0, 7))
def test_a_score_is_within_0_and_1(fault: str, metric: tuple[str, str], delay: float, node: int) -> None:
    topology = cluster()
    kind = {"rdma": "port"}.get(metric[0], metric[0])
    entity = f"node/n{node}" if kind == "node" else f"{kind}/n{node}/0"
    record = anomaly_record(number(entity, metric[1], delay), None)
    assert record is not None
    cause = Cause("f", fault, "gpu/n0/0", topology.place("gpu/n0/0"), T0, None, "e", signatures.injected(fault))
    assert 0.0 <= score(record, topology.place(entity), cause, Config()).total <= 1.0


def test_nearer_is_never_scored_lower() -> None:
    assert list(CLOSENESS) == sorted(CLOSENESS, reverse=True)
    assert max(relation.hops for relation in RELATIONS) == len(CLOSENESS) - 1


@pytest.mark.parametrize("since_gone", [0.0, 10.0])
def test_the_tail_after_an_undo_counts_fully(since_gone: float) -> None:
    topology = cluster()
    record = anomaly_record(number("process/n1/1", "steps_rate", 8.0), None)
    assert record is not None
    place = topology.place("process/n0/100")
    signature = signatures.injected("process-stop")
    there = Cause("f", "process-stop", "process/n0/100", place, T0, None, "e", signature)
    gone = Cause("f", "process-stop", "process/n0/100", place, T0, T0 + 8.0 - since_gone, "e", signature)
    here = topology.place("process/n1/1")
    assert score(record, here, there, Config()).total == score(record, here, gone, Config()).total
