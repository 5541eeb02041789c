"""The commands, environments and files of docker-compose.yml, started as processes: they come up, work, and end."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
import yaml
from compose_check import ROOT
from compose_stack import Stack, in_order
from lab.waiting import until

from gpuchaos_stream.stream.brokers import Kind

pytestmark = [pytest.mark.kafka, pytest.mark.broker, pytest.mark.timeout(600)]

#: What Java answers to SIGTERM, however it ends.
_JAVA: Final = 128 + 15
#: End by themselves.
ONE_SHOT: Final = frozenset({"keys", "topics"})
_JOBS: Final = {"gpuchaos-worker", "gpuchaos-notify", "gpuchaos-web", "prometheus", "alertmanager"}


@pytest.fixture(scope="module")
def stack(broker_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All of it, up and healthy; ended at last as `docker compose stop` does it."""
    if broker_kind != "kafka":
        pytest.skip("needs real Apache Kafka (Java and Maven)")
    with Stack(tmp_path_factory.mktemp("stack")) as running:
        for name in in_order(running.services):
            running.start(name)
        for name, service in running.services.items():  # what nobody waited for
            if name in running.children and not service["healthcheck"].get("disable"):
                running.wait(name, "service_healthy")
        until(lambda: "started " in running.children["schedule"].said(), 90)
        yield running
        ended = {name: running.stop(name) for name in reversed(in_order(running.services)) if name not in ONE_SHOT}
        assert ended == {name: _JAVA if name == "kafka" else 0 for name in ended}, "ended in order, each in its time"
        assert re.search(r"is being stopped|finished:", running.children["schedule"].said())


def get(stack: Stack, port: int, path: str) -> Any:
    answer = httpx.get(f"{stack.url(port)}{path}", timeout=10)
    answer.raise_for_status()
    return answer.json()


def test_prometheus_reaches_every_target_and_has_every_rule(stack: Stack) -> None:
    def targets() -> dict[str, str]:
        found = get(stack, 9090, "/api/v1/targets")["data"]["activeTargets"]
        return {target["labels"]["job"]: target["health"] for target in found}

    until(lambda: targets() == dict.fromkeys(_JOBS, "up"), 30)
    wanted = yaml.safe_load((ROOT / "rules/prometheus/gpuchaos.rules.yaml").read_text())["groups"]
    found = get(stack, 9090, "/api/v1/rules")["data"]["groups"]
    assert {group["name"]: len(group["rules"]) for group in found} == {
        group["name"]: len(group["rules"]) for group in wanted
    }
    managers = get(stack, 9090, "/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert [manager["url"] for manager in managers] == [f"{stack.url(9093)}/api/v2/alerts"]


def test_the_keys_are_made_once_and_each_for_its_owner_alone(stack: Stack) -> None:
    def digests() -> dict[str, str]:
        files = [path for path in sorted((stack.folder / "volumes").rglob("*")) if path.is_file() and path in made]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    made = {
        stack.volume("keyring") / "keyring.json": 0o644,
        stack.volume("control-key") / "control.json": 0o600,
        stack.volume("operator-key") / "operator.json": 0o600,
        stack.volume("operator-key") / "tokens": 0o600,
        stack.volume("grafana-admin") / "admin-password": 0o444,
    }
    assert {path: path.stat().st_mode & 0o777 for path in made} == made
    assert len((stack.volume("grafana-admin") / "admin-password").read_text().strip()) >= 32
    assert {entry.name for entry in stack.volume("keyring").iterdir()} == {"keyring.json"}
    before = digests()
    stack.start("keys")
    stack.wait("keys", "service_completed_successfully")
    assert digests() == before


@pytest.mark.soak
def test_an_experiment_of_the_schedule_passes_and_everyone_is_told(stack: Stack) -> None:
    schedule = stack.children["schedule"]
    found = re.search(r"started (\S+)", schedule.said())
    assert found is not None
    name = found[1]
    assert name.startswith("hung-rank-"), "the first file of the folder"
    until(lambda: f"{name} finished:" in schedule.said(), 180)
    assert f"{name} finished:passed" in schedule.said()

    address = f"{stack.url(8080)}/api/v1/clusters/demo/experiments/{name}"
    until(lambda: httpx.get(address, timeout=10).json()["state"]["verdict"] == "passed", 15)
    query = f'/api/v1/query?query=gpuchaos_experiment_info{{experiment_id="{name}",status="finished"}}'
    until(lambda: get(stack, 9090, query)["data"]["result"], 30)
    silences = get(stack, 9093, "/api/v2/silences")
    assert [each for each in silences if name in json.dumps(each)], "notify silenced what the experiment would raise"


def test_the_page_lets_the_holder_of_the_token_in_and_nobody_else(stack: Stack) -> None:
    token = (stack.volume("operator-key") / "tokens").read_text().strip().partition(":")[2]
    address = f"{stack.url(8080)}/api/v1/clusters/demo/breaker/reset"
    body = {"reason": "nothing is tripped"}
    without = httpx.post(address, json=body, timeout=10)
    wrong = httpx.post(address, json=body, headers={"Authorization": "Bearer " + "x" * 32}, timeout=10)
    assert (without.status_code, wrong.status_code) == (401, 401)
    right = httpx.post(address, json=body, headers={"Authorization": f"Bearer {token}"}, timeout=10)
    assert right.status_code not in {401, 403}, right.text
