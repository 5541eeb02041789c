"""The board: what the map says of a node, and that a snapshot and what came after it are the next snapshot."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from web_kit import CLUSTER, T0, anomaly, breaker, experiment, incident, named, place, summary, synthetic_board

from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.experiment import Status, Verdict
from gpuchaos_stream.events.incident import AttributedAnomaly
from gpuchaos_stream.events.observation import Tick
from gpuchaos_stream.web import known as known_module
from gpuchaos_stream.web import states
from gpuchaos_stream.web.board import Board
from gpuchaos_stream.web.cells import UNHEARD_S
from gpuchaos_stream.web.cluster import STALE_S, ClusterBoard
from gpuchaos_stream.web.known import FORGET_S
from gpuchaos_stream.web.layout import column, natural
from gpuchaos_stream.web.views import Snapshot

GRID = named(8, 2)
NODES = [name for names in GRID.values() for name in names]
RUNNING = "one-1a2b"


def board_of(*events: Event, watched: bool = False, now: float = T0 + 30) -> Board:
    board = Board(epoch="e", watched=watched)
    for event in (*places(), *events):
        board.hear(event, now, event.time)
    board.flush(now)
    return board


def places() -> list[Event]:
    return [place(name, cell) for cell, names in GRID.items() for name in names]


def look(board: Board, now: float = T0 + 30) -> Snapshot:
    return Snapshot.model_validate_json(board.snapshot(board.clusters[CLUSTER], now))


def state_of(board: Board, node: str) -> str:
    shown = look(board).map
    return shown.states[shown.state[shown.nodes.index(node)]]


ON_PORT = experiment(RUNNING, [f"port/{NODES[0]}/mlx5_2"])
CHARGED = incident("charged", [anomaly(f"port/{NODES[1]}/mlx5_2", "tx_bytes_rate")], experiment=RUNNING)
CHARGED_ON_TARGET = incident("own", [anomaly(f"gpu/{NODES[0]}/1", "utilization_ratio")], experiment=RUNNING)
ALONE = incident("alone", [anomaly(f"gpu/{NODES[1]}/3", "gpu_lost"), anomaly(f"gpu/{NODES[1]}/3", "xid_79")])
SILENT = summary("c0", GRID["c0"], stale=[NODES[1]])


@pytest.mark.parametrize(
    ("events", "node", "state"),
    [
        ([], 0, "ok"),
        ([ON_PORT], 0, "target"),
        ([ON_PORT, CHARGED], 1, "hurt"),
        ([ON_PORT, CHARGED_ON_TARGET], 0, "target"),
        ([ON_PORT, CHARGED, ALONE], 1, "unexplained"),
        ([ON_PORT, CHARGED, ALONE, SILENT], 1, "silent"),
        ([experiment(RUNNING, [f"gpu/{NODES[0]}/0"], status=Status.FINISHED)], 0, "ok"),
        ([incident("gone", ALONE.anomalies, superseded=True)], 1, "ok"),
        ([incident("over", [anomaly(f"gpu/{NODES[1]}/3", "gpu_lost", end=T0 + 25)], closed=T0 + 25)], 1, "ok"),
        ([incident("quiet", [anomaly(f"node/{NODES[1]}", "telemetry_stale")], experiment=RUNNING)], 1, "silent"),
    ],
)
def test_the_worst_of_what_is_known_of_a_node_is_its_state(events: list[Event], node: int, state: str) -> None:
    assert state_of(board_of(*events), NODES[node]) == state


def test_a_target_hurt_by_another_experiment_is_hurt() -> None:
    other = incident("other", [anomaly(f"node/{NODES[0]}", "pressure")], experiment="two-9f00")
    assert state_of(board_of(ON_PORT, other), NODES[0]) == "hurt"


def test_a_fault_whose_undo_failed_stays_on_the_map_when_its_experiment_is_over() -> None:
    state = experiment(RUNNING, [f"gpu/{NODES[0]}/0"], status=Status.FINISHED, verdict=Verdict.FAILED)
    faults = tuple(fault.model_copy(update={"phase": "undo_failed", "undone": None}) for fault in state.faults)
    assert state_of(board_of(state.model_copy(update={"faults": faults})), NODES[0]) == "target"


def test_every_order_of_the_topics_gives_one_picture() -> None:
    events = [ON_PORT, CHARGED, ALONE, breaker(tripped=True)]
    pictures = set()
    for order in permutations([*events, None]):
        board = Board(epoch="e", watched=False)
        for event in order:
            for each in places() if event is None else [event]:
                board.hear(each, T0 + 30, each.time)
        board.flush(T0 + 30)
        shown = look(board).model_copy(update={"sequence": 0})
        pictures.add(shown.model_dump_json())
    assert len(pictures) == 1


def test_rails_and_gpus_with_an_anomaly_are_marked_under_their_own_names() -> None:
    board = board_of(CHARGED, ALONE)
    shown = look(board).map
    assert shown.rails == tuple(f"r{number}" for number in range(8))
    assert {shown.nodes[number]: (m.rails, m.gpus) for number, m in shown.marks.items()} == {
        NODES[1]: (("r2",), ("3",))
    }


@pytest.mark.parametrize(
    ("rail", "cell", "shown"),
    [("c0-r3", "c0", "r3"), ("leaf-7", "c0", "leaf-7"), ("c0", "c0", "c0"), ("c07", "c0", "c07")],
)
def test_a_rail_that_is_named_after_its_cell_stands_in_a_column_with_its_like(rail: str, cell: str, shown: str) -> None:
    assert column(rail, cell) == shown


def test_names_with_numbers_are_in_the_order_in_which_people_count() -> None:
    assert sorted(["c10", "c2", "c1", "a", "2", "c"], key=natural) == ["2", "a", "c", "c1", "c2", "c10"]


# -- what changes ------------------------------------------------------------------------------------------------

_node = st.sampled_from(NODES)
_harm = st.builds(
    lambda n, entity, end: anomaly(entity.format(n), "gpu_lost", end=end),
    _node,
    st.sampled_from(["gpu/{}/3", "port/{}/mlx5_1", "node/{}", "process/{}/41"]),
    st.sampled_from([None, T0 + 25]),
)
_events = st.one_of(
    st.builds(
        lambda name, nodes, done: experiment(
            name, [f"gpu/{n}/0" for n in nodes], status=Status.FINISHED if done else Status.ACTIVE
        ),
        st.sampled_from(["one-1", "two-2", "three-3"]),
        st.lists(_node, max_size=3),
        st.booleans(),
    ),
    st.builds(
        lambda name, harms, owner, over: incident(
            name, harms, experiment=owner, closed=T0 + 30 if over else None, superseded=over and len(harms) > 1
        ),
        st.sampled_from(["i1", "i2", "i3"]),
        st.lists(_harm, min_size=1, max_size=3),
        st.sampled_from([None, "one-1", "two-2"]),
        st.booleans(),
    ),
    st.builds(
        lambda cell, gone, gpu: summary(cell, GRID[cell], stale=[GRID[cell][i] for i in gone], gpu=gpu),
        st.sampled_from(list(GRID)),
        st.sets(st.integers(0, 3)),
        st.sampled_from([0.2, 0.9, 0.9001]),
    ),
    st.builds(lambda tripped: breaker(tripped=tripped), st.booleans()),
    st.builds(place, st.sampled_from([*NODES, "n900"]), st.sampled_from(["c0", "c1"])),
    st.none(),
)


class Reader:
    """What a page makes of a snapshot and the events after it; where the topology changed it looks anew."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.again()

    def again(self) -> None:
        shown = json.loads(self.board.snapshot(self.board.clusters[CLUSTER], 0.0))
        self.sequence = shown["sequence"]
        self.version = shown["map"]["version"]
        self.state, self.marks = shown["map"]["state"], shown["map"]["marks"]
        self.values = [cell["values"] for cell in shown["map"]["cells"]]
        self.experiments = {each["id"]: each for each in shown["experiments"]}
        self.incidents = {each["id"]: each for each in shown["incidents"]}
        self.breaker = shown["breaker"]

    def catch_up(self, cluster: ClusterBoard) -> None:
        missed = cluster.ring.after(self.sequence)
        assert missed is not None
        for event in missed:
            if event.sequence <= self.sequence:
                continue
            self.sequence = event.sequence
            data = json.loads(event.data)
            getattr(self, f"on_{event.name}")(data)

    def on_topology(self, data: dict[str, Any]) -> None:
        self.again()

    def on_nodes(self, data: dict[str, Any]) -> None:
        assert data["version"] == self.version
        for number, state, marks in data["changes"]:
            self.state[number] = state
            self.marks.pop(str(number), None)
            if marks is not None:
                self.marks[str(number)] = marks

    def on_cells(self, data: dict[str, Any]) -> None:
        for number, values in data["changes"]:
            self.values[number] = values

    def on_experiment(self, data: dict[str, Any]) -> None:
        self.experiments[data["id"]] = data

    def on_incident(self, data: dict[str, Any]) -> None:
        if data["attributed"] or data["superseded"] or data["closed"] is not None:
            self.incidents.pop(data["id"], None)
        else:
            self.incidents[data["id"]] = data

    def on_breaker(self, data: dict[str, Any]) -> None:
        self.breaker = data

    def picture(self) -> tuple[Any, ...]:
        return self.state, self.marks, self.values, self.experiments, self.incidents, self.breaker


@settings(max_examples=60)
@given(st.lists(_events, max_size=30), st.booleans())
def test_a_snapshot_and_the_events_after_it_make_the_next_snapshot(events: list[Event | None], watched: bool) -> None:
    board = board_of(watched=watched)
    cluster = board.clusters[CLUSTER]
    reader = Reader(board)
    now = T0 + 30
    for number, event in enumerate(events):
        now += 1.0
        if event is None:
            board.flush(now)
            reader.catch_up(cluster)
        else:
            later = event.model_copy(update={"time": T0 + 31 + number})
            board.hear(later, now, later.time)
    board.flush(now)
    reader.catch_up(cluster)
    assert reader.picture() == Reader(board).picture()


def latest(events: list[Event]) -> list[Event]:
    """Of each node, cell, experiment and incident the last word."""
    return list({getattr(event, "node", getattr(event, "cell", event.id)): event for event in events}.values())


@settings(max_examples=60)
@given(st.lists(_events, max_size=20))
def test_of_what_was_said_before_nothing_is_left_on_the_map(events: list[Event | None]) -> None:
    board, said = board_of(), []
    for number, event in enumerate(events):
        if event is None:
            board.flush(T0 + 31 + number)
        else:
            said.append(event.model_copy(update={"time": T0 + 31 + number}))
            board.hear(said[-1], T0 + 30, said[-1].time)
    board.flush(T0 + 60)
    assert Reader(board).picture() == Reader(board_of(*latest(said))).picture()


def test_a_node_is_ok_again_when_what_was_wrong_with_it_is_over() -> None:
    board = board_of(ON_PORT, CHARGED, ALONE)
    done = experiment(RUNNING, [f"port/{NODES[0]}/mlx5_2"], status=Status.FINISHED, time=T0 + 80)
    ended = [
        each.model_copy(
            update={"time": T0 + 80, "closed": T0 + 79, "anomalies": tuple(over(a) for a in each.anomalies)}
        )
        for each in (CHARGED, ALONE)
    ]
    for event in (done, *ended):
        board.hear(event, T0 + 80, event.time)
    board.flush(T0 + 80)
    shown = look(board).map
    assert (set(shown.state), shown.marks) == ({states.OK}, {})


def over(each: AttributedAnomaly) -> AttributedAnomaly:
    return each.model_copy(update={"end": T0 + 79})


@settings(max_examples=30)
@given(st.lists(_events, max_size=12))
def test_hearing_everything_twice_changes_nothing(events: list[Event | None]) -> None:
    said = [event for event in events if event is not None]
    board = board_of(*said)
    sequence = board.clusters[CLUSTER].ring.sequence
    for event in latest(said):
        board.hear(event, T0 + 30, event.time)
    board.flush(T0 + 30)
    assert board.clusters[CLUSTER].ring.sequence == sequence


def test_a_burst_of_changes_is_one_event_of_each_kind() -> None:
    board = board_of(ON_PORT)
    cluster = board.clusters[CLUSTER]
    before = cluster.ring.sequence
    for second in range(40, 60):
        state = experiment(RUNNING, [f"port/{name}/mlx5_2" for name in NODES[: second % 8]], time=T0 + second)
        board.hear(state, T0 + second, state.time)
        board.hear(breaker(tripped=second % 2 == 0, time=T0 + second), T0 + second)
    board.flush(T0 + 60)
    assert [event.name for event in cluster.ring.after(before) or ()] == ["nodes", "experiment", "breaker"]


def test_what_did_not_change_is_not_told() -> None:
    board = board_of(ON_PORT, CHARGED)
    again = place(NODES[0], "c0", time=T0 + 60, id="another-id")
    board.hear(again, T0 + 60, again.time)
    assert board.flush(T0 + 60) == []


# -- unknown is unsafe -------------------------------------------------------------------------------------------


def tick(time: float) -> Tick:
    return Tick(id=f"tick-{time}", time=time, cluster=CLUSTER)


def test_a_board_is_stale_until_a_worker_speaks_and_again_when_it_falls_silent() -> None:
    board = board_of(watched=True)
    cluster = board.clusters[CLUSTER]
    assert cluster.freshness(T0 + 31).stale
    board.hear(tick(T0 + 31), T0 + 31)
    fresh = cluster.freshness(T0 + 31 + STALE_S)
    assert (fresh.stale, fresh.stale_s, fresh.words) == (False, STALE_S, "live")
    stale = cluster.freshness(T0 + 32 + STALE_S)
    assert (stale.stale, stale.words) == (True, "no word from the worker for 11 s")


def test_what_kafka_keeps_is_believed_only_when_it_has_been_read_to_its_end() -> None:
    board = Board(epoch="e", whole=False)
    board.hear(Tick(id="t", time=T0 + 31, cluster=CLUSTER), T0 + 31)
    early = board.clusters[CLUSTER].freshness(T0 + 31)
    assert (early.stale, early.words[:13]) == (True, "still reading")
    board.read_whole()
    assert board.clusters[CLUSTER].freshness(T0 + 31).stale, "not before it is published"
    board.flush(T0 + 31)
    assert not board.clusters[CLUSTER].freshness(T0 + 31).stale


def test_a_node_of_which_no_fresh_summary_tells_is_silent() -> None:
    board = board_of(watched=True)
    later = T0 + 31 + UNHEARD_S
    board.hear(summary("c0", GRID["c0"][:-1]), later)
    board.flush(later)
    shown = look(board, later).map
    states_by_node = {name: shown.states[number] for name, number in zip(shown.nodes, shown.state, strict=True)}
    assert {name for name, state in states_by_node.items() if state == "silent"} == {GRID["c0"][-1], *GRID["c1"]}
    board.hear(summary("c1", GRID["c1"]), later)
    board.flush(later)
    assert look(board, later).map.state[4:] == (states.OK,) * 4
    board.flush(later + UNHEARD_S + 3)
    assert set(look(board, later).map.state) == {states.SILENT}


def test_a_silent_node_that_its_detector_forgets_stays_silent() -> None:
    board = board_of(SILENT)
    board.hear(summary("c0", [n for n in GRID["c0"] if n != NODES[1]]), T0 + 31)
    board.flush(T0 + 31)
    assert state_of(board, NODES[1]) == "silent"
    board.hear(summary("c0", GRID["c0"]), T0 + 32)
    board.flush(T0 + 32)
    assert state_of(board, NODES[1]) == "ok"


def test_a_node_that_has_been_gone_for_a_day_is_no_longer_drawn() -> None:
    board = board_of(watched=True)
    later = T0 + 30 + FORGET_S
    board.hear(place(NODES[0], "c0", time=later), later, later)
    board.flush(later + 1)
    assert look(board, later).map.nodes == (NODES[0],)


# -- bounds ------------------------------------------------------------------------------------------------------


def test_of_finished_experiments_and_closed_incidents_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MOST_FINISHED", 50), ("MOST_CLOSED", 40), ("_SLACK", 10)):
        monkeypatch.setattr(known_module, name, most)
    board = board_of()
    known = board.clusters[CLUSTER].known
    for number in range(100):
        done = experiment(f"e-{number}", [], status=Status.FINISHED, finished=T0 + number)
        board.hear(done, T0 + 30, done.time)
    for number in range(100):
        over = incident(f"i-{number}", [anomaly("gpu/n000/0", "gpu_lost", end=T0)], closed=T0, time=T0 + number)
        board.hear(over, T0 + 30, over.time)
    board.flush(T0 + 30)
    assert 50 <= len(known.experiments) <= 60
    assert {f"e-{number}" for number in range(50, 100)} <= known.experiments.keys()
    assert 40 <= len(known.incidents) <= 50
    assert {f"i-{number}" for number in range(60, 100)} <= known.incidents.keys()
    assert len(look(board).experiments) == 20


def test_a_snapshot_of_12500_nodes_is_under_300_kilobytes() -> None:
    board = synthetic_board()
    data = board.snapshot(board.clusters[CLUSTER], T0 + 30)
    assert len(Snapshot.model_validate_json(data).map.nodes) == 12_500
    assert len(data) < 300_000
