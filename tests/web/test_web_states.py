"""What the map says of a target whose fault is gone, and of nodes that have no ports."""

from __future__ import annotations

import json

import pytest
from web_kit import CLUSTER, T0, anomaly, experiment, incident, place

from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.experiment import ExperimentState, Status
from gpuchaos_stream.web.board import Board

CHARGED = incident("own", [anomaly("gpu/n1/1", "utilization_ratio")], experiment="one-1a2b")


def shown(*events: Event) -> dict[str, object]:
    board = Board(epoch="e", watched=False)
    for event in events:
        board.hear(event, T0 + 80, event.time)
    board.flush(T0 + 80)
    found: dict[str, object] = json.loads(board.snapshot(board.clusters[CLUSTER], T0 + 80))["map"]
    return found


def undone(status: Status) -> ExperimentState:
    over = experiment("one-1a2b", ["gpu/n1/0", "gpu/n1/1"], status=Status.FINISHED).faults
    return experiment("one-1a2b", [], status=status, time=T0 + 75, faults=over)


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([undone(Status.RECOVERING), CHARGED], "target"),
        ([experiment("one-1a2b", ["gpu/n1/0"]), CHARGED, undone(Status.RECOVERING)], "target"),
        ([undone(Status.RECOVERING)], "ok"),
        ([undone(Status.RECOVERING), CHARGED, undone(Status.FINISHED).model_copy(update={"time": T0 + 79})], "hurt"),
    ],
)
def test_a_target_is_hurt_by_its_own_experiment_only_when_that_is_finished(events: list[Event], state: str) -> None:
    of = shown(place("n1", "c0"), *events)
    assert [of["states"][number] for number in of["state"]] == [state]  # type: ignore[index, attr-defined]


def test_the_map_says_on_which_rails_each_node_has_a_port() -> None:
    nodes = [place("n1", "c0", rails=2), place("n2", "c0", rails=2), place("n3", "c0", rails=0), place("n4", "c1")]
    of = shown(*nodes)
    assert of["rails"] == [f"r{number}" for number in range(8)]
    assert of["ports"] == [[0, 2, [0, 1]], [2, 3, []], [3, 4, list(range(8))]]
