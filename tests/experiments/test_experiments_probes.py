"""Probes against real servers: HTTP, a Prometheus that misbehaves, and the real Prometheus."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from experiments_help import plan
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.events.observation import CheckState, ProbeResult
from gpuchaos_stream.experiments.probes import Prober, one_sample


def vector(*values: str) -> bytes:
    result = [{"metric": {"i": str(i)}, "value": [1.0, value]} for i, value in enumerate(values)]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


#: PromQL query → body that the server answers with.
ANSWERS = {
    "one": vector("7"),
    "none": vector(),
    "two": vector("7", "8"),
    "nan": vector("NaN"),
    "inf": vector("+Inf"),
    "word": vector("seven"),
    "scalar": json.dumps({"data": {"resultType": "scalar", "result": [1.0, "7"]}}).encode(),
    "matrix": json.dumps({"data": {"result": [{"metric": {}, "values": [[1.0, "7"]]}]}}).encode(),
    "broken": b"{",
    "empty": b"{}",
}


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/hang":
            self.server.released.wait(5)  # type: ignore[attr-defined]
            return
        if url.path == "/api/v1/query":
            query = parse_qs(url.query)["query"][0]
            if query == "hang":
                self.server.released.wait(5)  # type: ignore[attr-defined]
                return
            body = ANSWERS.get(query)
            self.send_response(200 if body is not None else 503)
            self.end_headers()
            self.wfile.write(body or b"busy")
            return
        self.send_response(int(url.path.strip("/")))
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as running:
        running.released = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.released.set()  # type: ignore[attr-defined]
        running.shutdown()
        thread.join()


async def ask(*checks: dict[str, Any]) -> list[ProbeResult]:
    asked = plan(steady_state={"hold": "5s", "checks": list(checks)})
    async with Prober() as prober:
        return await prober.ask("e1", "c", asked, 1000.0)


def promql(url: str, query: str, **fields: Any) -> dict[str, Any]:
    body = {"url": url, "query": query, "op": ">=", "value": 5, "timeout": "1s"} | fields
    return {"name": "q", "promql": body}


def http(url: str, **fields: Any) -> dict[str, Any]:
    return {"name": "h", "http": {"url": url, "timeout": "1s"} | fields}


@pytest.mark.parametrize(
    ("query", "state"),
    [("one", CheckState.OK), ("scalar", CheckState.OK)]
    + [(q, CheckState.UNKNOWN) for q in ("none", "two", "nan", "inf", "word", "matrix", "broken", "empty", "503")],
)
async def test_one_finite_sample_is_judged_and_anything_else_is_unknown(
    server: str, query: str, state: CheckState
) -> None:
    (result,) = await ask(promql(server, query))
    assert result.state is state, result.detail
    assert (result.value == 7) == (state is CheckState.OK)
    assert bool(result.detail) == (state is CheckState.UNKNOWN)


async def test_a_sample_out_of_bounds_is_bad(server: str) -> None:
    (result,) = await ask(promql(server, "one", op="<"))
    assert (result.state, result.value) == (CheckState.BAD, 7.0)


async def test_a_query_that_does_not_answer_is_unknown_within_its_timeout(server: str) -> None:
    began = time.monotonic()
    results = await ask(promql(server, "hang", timeout="300ms"), http(server + "/hang", timeout="300ms"))
    assert [result.state for result in results] == [CheckState.UNKNOWN] * 2
    assert time.monotonic() - began < 3


async def test_a_server_that_is_not_there_is_unknown() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: refused for sure
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        results = await ask(promql(url, "one"), http(url))
    assert [result.state for result in results] == [CheckState.UNKNOWN] * 2
    assert all(result.detail for result in results)


@pytest.mark.parametrize(
    ("path", "wanted", "state"),
    [
        ("/200", 200, CheckState.OK),
        ("/503", 503, CheckState.OK),
        ("/503", 200, CheckState.BAD),
        ("/302", 200, CheckState.BAD),
    ],
)
async def test_http_is_judged_by_its_status_and_redirects_are_not_followed(
    server: str, path: str, wanted: int, state: CheckState
) -> None:
    (result,) = await ask(http(server + path, status=wanted))
    assert (result.state, result.value) == (state, float(path[1:]))


async def test_results_carry_the_time_of_the_question_and_telemetry_checks_are_not_asked(server: str) -> None:
    telemetry = {"of": "job/x", "metric": "steps_rate", "op": ">=", "value": 1}
    asked = ({"name": "t", "telemetry": telemetry}, http(server + "/200"))
    (result,) = await ask(*asked)
    assert (result.check, result.time, result.experiment_id, result.cluster) == ("h", 1000.0, "e1", "c")
    assert result.id == (await ask(*asked))[0].id


Json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["value", "metric"]), inner),
    max_leaves=8,
)


@given(Json)
def test_no_answer_of_a_server_raises(result: Any) -> None:
    value, problem = one_sample(result)
    assert (value is None) == bool(problem)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed (Debian package `prometheus`)")
    folder = tmp_path_factory.mktemp("prometheus")
    config: Path = folder / "prometheus.yml"
    config.write_text("global: {}\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binary, f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        url = f"http://127.0.0.1:{port}"
        asyncio.run(_ready(url, process))
        yield url
    finally:
        process.terminate()
        process.wait(10)


async def _ready(url: str, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(30), httpx.AsyncClient() as client:
        while process.poll() is None:
            try:
                if (await client.get(f"{url}/-/ready")).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.1)
    pytest.fail("prometheus ended at its start")


@pytest.mark.parametrize(
    ("query", "state"),
    [
        ("vector(7)", CheckState.OK),
        ("7", CheckState.OK),
        ("vector(3)", CheckState.BAD),
        ("vector(7) / vector(0) - vector(7) / vector(0)", CheckState.UNKNOWN),
        ("absent_metric", CheckState.UNKNOWN),
        (
            'label_replace(vector(7), "a", "1", "", "") or label_replace(vector(8), "a", "2", "", "")',
            CheckState.UNKNOWN,
        ),
        ("up[5m]", CheckState.UNKNOWN),
        ("sum(", CheckState.UNKNOWN),
    ],
)
async def test_a_real_prometheus_is_understood(prometheus: str, query: str, state: CheckState) -> None:
    (result,) = await ask(promql(prometheus, query, timeout="10s"))
    assert result.state is state, result.detail
