"""On a real Alertmanager: alerts come, stay, and go once; an experiment silences its own harm and no abort signal."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab.waiting import until
from notify_cases import Seen, Server, confirmed, experiment, halted, hear, incident, opened, serving

from gpuchaos_stream.notify.delivery import Sender
from gpuchaos_stream.notify.desk import Desk

PROGRAM = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Alertmanager (prometheus-alertmanager): run `make tools`")

RULES = Path(__file__).resolve().parents[2] / "rules/prometheus/gpuchaos.rules.yaml"
#: The tests' receiver renews so often; Alertmanager ends what was not renewed four times.
RENEW_S = 2.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  (ours)
        return json.load(answer)


def post(url: str, labels: dict[str, str]) -> None:
    content = json.dumps([{"labels": labels}]).encode()
    asked = urllib.request.Request(url, content, {"Content-Type": "application/json"})  # noqa: S310  (ours)
    urllib.request.urlopen(asked, timeout=5).close()  # noqa: S310


@pytest.fixture(scope="module")
def receiving() -> Iterator[Server]:
    """Whom Alertmanager tells."""
    with serving(Server()) as server:
        yield server


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory, receiving: Server) -> Iterator[str]:
    """Its address."""
    folder = tmp_path_factory.mktemp("alertmanager")
    config = folder / "alertmanager.yml"
    config.write_text(
        "route: {receiver: tests, group_by: ['...'], group_wait: 100ms, group_interval: 200ms, repeat_interval: 1h}\n"
        f"receivers: [{{name: tests, webhook_configs: [{{url: '{receiving.url}', send_resolved: true}}]}}]\n"
    )
    url = f"http://127.0.0.1:{free_port()}"
    program = subprocess.Popen(
        [
            str(PROGRAM),
            f"--config.file={config}",
            f"--storage.path={folder}",
            f"--web.listen-address={url.removeprefix('http://')}",
            "--cluster.listen-address=",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def ready() -> bool:
            try:
                return bool(get(f"{url}/api/v2/status"))
            except OSError:
                return False

        until(ready, 15.0)
        yield url
    finally:
        program.kill()
        program.wait()


def shipped_labels(alert: str) -> dict[str, str]:
    """The labels that the shipped rule gives that alert; none where there is no such rule."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return next((rule["labels"] for rule in rules if rule.get("alert") == alert), {})


def it(url: str) -> str:
    return (
        f"  - {{name: it, type: alertmanager, url: '{url}', allow_private: true, renew: {RENEW_S:g}s, silence: true}}"
    )


def alerts(url: str, cluster: str, name: str) -> list[Any]:
    """The alerts of that cluster and name that Alertmanager holds."""
    return [
        each
        for each in get(f"{url}/api/v2/alerts")
        if each["labels"]["cluster"] == cluster and each["labels"]["alertname"] == name
    ]


def told(seen: list[Seen], cluster: str, name: str) -> list[str]:
    """What Alertmanager's own receiver was told of it: firing, resolved."""
    return [
        alert["status"]
        for each in seen
        for alert in each.json["alerts"]
        if alert["labels"]["cluster"] == cluster and alert["labels"]["alertname"] == name
    ]


async def test_an_alert_outlives_its_end_while_it_is_renewed_and_is_resolved_once(
    tmp_path: Path, alertmanager: str, receiving: Server, unique: str
) -> None:
    failure = incident().model_copy(update={"cluster": unique, "opened": time.time() - 1})
    with opened(tmp_path, it(alertmanager)) as (config, queue, notifier):
        hear(notifier, queue, failure, now=time.time() - 1)
        desk = Desk(config, queue, Sender(), time.time)
        await desk.step(config.receivers["it"])
        receiving.wait(lambda seen: told(seen, unique, "GPUChaosIncident") == ["firing"])
        first = alerts(alertmanager, unique, "GPUChaosIncident")[0]["endsAt"]
        deadline = time.monotonic() + 15
        # Alertmanager would have ended it by itself after four rounds: longer than that it is renewed here.
        while alerts(alertmanager, unique, "GPUChaosIncident")[0]["endsAt"] <= first:
            assert time.monotonic() < deadline
            await desk.step(config.receivers["it"])
        assert told(receiving.seen, unique, "GPUChaosIncident") == ["firing"]
        over = failure.model_copy(update={"closed": time.time(), "time": time.time()})
        hear(notifier, queue, over, over, now=time.time() - 1)
        await desk.step(config.receivers["it"])
        receiving.wait(lambda seen: told(seen, unique, "GPUChaosIncident") == ["firing", "resolved"])
        last = next(each for each in reversed(receiving.seen) if told([each], unique, "GPUChaosIncident"))
        assert "no fault explains it" in last.json["alerts"][0]["annotations"]["description"]


async def test_a_running_experiment_silences_its_own_harm_and_no_abort_signal(
    tmp_path: Path, alertmanager: str, unique: str
) -> None:
    ours = {"cluster": unique, "id": unique, "started": time.time() - 9, "time": time.time(), "ends": time.time() + 60}
    state = experiment().model_copy(update=ours)
    harm = incident(attributed=True).model_copy(update={"cluster": unique, "experiment_id": unique})
    stranger = incident(2).model_copy(update={"cluster": unique})
    with opened(tmp_path, it(alertmanager)) as (config, queue, notifier):
        desk = Desk(config, queue, Sender(), time.time)

        async def silences(state: str) -> list[Any]:
            await desk.step(config.receivers["it"])
            found = get(f"{alertmanager}/api/v2/silences")
            return [each for each in found if unique in each["comment"] and each["status"]["state"] == state]

        hear(notifier, queue, state, now=time.time() - 9)
        deadline = time.monotonic() + 15
        while not (standing := await silences("active")):
            assert time.monotonic() < deadline
        hear(notifier, queue, harm, stranger, halted().model_copy(update=ours), now=time.time() - 9)
        while queue.standing("it", time.time())["waiting"]:
            assert time.monotonic() < deadline
            await desk.step(config.receivers["it"])

        def silenced(name: str) -> list[bool]:
            return [bool(each["status"]["silencedBy"]) for each in alerts(alertmanager, unique, name)]

        until(lambda: silenced("GPUChaosExperimentHarm") == [True], 15.0)
        assert silenced("GPUChaosIncident") == [False]
        assert silenced("GPUChaosExperimentHalted") == [False]
        for name in ("GPUChaosExperimentOverdue", "StepsSlow"):  # as Prometheus would, by its own rules
            own = {"alertname": name, "cluster": unique, "experiment_id": unique}
            post(f"{alertmanager}/api/v2/alerts", own | shipped_labels(name))
        until(lambda: silenced("StepsSlow") == [True], 15.0)
        assert silenced("GPUChaosExperimentOverdue") == [False]

        while (await silences("active"))[0]["endsAt"] == standing[0]["endsAt"]:
            assert time.monotonic() < deadline
        (renewed,) = await silences("active")
        assert renewed["id"] == standing[0]["id"], "it is renewed, not made again"

        hear(notifier, queue, confirmed().model_copy(update=ours), now=time.time())
        while await silences("active"):
            assert time.monotonic() < deadline
        assert queue.silences("it") == {}
        assert len(await silences("expired")) == 1
