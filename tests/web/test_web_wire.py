"""What is decoded in a hurry says the same as the contract's models, and what is sent on has a bounded wait."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_kit import CLUSTER, breaker, experiment, place, summary

from gpuchaos_stream.events.command import Role
from gpuchaos_stream.events.envelope import BadMessageError
from gpuchaos_stream.events.observation import CheckState, ProbeResult, Tick
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.events.topics import EXPERIMENTS, NODES, OBSERVATIONS
from gpuchaos_stream.stream import hands
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.settings import KafkaSettings
from gpuchaos_stream.web.cells import VALUES
from gpuchaos_stream.web.ring import Ring
from gpuchaos_stream.web.site import NotSentError
from gpuchaos_stream.web.wire import Reader, SameNode, WorkerWord, of_summary

_numbers = st.one_of(st.none(), st.floats(-1e12, 1e12))


@given(
    st.lists(st.integers(0, 40), unique=True, max_size=6),
    st.sets(st.integers(0, 40)),
    st.dictionaries(
        st.sampled_from([*(column for column, _ in VALUES.values()), "node.cpu_busy_ratio.mean"]),
        st.lists(_numbers, max_size=6),
    ),
)
def test_a_summary_says_the_same_in_both_ways(
    nodes: list[int], stale: set[int], columns: dict[str, list[float | None]]
) -> None:
    said = summary("c0", [f"n{i}" for i in nodes], stale=[f"n{i}" for i in stale])
    said = said.model_copy(update={"columns": {name: tuple(values) for name, values in columns.items()}})
    assert Reader().read(OBSERVATIONS.name, said.model_dump_json().encode()) == of_summary(said)


def test_ticks_are_a_workers_word_and_probes_are_no_news() -> None:
    tick = Tick(id="t", time=1.0, cluster=CLUSTER)
    probe = ProbeResult(id="p", time=1.0, cluster=CLUSTER, experiment_id="e", check="c", state=CheckState.OK)
    reader = Reader()
    assert reader.read(OBSERVATIONS.name, tick.model_dump_json().encode()) == WorkerWord(CLUSTER)
    assert reader.read(OBSERVATIONS.name, probe.model_dump_json().encode()) is None


def test_only_a_nodes_news_is_read_by_its_model() -> None:
    reader = Reader()
    first, again = place("n1", "c0"), place("n1", "c0", id="later", time=2_000_000_000.0)
    assert reader.read(NODES.name, first.model_dump_json().encode()) == first
    assert reader.read(NODES.name, again.model_dump_json().encode()) == SameNode(CLUSTER, "n1", again.time, "later")
    moved = place("n1", "c1", id="moved")
    assert reader.read(NODES.name, moved.model_dump_json().encode()) == moved
    # A writer that orders the fields otherwise is understood as well.
    turned = json.dumps(dict(reversed(first.model_dump(mode="json").items()))).encode()
    assert reader.read(NODES.name, turned) == first


@pytest.mark.parametrize("topic", [NODES.name, OBSERVATIONS.name, EXPERIMENTS.name])
@given(
    value=st.one_of(
        st.binary(min_size=1, max_size=60), st.sampled_from([b"[" * 5000, b'{"type":"cell_summary"}', b"1"])
    )
)
def test_what_is_not_of_the_contract_is_a_bad_message(topic: str, value: bytes) -> None:
    with pytest.raises(BadMessageError):
        Reader().read(topic, value)


def test_a_broken_cell_is_a_bad_message() -> None:
    said = json.loads(summary("c0", ["n1"]).model_dump_json())
    said["columns"]["gpu.utilization_ratio.mean"] = ["much"]
    with pytest.raises(BadMessageError):
        Reader().read(OBSERVATIONS.name, json.dumps(said).encode())


async def test_without_a_broker_a_stop_waits_for_one_and_a_reset_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands, "SEND_S", 0.1)
    bus = Bus(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    await bus.start(connect_timeout_s=None)
    acting = hands.OperatorHands(bus, Signer.generate(Role.OPERATOR))
    try:
        with pytest.raises(NotSentError, match="taken back"):
            await acting.reset(CLUSTER, breaker(tripped=True), "over", "oncall")
        with pytest.raises(NotSentError, match="2 of 2 commands"):
            await acting.stop(experiment("e-1", ["gpu/n1/0"]), "enough", "oncall")
        waiting = [item.record.key for item in bus._queue if not item.future.done()]
        assert waiting == [CLUSTER] * 2
    finally:
        await bus.stop(0)


def test_the_ring_forgets_the_oldest_and_says_so() -> None:
    ring = Ring(most_events=3, most_bytes=100)
    for number in range(5):
        ring.add("nodes", b"%d" % number)
    assert [event.data for event in ring.after(2) or ()] == [b"2", b"3", b"4"]
    assert ring.after(1) is None
    assert ring.after(5) == []
    assert ring.after(6) is None
    ring.add("nodes", b"x" * 200)
    assert [event.sequence for event in ring.after(5) or ()] == [6]
    assert ring.after(4) is None
