"""What can go wrong with a request is answered as the API's description says."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import web_kit
from lab.waiting import until
from web_kit import CLUSTER, TOKEN, Running, running, synthetic_board, write_tokens

from gpuchaos_stream.web import connection, guard, views
from gpuchaos_stream.web.openapi import document
from gpuchaos_stream.web.problems import MEDIA
from gpuchaos_stream.web.site import NotSentError

PATHS = document()["paths"]
BASE = "/api/v1/clusters/{cluster}"
STOP = BASE + "/experiments/{experiment_id}/stop"
TRIP = BASE + "/breaker/trip"
BEARER = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
ORDER = b'{"reason": "x"}'


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(synthetic_board(64, 4), token_file=write_tokens(tmp_path), most_streams=0) as server:
        yield server


def test_every_error_has_the_media_type_and_the_model_that_are_described() -> None:
    for path, operations in PATHS.items():
        for operation in operations.values():
            errors = {code: each for code, each in operation["responses"].items() if code >= "4"}
            assert "421" in errors, path
            for code, each in errors.items():
                assert list(each["content"]) == [MEDIA], (path, code)
                assert each["content"][MEDIA]["schema"]["$ref"].endswith("/Problem"), (path, code)


@pytest.mark.parametrize(
    ("method", "path", "status", "field", "more"),
    [
        ("get", "/api/v1/clusters", 421, "Host", {"headers": {"Host": "elsewhere.example"}}),
        ("get", BASE.replace("{cluster}", "none"), 404, "cluster", {}),
        ("get", BASE + "/nodes/none", 404, "node", {}),
        ("get", BASE + "/experiments/none", 404, "experiment_id", {}),
        ("get", BASE + "/experiments?limit=0", 422, "limit", {}),
        ("get", BASE + "/incidents?open=perhaps", 422, "open", {}),
        ("get", BASE + "/events", 503, None, {}),
        ("post", STOP, 404, "experiment_id", {"content": ORDER, "headers": BEARER}),
        ("post", TRIP, 401, "Authorization", {"json": {"reason": "x"}}),
        ("post", TRIP, 403, "Origin", {"content": ORDER, "headers": BEARER | {"Origin": "http://other.example"}}),
        ("post", TRIP, 415, "Content-Type", {"content": ORDER, "headers": {"Authorization": BEARER["Authorization"]}}),
        ("post", TRIP, 413, "body", {"content": b"x" * 20_000, "headers": BEARER}),
        ("post", TRIP, 400, None, {"content": b"[" * 16_000, "headers": BEARER}),
        ("post", TRIP, 422, "body", {"content": b'{"reason":', "headers": BEARER}),
        ("post", TRIP, 422, "reason", {"content": b'{"reason": ""}', "headers": BEARER}),
    ],
)
def test_an_error_is_one_that_the_description_names(
    server: Running, method: str, path: str, status: int, field: str | None, more: dict[str, object]
) -> None:
    asked = path.replace("{cluster}", CLUSTER).replace("{experiment_id}", "none")
    answer = httpx.request(method, server.url + asked, **more)  # type: ignore[arg-type]
    assert (answer.status_code, answer.headers["content-type"]) == (status, MEDIA), answer.text
    assert views.Problem.model_validate_json(answer.text).field == field
    named = path.partition("?")[0].replace("/none", "/{cluster}" if "{cluster}" not in path else "/{node}")
    named = named if named in PATHS else named.replace("{node}", "{experiment_id}")
    assert str(status) in PATHS[named][method]["responses"], named


@pytest.mark.parametrize("action", ["trip", "reset"])
def test_what_was_not_sent_names_the_command_that_does_the_same(server: Running, action: str) -> None:
    server.board.clusters[CLUSTER].known.breaker = None
    server.hands.fails = NotSentError("no Kafka broker took it within 10 s")
    answer = httpx.post(f"{server.api}/breaker/{action}", content=ORDER, headers=BEARER)
    assert answer.status_code == 503
    assert answer.json()["fix"].startswith(f"gpuchaos breaker {action} does the same")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/"])
def test_a_probe_may_ask_for_the_head_alone(server: Running, path: str) -> None:
    answer = httpx.head(server.url + path)
    assert (answer.status_code, answer.content) == (200, b"")


# -- clients that do not go on -----------------------------------------------------------------------------------


def test_a_body_that_does_not_go_on_is_not_waited_for(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_S", 0.1)
    head = f"POST {TRIP.replace('{cluster}', CLUSTER)} HTTP/1.1\r\nHost: localhost\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in BEARER.items()) + "Content-Length: 15\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(head.encode() + ORDER[:4])
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")
    assert server.hands.calls == []


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHo", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_connection_on_which_no_request_comes_is_closed(
    server: Running, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connection, "WAIT_S", 0.1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        client.sendall(said)
        until(lambda: client.recv(4096) == b"", 4)


def test_a_stream_is_not_closed_for_want_of_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WAIT_S", 0.1)
    with running(synthetic_board(8, 2)) as server, httpx.stream("GET", server.api + "/events", timeout=10) as stream:
        lines = stream.iter_lines()
        until(lambda: next(lines) == "event: pulse", 10)


def test_no_more_streams_are_opened_at_once_than_may_be_open() -> None:
    asked = f"GET /api/v1/clusters/{CLUSTER}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with running(synthetic_board(8, 2), most_streams=3) as server, ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 10)) for _ in range(12)]
        for client in clients:
            client.sendall(asked)
        answers = sorted(client.recv(12) for client in clients)
    assert answers == [b"HTTP/1.1 200"] * 3 + [b"HTTP/1.1 503"] * 9


def test_the_server_ends_without_a_stack_though_a_reader_does_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(web_kit, "GRACE_S", 0)
    with running(synthetic_board(8, 2)) as server, socket.create_connection(("127.0.0.1", server.port)) as client:
        monkeypatch.setattr(server.app.state.site.streams, "close", lambda: None)
        client.sendall(f"GET /api/v1/clusters/{CLUSTER}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(lambda: b"event: snapshot" in client.recv(65536))
        server.stop()
    assert not [record for record in caplog.records if record.exc_info]
