"""Events become records and come back; what is not of the contract is refused with the field named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import Severity, entity_node
from gpuchaos_stream.events.envelope import BadMessageError, from_value, partition_for, to_record, traceparent_of
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin
from gpuchaos_stream.events.observation import Tick

FAULT = FaultEvent(
    id="f1",
    time=1000.0,
    cluster="c",
    phase=FaultPhase.OBSERVED,
    fault="gpu_lost",
    node="n1",
    entity="gpu/n1/3",
    severity=Severity.CRITICAL,
    origin=Origin.KERNEL,
    evidence={"xid": 79},
)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_fault_comes_back_equal() -> None:
    assert from_value(topics.FAULTS.name, to_record(FAULT, topics.FAULTS, source="/agent/n1").value) == FAULT


def test_record_is_a_cloud_event_in_binary_mode() -> None:
    record = to_record(FAULT, topics.FAULTS, source="/agent/n1", traceparent=TRACE)
    headers = dict(record.headers)
    assert headers["ce_specversion"] == b"1.0"
    assert headers["ce_id"] == b"f1"
    assert headers["ce_type"] == b"gpuchaos.faultevent.v1"
    assert headers["ce_source"] == b"/agent/n1"
    assert headers["ce_time"] == b"1970-01-01T00:16:40Z"
    assert headers["content-type"] == b"application/json"
    assert traceparent_of(record.headers) == TRACE


def test_unknown_field_of_a_newer_writer_is_tolerated() -> None:
    value = json.dumps(json.loads(FAULT.model_dump_json()) | {"newer": 1}).encode()
    assert from_value(topics.FAULTS.name, value) == FAULT


def test_observation_is_told_by_its_type() -> None:
    tick = Tick(id="t", time=1.0, cluster="c")
    assert from_value(topics.OBSERVATIONS.name, to_record(tick, topics.OBSERVATIONS, source="/worker").value) == tick


def test_observed_fault_with_an_experiment_is_refused() -> None:
    value = json.dumps(json.loads(FAULT.model_dump_json()) | {"experiment_id": "e"}).encode()
    with pytest.raises(BadMessageError, match="attribution is the correlator's work"):
        from_value(topics.FAULTS.name, value)


@pytest.mark.parametrize("topic", [t.name for t in topics.TOPICS if t is not topics.TELEMETRY])
@given(value=st.binary(max_size=80) | st.just(b"[" * 5000) | st.just(b"{}"))
def test_bad_value_is_refused_with_a_reason(topic: str, value: bytes) -> None:
    with pytest.raises(BadMessageError):
        from_value(topic, value)


@given(st.text(min_size=1), st.integers(1, 64))
def test_partition_is_in_range(key: str, partitions: int) -> None:
    assert 0 <= partition_for(key, partitions) < partitions


@pytest.mark.parametrize(
    ("entity", "node"), [("gpu/n1/3", "n1"), ("node/n1", "n1"), ("job/llama", None), ("cell/c1", None)]
)
def test_entity_names_its_node(entity: str, node: str | None) -> None:
    assert entity_node(entity) == node
