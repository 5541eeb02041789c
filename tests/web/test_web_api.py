"""The API over a real server: what is read, what the stream sends, what an action answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from lab.waiting import until
from pydantic import TypeAdapter
from web_kit import (
    CLUSTER,
    T0,
    TOKEN,
    WHO,
    Running,
    anomaly,
    breaker,
    experiment,
    incident,
    named,
    place,
    running,
    summary,
    synthetic_board,
    write_tokens,
)

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.experiment import Status
from gpuchaos_stream.web import streams, views
from gpuchaos_stream.web.openapi import document
from gpuchaos_stream.web.problems import MEDIA
from gpuchaos_stream.web.site import NotSentError

ROOT = Path(__file__).resolve().parents[2]
GRID = named(64, 4)
MINE = "rdma-link-down-1a2b"
DONE = "stopped-rank-9f00"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(synthetic_board(64, 4), token_file=write_tokens(tmp_path)) as found:
        yield found


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=20) as found:
        yield found


def events(answer: httpx.Response) -> Iterator[tuple[str, str, Any]]:
    """(id, name, data) of each event of a stream."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {}


def take(stream: Iterator[tuple[str, str, Any]], name: str) -> tuple[str, Any]:
    """Id and data of the next event of that name."""
    return next((number, data) for number, found, data in stream if found == name)


READ: list[tuple[str, type[views.View]]] = [
    ("", views.Snapshot),
    ("/experiments", views.Experiments),
    (f"/experiments/{MINE}", views.ExperimentDetail),
    (f"/experiments/{DONE}/timeline", views.Timeline),
    (f"/nodes/{GRID['c0'][2]}", views.NodeView),
    ("/incidents", views.Incidents),
    ("/breaker", views.BreakerView),
]


def test_every_resource_answers_with_the_model_that_describes_it(server: Running, client: httpx.Client) -> None:
    lines = views.Clusters.model_validate_json(client.get(f"{server.url}/api/v1/clusters").text)
    assert [(line.cluster, line.nodes, line.running, line.unexplained) for line in lines.clusters] == [
        (CLUSTER, 64, 1, 1)
    ]
    for path, model in READ:
        answer = client.get(server.api + path)
        assert answer.status_code == 200, (path, answer.text)
        assert answer.headers["cache-control"] == "no-store"
        strict = TypeAdapter(model)
        found = strict.validate_json(answer.text)
        assert json.loads(strict.dump_json(found)).keys() == answer.json().keys(), path


def test_the_snapshot_shows_states_marks_cards_and_what_nothing_explains(server: Running, client: httpx.Client) -> None:
    shown = views.Snapshot.model_validate_json(client.get(server.api).text)
    by_state: dict[str, list[str]] = {}
    for name, state in zip(shown.map.nodes, shown.map.state, strict=True):
        by_state.setdefault(shown.map.states[state], []).append(name)
    first, last = GRID["c0"], GRID["c3"]
    assert by_state["target"] == first[:2]
    assert by_state["hurt"] == first[2:6]
    assert by_state["unexplained"] == [last[0]]
    assert by_state["silent"] == [last[-1]]
    assert shown.map.marks[2] == views.Marks(rails=("r2",), gpus=("3",))
    assert [(each.id, each.status) for each in shown.experiments] == [(MINE, Status.ACTIVE), (DONE, Status.FINISHED)]
    assert [(level.level, level.hurt, level.limit) for level in shown.experiments[0].levels][:2] == [
        ("gpus", 16, 32),
        ("nodes", 2, 4),
    ]
    assert [each.id for each in shown.incidents] == ["incident-alone"]
    assert (shown.read_only, shown.links.loop) == (False, "/grafana/d/gpuchaos-loop")


def test_a_node_tells_its_place_its_open_anomalies_and_the_faults_on_it(server: Running, client: httpx.Client) -> None:
    hurt = client.get(f"{server.api}/nodes/{GRID['c0'][2]}").json()
    assert (hurt["state"], hurt["info"]["cell"], len(hurt["info"]["gpus"])) == ("hurt", "c0", 8)
    assert {each["metric"] for each in hurt["anomalies"]} == {"tx_bytes_rate", "utilization_ratio"}
    assert {each["experiment_id"] for each in hurt["anomalies"]} == {MINE}
    target = client.get(f"{server.api}/nodes/{GRID['c0'][0]}").json()
    assert [each["experiment_id"] for each in target["faults"]] == [MINE]


def test_lists_are_filtered_and_bounded_and_say_how_many_there_are(server: Running, client: httpx.Client) -> None:
    one = client.get(server.api + "/experiments", params={"limit": 1}).json()
    assert (one["total"], [each["id"] for each in one["experiments"]]) == (2, [MINE])
    done = client.get(server.api + "/experiments?status=finished&status=void").status_code
    assert done == 422
    done = client.get(server.api + "/experiments?status=finished&status=halting").json()
    assert [each["id"] for each in done["experiments"]] == [DONE]
    for query, found in (
        ("", {"incident-alone", "incident-charged"}),
        ("?attributed=true", {"incident-charged"}),
        ("?open=false", set()),
    ):
        assert {each["id"] for each in client.get(server.api + "/incidents" + query).json()["incidents"]} == found


def test_the_explanation_is_the_one_of_the_command_line(server: Running, client: httpx.Client) -> None:
    found = client.get(f"{server.api}/experiments/{DONE}").json()
    assert found["explained"]["format"] == "gpuchaos-explain/1"
    assert found["text"].startswith(f"{DONE}: passed: recovered within its objectives\n")


@pytest.mark.parametrize(
    ("path", "field", "fix"),
    [
        ("/experiments/rdma-link-down-1a2c", "experiment_id", f"did you mean '{MINE}'?"),
        ("/nodes/n06", "node", "did you mean"),
    ],
)
def test_what_is_not_known_is_answered_with_the_nearest_name(
    server: Running, client: httpx.Client, path: str, field: str, fix: str
) -> None:
    answer = client.get(server.api + path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, MEDIA)
    problem = views.Problem.model_validate_json(answer.text)
    assert (problem.field, problem.status) == (field, 404)
    assert fix in (problem.fix or "")


def test_an_unknown_cluster_is_told_the_known_ones(server: Running, client: httpx.Client) -> None:
    problem = client.get(f"{server.url}/api/v1/clusters/sym").json()
    assert (problem["field"], problem["fix"]) == ("cluster", "did you mean 'sim'?")


def test_the_description_of_the_api_is_the_committed_one() -> None:
    committed = json.loads((ROOT / "schema/http/openapi.json").read_text())
    assert document() == committed, "run: make schema"


# -- the stream --------------------------------------------------------------------------------------------------


def test_the_stream_begins_with_a_snapshot_and_goes_on_with_what_changes(server: Running, client: httpx.Client) -> None:
    with client.stream("GET", server.api + "/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events(answer)
        number, name, shown = next(found)
        assert (name, number) == ("snapshot", f"test-{shown['sequence']}")
        views.Snapshot.model_validate(shown)
        server.hear(incident("new", [anomaly(f"gpu/{GRID['c1'][0]}/1", "gpu_lost")]))
        _, nodes = take(found, "nodes")
        assert nodes == {"version": 1, "changes": [[16, 3, {"rails": [], "gpus": ["1"]}]]}
        assert take(found, "incident")[1]["id"] == "new"
        server.hear(experiment(MINE, [], status=Status.RECOVERING, time=T0 + 40), breaker(tripped=True))
        card = views.ExperimentView.model_validate(take(found, "experiment")[1])
        assert (card.id, card.status) == (MINE, Status.RECOVERING)
        assert take(found, "breaker")[1]["tripped"] is True
        server.hear(summary("c2", GRID["c2"], gpu=0.4))
        assert take(found, "cells")[1]["changes"][0][1]["gpu"] == 0.4
        server.hear(place("n900", "c0"))
        assert take(found, "topology")[1] == {"version": 2, "nodes": 65}
        views.Freshness.model_validate(take(found, "pulse")[1])


def test_who_was_away_for_a_moment_gets_what_it_missed_and_no_snapshot(server: Running, client: httpx.Client) -> None:
    with client.stream("GET", server.api + "/events") as answer:
        number, _, shown = next(events(answer))
    ring = server.board.clusters[CLUSTER].ring
    server.hear(incident("new", [anomaly(f"gpu/{GRID['c1'][0]}/1", "gpu_lost")]))
    until(lambda: ring.sequence > shown["sequence"])
    with client.stream("GET", server.api + "/events", headers={"Last-Event-ID": number}) as answer:
        found = events(answer)
        assert [next(found)[1], next(found)[1]] == ["nodes", "incident"]


@pytest.mark.parametrize("last", ["test-999", "another-1", "", "test-", "test--1", "test-١", "x" * 90])
def test_an_id_that_this_server_did_not_give_begins_with_a_snapshot(
    server: Running, client: httpx.Client, last: str
) -> None:
    with client.stream("GET", server.api + "/events", headers={"Last-Event-ID": last.encode()}) as answer:
        assert next(events(answer))[1] == "snapshot"


def test_a_restarted_server_sends_a_snapshot_to_who_knows_the_old_one(server: Running, client: httpx.Client) -> None:
    with client.stream("GET", server.api + "/events") as answer:
        number = next(events(answer))[0]
    server.stop()
    server.board.epoch = "second"
    server.start()
    with client.stream("GET", server.api + "/events", headers={"Last-Event-ID": number}) as answer:
        assert next(events(answer))[0].startswith("second-")


def test_a_reader_that_does_not_read_is_dropped_and_nothing_is_kept_for_it(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SEND_S", 0.5)
    site = server.app.state.site
    with socket.create_connection(("127.0.0.1", server.port)) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.sendall(f"GET /api/v1/clusters/{CLUSTER}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(lambda: site.streams.count == 1)
        fat = [anomaly(f"gpu/{GRID['c1'][0]}/1", f"m{number}", sentence="x" * 20_000) for number in range(20)]
        cluster = server.board.clusters[CLUSTER]
        for number in range(60):
            before = cluster.ring.sequence
            server.hear(incident(f"fat-{number}", fat))
            until(lambda before=before: cluster.ring.sequence > before)
            if site.streams.count == 0:
                break
        until(lambda: site.streams.count == 0)


def test_more_streams_than_are_allowed_are_refused_in_words(tmp_path: Path, client: httpx.Client) -> None:
    with running(synthetic_board(8, 2), most_streams=1) as server:
        with client.stream("GET", server.api + "/events") as answer:
            found = events(answer)
            next(found)
            refused = client.get(server.api + "/events")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert "the most" in refused.json()["detail"]
        until(lambda: server.app.state.site.streams.count == 0)
        with client.stream("GET", server.api + "/events") as answer:
            assert next(events(answer))[1] == "snapshot"


def test_a_board_that_fails_ends_its_streams_and_is_unhealthy(
    server: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(now: float) -> list[Any]:
        raise ValueError("a bug")

    assert client.get(server.url + "/healthz").status_code == 200
    with client.stream("GET", server.api + "/events") as answer:
        found = events(answer)
        next(found)
        monkeypatch.setattr(server.board, "flush", fail)
        list(found)
    unwell = client.get(server.url + "/healthz")
    assert (unwell.status_code, unwell.text) == (503, "publishing has failed\n")
    assert client.get(server.api + "/events").status_code == 503


# -- actions -----------------------------------------------------------------------------------------------------


def test_a_stop_says_what_was_sent_and_where_to_see_whether_it_was_done(server: Running, client: httpx.Client) -> None:
    answer = client.post(f"{server.api}/experiments/{MINE}/stop", json={"reason": " too\nfar "}, headers=BEARER)
    assert answer.status_code == 202
    accepted = views.Accepted.model_validate_json(answer.text)
    assert ([sent.kind for sent in accepted.sent], accepted.already) == (["stop"], False)
    assert client.get(server.url + accepted.watch).json()["state"]["id"] == MINE
    assert server.hands.calls == [("stop", MINE, "too far", WHO)]
    client.post(f"{server.api}/experiments/{MINE}/stop", json={"reason": "again"}, headers=BEARER)
    assert len(server.hands.calls) == 2, "a stop is never held back"


def test_what_is_over_needs_no_stop(server: Running, client: httpx.Client) -> None:
    answer = client.post(f"{server.api}/experiments/{DONE}/stop", json={"reason": "late"}, headers=BEARER)
    assert (answer.status_code, answer.json()["already"], answer.json()["sent"]) == (202, True, [])
    assert server.hands.calls == []


def test_the_breaker_is_tripped_and_reset_and_a_closed_one_is_left_alone(server: Running, client: httpx.Client) -> None:
    for path in ("trip", "reset"):
        answer = client.post(f"{server.api}/breaker/{path}", json={"reason": "smoke"}, headers=BEARER)
        assert (answer.status_code, answer.json()["already"]) == (202, False)
    assert server.hands.calls == [("stop_all", CLUSTER, "smoke", WHO), ("reset", CLUSTER, "smoke", WHO)]
    server.hear(breaker(tripped=False))
    answer = client.post(f"{server.api}/breaker/reset", json={"reason": "twice"}, headers=BEARER)
    assert (answer.json()["already"], len(server.hands.calls)) == (True, 2)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (NotSentError("no broker took it within 10 s"), 503, "within 10 s"),
        (UserError("--reason", "is 501 characters long", "use at most 500"), 422, "501"),
    ],
)
def test_what_could_not_be_sent_is_said(
    server: Running, client: httpx.Client, error: Exception, status: int, said: str
) -> None:
    server.hands.fails = error
    answer = client.post(f"{server.api}/experiments/{MINE}/stop", json={"reason": "x"}, headers=BEARER)
    assert (answer.status_code, answer.headers["content-type"]) == (status, MEDIA)
    assert said in answer.json()["detail"]
