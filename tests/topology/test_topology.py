"""Where things sit, and what is near what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.node import GpuPlace, NodeInfo, PortPlace
from gpuchaos_stream.topology.topology import Topology


def info(node: str, cell: str, job: str | None, *, rack: str = "r0", domain: str = "d0", time: float = 1.0) -> NodeInfo:
    return NodeInfo(
        id=stable_id(node, cell, job, rack, domain, time),
        time=time,
        cluster="test",
        node=node,
        cell=cell,
        rack=rack,
        nvlink_domain=domain,
        gpus=(GpuPlace(index="0", job=job), GpuPlace(index="1", job=job)),
        ports=(PortPlace(name="mlx5_0", rail=f"{cell}-rail0"), PortPlace(name="mlx5_1", rail=f"{cell}-rail1")),
        jobs=(job,) if job else (),
    )


@pytest.fixture
def topology() -> Topology:
    subject = Topology()
    subject.apply(info("a", "c0", "one", rack="r0", domain="d0"))
    subject.apply(info("b", "c0", "two", rack="r0", domain="d0"))
    subject.apply(info("c", "c0", "one", rack="r1", domain="d1"))
    subject.apply(info("d", "c0", "three", rack="r2", domain="d2"))
    subject.apply(info("e", "c1", "four", rack="r0", domain="d3"))
    subject.apply(info("f", "c9", None, rack="r9", domain="d9"))
    return subject


@pytest.mark.parametrize(
    ("one", "other", "hops", "words"),
    [
        ("gpu/a/0", "gpu/a/0", 0, "the same entity"),
        ("gpu/a/0", "node/a", 1, "a device and the node that holds it"),
        ("gpu/a/0", "process/a/77", 2, "on the same node"),
        ("gpu/a/0", "gpu/c/1", 3, "in the same job"),
        ("gpu/a/0", "gpu/b/1", 3, "in the same NVLink domain"),
        ("gpu/a/0", "job/one", 3, "in the same job"),
        ("port/a/mlx5_0", "port/d/mlx5_0", 4, "on the same rail"),
        ("port/a/mlx5_0", "port/d/mlx5_1", 4, "in the same cell"),
        ("port/a/mlx5_0", "rail/c0-rail0", 4, "on the same rail"),
        ("gpu/a/0", "cell/c0", 4, "in the same cell"),
        ("gpu/a/0", "gpu/e/0", 5, "in the same rack"),
        ("gpu/a/0", "gpu/f/0", None, None),
        ("job/one", "job/four", 5, "in the same rack"),
        ("gpu/nowhere/0", "gpu/nowhere/1", 2, "on the same node"),
        ("gpu/nowhere/0", "gpu/a/0", None, None),
    ],
)
def test_distance_counts_hops_and_names_the_relation_both_ways(
    topology: Topology, one: str, other: str, hops: int | None, words: str | None
) -> None:
    assert topology.distance(one, other) == topology.distance(other, one) == hops
    found = topology.relation(one, other)
    assert (found.words if found else None) == words


def test_a_relation_can_be_asked_for_some_ways_alone(topology: Topology) -> None:
    assert topology.relation("gpu/a/0", "gpu/b/0", {"job"}) is None
    found = topology.relation("gpu/a/0", "gpu/b/0", {"cell", "rack"})
    assert found is not None
    assert found.through == "cell"


def test_lookups(topology: Topology) -> None:
    assert (topology.cell("a"), topology.rack("a"), topology.domain("a")) == ("c0", "r0", "d0")
    assert (topology.cell("zz"), topology.rack("zz"), topology.domain("zz")) == (None, None, None)
    assert topology.gpus("a") == ("gpu/a/0", "gpu/a/1")
    assert topology.ports("a") == ("port/a/mlx5_0", "port/a/mlx5_1")
    assert topology.rail("port/a/mlx5_1") == "c0-rail1"
    assert topology.rail("port/a/none") is None
    assert topology.jobs("gpu/a/0") == topology.jobs("process/a/5") == topology.jobs("node/a") == {"one"}
    assert topology.jobs("job/one") == {"one"}
    assert topology.jobs("cell/c0") == {"one", "two", "three"}
    assert topology.nodes_of("job/one") == {"a", "c"}
    assert topology.nodes_of("rack/r0") == {"a", "b", "e"}
    assert topology.nodes_of("rail/c0-rail1") == {"a", "b", "c", "d"}
    assert topology.nodes_of("gpu/a/0") == {"a"}
    assert topology.gpu_count == 12
    assert len(topology.nodes) == 6


def test_a_gpu_that_no_job_uses_has_none_where_its_node_names_the_others(topology: Topology) -> None:
    shared = info("g", "c0", "one")
    idle = shared.model_copy(update={"gpus": (GpuPlace(index="0", job="one"), GpuPlace(index="1"))})
    topology.apply(idle)
    assert topology.jobs("gpu/g/1") == frozenset()
    assert topology.jobs("gpu/g/0") == {"one"}


def test_only_a_change_is_a_change(topology: Topology) -> None:
    version = topology.version
    assert not topology.apply(info("a", "c0", "one", time=31.0))
    assert topology.version == version
    assert topology.apply(info("a", "c0", "two", time=61.0))
    assert topology.version > version
    assert topology.nodes_of("job/one") == {"c"}
    assert topology.nodes_of("job/two") == {"a", "b"}
    assert topology.gpu_count == 12


def test_an_older_word_does_not_undo_a_newer_one(topology: Topology) -> None:
    topology.apply(info("a", "c0", "two", time=61.0))
    topology.apply(info("a", "c0", "one", time=31.0))
    assert topology.jobs("node/a") == {"two"}


def test_a_job_that_left_stays_related_until_it_is_forgotten(topology: Topology) -> None:
    topology.apply(info("a", "c0", "one", time=50.0))
    topology.apply(info("a", "c0", None, time=61.0))
    assert topology.jobs("node/a") == frozenset()
    assert topology.distance("node/a", "job/one") == 3
    topology.forget(50.0)
    assert topology.distance("node/a", "job/one") == 3
    topology.forget(51.0)
    assert topology.distance("node/a", "job/one") == 4  # their cells still meet


words = st.builds(
    info,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["c0", "c1"]),
    st.sampled_from(["one", "two", None]),
    time=st.integers(1, 6).map(float),
)


def answers(topology: Topology) -> dict[str, object]:
    entities = [
        "node/a",
        "node/b",
        "gpu/a/0",
        "port/b/mlx5_0",
        "job/one",
        "job/two",
        "cell/c0",
        "cell/c1",
        "rail/c0-rail0",
    ]
    places = {entity: topology.place(entity) for entity in entities}
    return {**places, "members": {entity: topology.nodes_of(entity) for entity in entities}, "gpus": topology.gpu_count}


@given(st.lists(words, max_size=10).flatmap(lambda said: st.tuples(st.just(said), st.permutations(said + said[:3]))))
def test_the_order_of_words_does_not_matter_and_what_is_saved_is_all(
    said: tuple[Sequence[NodeInfo], Sequence[NodeInfo]],
) -> None:
    one, other, saved = Topology(), Topology(), dict[str, bytes]()
    for each in said[0]:
        one.apply(each)
    for each in said[1]:
        other.apply(each)
        saved.update({key: value for key, value in other.dirty().items() if value is not None})
    again = Topology()
    again.load({**saved, "correlate/horizon": b"1.0"})
    assert answers(one) == answers(other) == answers(again)


def test_dirty_names_only_nodes_that_changed_and_apart_from_them_when_a_node_was_heard(topology: Topology) -> None:
    assert len(topology.dirty()) == 12
    assert not topology.apply(info("a", "c0", "one", time=31.0))
    assert set(topology.dirty()) == {"topology/seen/a"}
    topology.apply(info("a", "c0", "two", time=61.0))
    assert set(topology.dirty()) == {"topology/node/a", "topology/seen/a"}
    topology.apply(info("a", "c0", "one", time=31.0))
    assert topology.dirty() == {}


def test_a_late_word_does_not_win_after_a_restart_over_one_that_was_only_repeated(topology: Topology) -> None:
    topology.apply(info("a", "c0", "one", time=61.0))
    again = Topology()
    again.load({key: value for key, value in topology.dirty().items() if value is not None})
    again.apply(info("a", "c0", "two", time=31.0))
    assert again.jobs("node/a") == {"one"}
