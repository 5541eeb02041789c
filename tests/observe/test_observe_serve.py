"""Health, readiness and metrics as a supervisor sees them: over a socket, with time handed in."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.observe import metrics
from gpuchaos_stream.observe.serve import Heartbeat, StatusServer


@dataclass
class Clock:
    """Time as the test says it is, seconds."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Process:
    """A process with its status page."""

    clock: Clock
    heartbeat: Heartbeat
    not_ready: str | None = None
    server: StatusServer = field(init=False)

    def get(self, path: str) -> tuple[int, str, str]:
        """Status, content type and body."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}{path}", timeout=5) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()


@pytest.fixture
def process() -> Iterator[Process]:
    clock = Clock()
    running = Process(clock, Heartbeat(30.0, clock=clock))
    running.server = StatusServer(
        host="127.0.0.1", port=0, healthy=running.heartbeat.check, ready=lambda: running.not_ready
    )
    yield running
    running.server.close()


def test_a_process_whose_loop_moves_is_healthy(process: Process) -> None:
    for _ in range(5):
        process.clock.now += 29.0
        process.heartbeat.beat()
    assert process.get("/healthz")[::2] == (200, "ok\n")


def test_health_turns_to_503_with_the_reason_when_the_heartbeat_stops(process: Process) -> None:
    process.clock.now += 30.0
    assert process.get("/healthz")[0] == 200, "the limit itself is still in time"
    process.clock.now += 12.5
    status, _, body = process.get("/healthz")
    assert status == 503
    assert "has not moved for 42.5 s" in body


def test_health_comes_back_with_the_next_beat(process: Process) -> None:
    process.clock.now += 100.0
    assert process.get("/healthz")[0] == 503
    process.heartbeat.beat()
    assert process.get("/healthz")[0] == 200


def test_a_process_can_be_healthy_and_not_ready(process: Process) -> None:
    process.not_ready = "2 partitions are not recovered"
    assert process.get("/readyz")[::2] == (503, "2 partitions are not recovered\n")
    assert process.get("/healthz")[0] == 200
    process.not_ready = None
    assert process.get("/readyz")[0] == 200


def test_metrics_are_in_prometheus_text_form_and_count(process: Process) -> None:
    def judged() -> float:
        status, kind, body = process.get("/metrics")
        assert status == 200
        assert kind.startswith("text/plain")
        families = {family.name: family for family in text_string_to_metric_families(body)}
        return next(s.value for s in families["gpuchaos_frames"].samples if s.name == "gpuchaos_frames_total")

    before = judged()
    metrics.FRAMES.inc(3)
    assert judged() == before + 3


def test_who_asks_for_openmetrics_gets_it_with_the_trace_of_a_recovery(process: Process) -> None:
    metrics.RECOVERY.labels("process-stop", "ttr").observe(3.0, exemplar={"trace_id": "ab" * 16})
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    url = f"http://127.0.0.1:{process.server.port}/metrics"
    answer = httpx.get(url, headers={"Accept": accept}, timeout=5)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    assert f'# {{trace_id="{"ab" * 16}"}} 3.0' in answer.text
    assert "# {trace_id" not in process.get("/metrics")[2], "the older form has no place for it"


def test_another_path_is_answered_with_the_known_ones(process: Process) -> None:
    status, _, body = process.get("/")
    assert status == 404
    assert all(path in body for path in ("/metrics", "/livez", "/healthz", "/readyz"))


def loopbacks() -> list[str]:
    """Loopback addresses of this machine; a pod's own may be of IPv6 alone."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return ["127.0.0.1"]
    return ["127.0.0.1", "::1"]


@pytest.mark.parametrize("host", loopbacks())
def test_it_listens_on_the_address_that_it_is_given(host: str) -> None:
    server = StatusServer(host=host, port=0, healthy=lambda: None, ready=lambda: None)
    try:
        shown = f"[{host}]" if ":" in host else host
        assert httpx.get(f"http://{shown}:{server.port}/livez", timeout=5).text == "ok\n"
    finally:
        server.close()


def test_a_closed_page_no_longer_answers() -> None:
    server = StatusServer(host="127.0.0.1", port=0, healthy=lambda: None, ready=lambda: None)
    port = server.port
    server.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5)


def test_a_port_that_is_another_s_is_said_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError) as caught:
            StatusServer(host="127.0.0.1", port=port, healthy=lambda: None, ready=lambda: None)
    said = f"127.0.0.1:{port}: cannot listen there (Address already in use); choose another --status-port"
    assert str(caught.value) == said
    with pytest.raises(UserError, match=r"127\.0\.0\.1:99999: cannot listen there"):
        StatusServer(host="127.0.0.1", port=99999, healthy=lambda: None, ready=lambda: None)
