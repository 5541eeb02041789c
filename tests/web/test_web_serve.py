"""`gpuchaos serve` beside a real broker, a worker and a simulated cluster: what it shows, stops, and shows again."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from lab.waiting import until
from web_kit import TOKEN, WHO, write_tokens

from gpuchaos_stream.cli import cli
from gpuchaos_stream.events.command import Role
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.house import READY, House

BEARER = {"Authorization": f"Bearer {TOKEN}"}
#: An experiment that would last for long, on a simulated node, and that nothing but a person ends.
PLAN = """
api_version: gpuchaos/v1
kind: Experiment
name: long-one
description: It lasts until somebody stops it.
owner: tests
fault: {name: memory-corruption, params: {xid: 94}, certifies: [error-detection]}
targets: {entities: [gpu/n001/2]}
duration: 300s
lease: 30s
undo: {method: automatic}
limits: {gpus: 512, nodes: 64, jobs: 8, gpu_seconds: 1000000}
settle: 1s
steady_state:
  hold: 2s
  checks:
    - name: busy
      telemetry: {of: node/n001, metric: gpu.utilization_ratio.mean, op: ">=", value: 0.1}
objectives: {ttd: 60s, ttm: 600s, ttr: 600s}
"""


@contextmanager
def serving(folder: Path, env: dict[str, str], *options: str, name: str = "serve") -> Iterator[tuple[Child, str]]:
    """`gpuchaos serve` as a process, and its address; it has not read anything yet."""
    argv = [sys.executable, "-m", "gpuchaos_stream.cli", "serve", "--port", "0", *options]
    child = Child(name, argv, log_file=folder / f"{name}.log", env=env).start()
    try:
        child.wait_for("serve started", 30)
        line = next(line for line in child.said().splitlines() if "serve started" in line)
        yield child, json.loads(line)["page"].rstrip("/")
    finally:
        child.kill()


def ready(client: httpx.Client, url: str) -> bool:
    return client.get(url + "/readyz").status_code == 200


def shown(client: httpx.Client, api: str) -> dict[str, Any]:
    """The snapshot without what is of its moment and of its server."""
    found: dict[str, Any] = client.get(api).json()
    for name in ("time", "epoch", "sequence", "freshness", "stale_s", "read_only"):
        del found[name]
    del found["map"]["version"]
    for cell in found["map"]["cells"]:
        del cell["values"]
    return found


@pytest.mark.broker
@pytest.mark.timeout(180)
def test_an_experiment_stopped_through_the_api_is_undone_and_a_server_that_starts_then_shows_the_same(
    broker: RunningBroker, tmp_path: Path, unique: str
) -> None:
    (tmp_path / "plan.yaml").write_text(PLAN)
    tokens = write_tokens(tmp_path)
    with (
        House(tmp_path / "house", broker=None, settings=broker.settings) as house,
        httpx.Client(timeout=30) as client,
    ):
        worker = house.worker("worker", "--app-id", unique, "--node", "elsewhere")
        sim = house.sim("--cluster", unique, "--nodes", "16", "--cells", "2")
        env = {**house.env, "GPUCHAOS_CLUSTER": unique}
        options = ("--token-file", str(tokens), "--key", str(house.key(Role.OPERATOR)))
        with serving(tmp_path, env, *options) as (_, url):
            api = f"{url}/api/v1/clusters/{unique}"
            for part in (worker, sim):
                part.wait_for(READY, 60)
            until(lambda: ready(client, url), 60)
            until(live_at(client, api), 60)
            until(lambda: set(client.get(api).json()["map"]["state"]) == {0}, 60)

            run = [sys.executable, "-m", "gpuchaos_stream.cli", "experiment", "run", str(tmp_path / "plan.yaml")]
            runner = Child("run", run, log_file=tmp_path / "run.log", env=env).start()
            try:
                card = until(lambda: active(client, api), 60)
                until(lambda: state_of(client, api, "n001") == "target")

                path = f"{api}/experiments/{card['id']}"
                assert client.post(path + "/stop", json={"reason": "x"}).status_code == 401
                answer = client.post(path + "/stop", json={"reason": "enough of it"}, headers=BEARER)
                assert answer.status_code == 202, answer.text
                assert [sent["kind"] for sent in answer.json()["sent"]] == ["stop", "halt"]
                until(lambda: client.get(path).json()["view"]["undo_confirmed"], 60)
                done = until(lambda: (d := client.get(path).json())["state"]["status"] == "finished" and d, 60)
                assert done["state"]["verdict"] == "stopped"
                assert f"{WHO}: enough of it" in done["state"]["reason"]
            finally:
                runner.kill()

            assert client.post(api + "/breaker/trip", json={"reason": "smoke"}, headers=BEARER).status_code == 202
            until(lambda: client.get(api + "/breaker").json()["breaker"]["tripped"], 30)
            assert client.post(api + "/breaker/reset", json={"reason": "gone"}, headers=BEARER).status_code == 202
            closed = until(lambda: not (b := client.get(api + "/breaker").json()["breaker"])["tripped"] and b, 30)
            assert (closed["reset_by"], closed["reset_reason"]) == (WHO, "gone")

            with serving(tmp_path, env, name="another") as (other, elsewhere):
                copy = f"{elsewhere}/api/v1/clusters/{unique}"
                until(lambda: ready(client, elsewhere), 60)
                until(lambda: client.get(copy).status_code == 200, 30)
                assert client.get(copy).json()["read_only"] is True
                until(lambda: shown(client, copy) == shown(client, api), 30)
                with client.stream("GET", copy + "/events") as stream:
                    lines = stream.iter_lines()
                    until(lambda: next(lines).startswith("event: snapshot"))
                    assert other.stop(20) == 0
                    assert list(lines), "it ends in order, not in the middle of a chunk"
                assert "Traceback" not in other.said()


def state_of(client: httpx.Client, api: str, node: str) -> str:
    shown = client.get(api).json()["map"]
    state: str = shown["states"][shown["state"][shown["nodes"].index(node)]]
    return state


def active(client: httpx.Client, api: str) -> dict[str, Any] | None:
    """The experiment whose faults are there."""
    found: list[dict[str, Any]] = client.get(api + "/experiments?status=active").json()["experiments"]
    return found[0] if found else None


def live_at(client: httpx.Client, api: str) -> Any:
    """Whether the server at `api` hears the worker, and has heard of each node."""
    return lambda: client.get(api).json().get("freshness", {}).get("words") == "live"


def test_a_server_without_a_broker_says_that_it_is_not_ready_and_is_healthy(tmp_path: Path) -> None:
    env = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    with serving(tmp_path, env) as (child, url), httpx.Client(timeout=20) as client:
        assert client.get(url + "/healthz").status_code == 200
        waits = client.get(url + "/readyz")
        assert (waits.status_code, waits.text) == (503, "the topics have not been read yet\n")
        missing = client.get(f"{url}/api/v1/clusters/any").json()
        assert (missing["status"], missing["fix"]) == (404, "the topics have not been read yet: try again in a moment")
        assert child.stop(20) == 0


def refused(*options: str) -> str:
    """What `gpuchaos serve` says on its way to exit status 2."""
    result = CliRunner().invoke(cli, ["serve", *options], catch_exceptions=True)
    text = result.output + (str(result.exception) if result.exception else "")
    assert result.exit_code in (1, 2), text
    return text


def test_bad_options_are_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("GPUCHAOS_KEY", raising=False)
    tokens = str(write_tokens(tmp_path))
    assert "cannot be read" in refused("--token-file", str(tmp_path / "none"))
    assert "the key cannot be read" in refused("--token-file", tokens)
    assert "without --token-file" in refused("--key", str(tmp_path / "key.json"))
    assert "is no address" in refused("--grafana-url", "grafana")
    assert "is not one of" in refused("--log-level", "LOUD")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}: cannot listen there" in refused("--port", str(port))
