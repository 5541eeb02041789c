"""The age of each node's telemetry."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.correlate.freshness import Freshness
from gpuchaos_stream.events.observation import CellSummary, NodeSeen


def summary(cell: str, time: float, **last: float) -> CellSummary:
    nodes = {node: NodeSeen(last=at) for node, at in last.items()}
    return CellSummary(id=f"{cell}{time}", time=time, cluster="test", cell=cell, nodes=nodes, order=(), columns={})


def test_a_node_that_was_never_heard_is_infinitely_old_and_stale() -> None:
    subject = Freshness()
    assert subject.age("n1", 5.0) == math.inf
    assert subject.stale(["n1"], 5.0, 1e9) == ("n1",)


def test_age_is_the_time_since_the_last_frame() -> None:
    subject = Freshness()
    subject.feed(summary("c0", 100.0, n1=99.5, n2=90.0))
    assert subject.age("n1", 100.0) == 0.5
    assert subject.stale(["n2", "n1", "n3"], 100.0, 3.0) == ("n2", "n3")


def test_a_frame_from_the_future_is_not_younger_than_now() -> None:
    subject = Freshness()
    subject.feed(summary("c0", 100.0, n1=101.0))
    assert subject.age("n1", 100.0) == 0.0


@given(st.permutations([(100.0, 99.0), (101.0, 100.5), (102.0, 100.5), (103.0, 98.0)]))
def test_the_order_of_summaries_does_not_matter(order: list[tuple[float, float]]) -> None:
    subject = Freshness()
    for time, last in order:
        subject.feed(summary("c0", time, n1=last))
    assert subject.age("n1", 104.0) == 3.5


def test_it_survives_a_restart_and_saves_only_cells_that_changed() -> None:
    subject = Freshness()
    subject.feed(summary("c0", 100.0, n1=99.0))
    subject.feed(summary("c1", 100.0, n2=99.0))
    saved = {key: value for key, value in subject.dirty().items() if value is not None}
    subject.feed(summary("c0", 100.0, n1=99.0))
    assert subject.dirty() == {}
    again = Freshness()
    again.load({**saved, "topology/n1": b"{}"})
    assert again.age("n1", 100.0) == 1.0
    again.feed(summary("c1", 101.0, n2=100.0))
    assert set(again.dirty()) == {"freshness/c1"}


def test_a_node_that_moved_to_another_cell_has_the_age_of_its_latest_frame() -> None:
    subject = Freshness()
    subject.feed(summary("c1", 105.0, n1=104.0))
    subject.feed(summary("c0", 100.0, n1=99.0))
    assert subject.age("n1", 105.0) == 1.0


def test_a_forgotten_node_is_unknown() -> None:
    subject = Freshness()
    subject.feed(summary("c0", 100.0, n1=99.0))
    subject.dirty()
    subject.forget(100.0)
    assert subject.age("n1", 100.0) == math.inf
    assert subject.dirty() == {"freshness/c0": None}
