"""Everything that the half hour needs, as real processes: broker, worker, two simulated clusters, `gpuchaos notify`,
Prometheus with the shipped rules, Alertmanager; and the receiver that both of them tell.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import shutil
import socket
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from half_hour_receiver import FailingReceiver, Mode
from half_hour_schedule import ANNEX, DEMO, Course
from lab.waiting import until

from gpuchaos_stream.events.command import Role
from gpuchaos_stream.experiments import client
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.stream.brokers import Kind
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.house import READY, House

RULES: Final = Path(__file__).resolve().parents[2] / "rules/prometheus/gpuchaos.rules.yaml"
#: Prometheus scrapes and evaluates so often, Alertmanager tells of a change after at most so long; seconds.
SCRAPE_S: Final = 2
GROUP_WAIT_S: Final = 1
GROUP_INTERVAL_S: Final = 5

_GPUCHAOS: Final = (sys.executable, "-m", "gpuchaos_stream.cli")


class Site:
    """What runs. The public methods without an answer are what a schedule may ask for."""

    def __init__(self, house: House, endpoint: FailingReceiver) -> None:
        self.house = house
        self.endpoint = endpoint
        self.ports = {name: free_port() for name in ("worker", "notify", "alertmanager", "prometheus")}
        self.children: dict[str, Child] = {}
        self.outages: list[tuple[float, Mode]] = []
        self._down: set[str] = set()
        self._said: list[Child] = []

    def start(self, course: Course) -> None:
        """Starts all of it and waits until it is ready."""
        folder = self.house.folder
        self._start("alertmanager", *_alertmanager(folder, self.ports["alertmanager"], self.endpoint.port))
        self._start("prometheus", *_prometheus(folder, self.ports))
        self.children["worker"] = self.house.worker("worker", "--status-port", str(self.ports["worker"]))
        argv = _notify(folder, self.endpoint, self.ports)
        self._start("notify", *_GPUCHAOS, "notify", *argv).wait_for("notify started")
        self._start("annex", *_GPUCHAOS, "sim", *self._keys(), "--cluster", ANNEX, "--nodes", "4", "--cells", "1")
        for service in ("alertmanager", "prometheus"):
            until(lambda: answers(f"http://127.0.0.1:{self.ports[service]}/-/ready"), 30)  # noqa: B023
        self.children["annex"].wait_for(READY)
        self.children["worker"].wait_for(READY)
        failures = folder / "failures.yaml"
        # Those at set times count from when the simulator starts, which is now, and so does the schedule.
        failures.write_text(yaml.safe_dump({"failures": [_failure(each) for each in course.failures]}))
        sim = ("--cluster", DEMO, "--nodes", "64", "--cells", "4", "--failures", str(failures))
        self.children["sim"] = self.house.sim(*sim).wait_for(READY)

    def start_experiment(self, plan: dict[str, Any]) -> None:
        """Starts an experiment under its name; as the demo does, since a spreading fault is only the simulator's."""
        command = client.start_command(Plan.model_validate(plan), cluster=DEMO, experiment_id=str(plan["name"]))

        async def send() -> None:
            async with Bus(self.house.settings, client_id="half-hour") as bus:
                await client.send(bus, client.load_signer(self.house.key(Role.OPERATOR)), command)

        asyncio.run(send())

    def stop_experiment(self, experiment_id: str) -> None:
        """A person stops it."""
        self._say("experiment", "stop", experiment_id, "--reason", "seen enough")

    def until_told_of(self, experiment_id: str) -> None:
        """Waits until the receiver knows that an experiment has begun."""
        began = ("GPUChaosExperimentStarted", experiment_id)

        def told() -> bool:
            said = [each["labels"] for arrival in self.endpoint.arrivals for each in arrival.body["alerts"]]
            return began in {(labels["alertname"], labels.get("experiment_id")) for labels in said}

        until(told, 60)

    def trip_breaker(self) -> None:
        """A person stops everything."""
        self._say("breaker", "trip", "--reason", "drill")

    def reset_breaker(self) -> None:
        """A person allows new faults again."""
        self._say("breaker", "reset", "--reason", "half hour: looked into")

    def kill_annex(self) -> None:
        """The nodes of the other cluster fall silent."""
        self._kill("annex")

    def start_annex(self) -> None:
        """They are back."""
        self._restart("annex", READY)

    def kill_notify(self) -> None:
        """As a power cut would."""
        self._kill("notify")

    def start_notify(self) -> None:
        """The same command on the same folder."""
        self._restart("notify", "notify started")

    def kill_worker(self) -> None:
        """As a power cut would."""
        self._kill("worker")

    def start_worker(self) -> None:
        """The same command on the same folder."""
        self._restart("worker", "")

    def receiver(self, mode: Mode) -> None:
        """The receiver behaves so from now on."""
        self.endpoint.be(mode)
        self.outages.append((time.time(), mode))

    def check(self) -> None:
        """Fails where a part has ended that nobody ended."""
        for name, child in self.children.items():
            assert child.running or name in self._down, f"{name} ended with status {child.status}; {child.tail()}"
        for said in self._said:
            assert said.status in (None, 0), f"{said.name} ended with status {said.status}; {said.tail()}"

    def alerts(self) -> list[Any]:
        """The active alerts that Alertmanager holds."""
        found: list[Any] = get(f"http://127.0.0.1:{self.ports['alertmanager']}/api/v2/alerts")
        return found

    def firing(self, start: float, end: float) -> list[dict[str, Any]]:
        """Prometheus' own record of its alerts that fired: labels, and the times (epoch seconds) of the samples."""
        query = {"query": 'ALERTS{alertstate="firing"}', "start": start, "end": end, "step": SCRAPE_S}
        url = f"http://127.0.0.1:{self.ports['prometheus']}/api/v1/query_range?{urllib.parse.urlencode(query)}"
        return [
            {
                "labels": {k: v for k, v in series["metric"].items() if k not in {"__name__", "alertstate"}},
                "times": [float(at) for at, _ in series["values"]],
            }
            for series in get(url)["data"]["result"]
        ]

    def _keys(self) -> tuple[str, ...]:
        return ("--keyring", str(self.house.keyring))

    def _start(self, name: str, *argv: str) -> Child:
        self.children[name] = self.house.start(name, *argv)
        return self.children[name]

    def _kill(self, name: str) -> None:
        self._down.add(name)
        self.children[name].kill()

    def _restart(self, name: str, ready: str) -> None:
        self.children[name].start()
        self._down.discard(name)
        self.children[name].wait_for(ready)

    def _say(self, *words: str) -> None:
        name = f"{words[0]}-{words[1]}-{len(self.house.children)}"
        self._said.append(self.house.start(name, *_GPUCHAOS, *words, "--cluster", DEMO))


@contextlib.contextmanager
def site(folder: Path, broker: Kind, course: Course) -> Iterator[Site]:
    """Everything, started; skips where Prometheus or Alertmanager is not installed."""
    if not (shutil.which("prometheus") and shutil.which("prometheus-alertmanager")):
        pytest.skip("no Prometheus or Alertmanager: run `make tools`")
    endpoint = FailingReceiver("whsec_" + base64.b64encode(secrets.token_bytes(32)).decode())
    endpoint.be(Mode.UP)
    try:
        with House(folder, broker=broker) as house:
            place = Site(house, endpoint)
            place.start(course)
            yield place
    finally:
        endpoint.be(Mode.REFUSES)


def free_port() -> int:
    """A port of loopback that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def get(url: str) -> Any:
    """The JSON at an address."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  (ours)
        return json.load(answer)


def answers(url: str) -> bool:
    """Whether it answers, and well."""
    try:
        urllib.request.urlopen(url, timeout=2).close()  # noqa: S310  (ours)
    except OSError:
        return False
    return True


def _failure(failure: Any) -> dict[str, Any]:
    told = {"cause": failure.cause, "entity": failure.entity, "after": failure.at}
    return told if failure.of is None else {**told, "of": failure.of}


def _alertmanager(folder: Path, port: int, receiver: int) -> tuple[str, ...]:
    config = folder / "alertmanager.yaml"
    # One notification for one alert, so that each can be counted; repeated only after a day.
    route = {
        "receiver": "endpoint",
        "group_by": ["..."],
        "group_wait": f"{GROUP_WAIT_S}s",
        "group_interval": f"{GROUP_INTERVAL_S}s",
        "repeat_interval": "24h",
    }
    hook = {"url": f"http://127.0.0.1:{receiver}/alertmanager", "send_resolved": True}
    config.write_text(yaml.safe_dump({"route": route, "receivers": [{"name": "endpoint", "webhook_configs": [hook]}]}))
    return (
        "prometheus-alertmanager",
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    )


def _prometheus(folder: Path, ports: dict[str, int]) -> tuple[str, ...]:
    config = folder / "prometheus.yaml"

    def at(name: str) -> list[dict[str, Any]]:
        return [{"targets": [f"127.0.0.1:{ports[name]}"]}]

    settings = {
        "global": dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), f"{SCRAPE_S}s"),
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": f"gpuchaos-{n}", "static_configs": at(n)} for n in ("worker", "notify")],
        "alerting": {"alertmanagers": [{"static_configs": at("alertmanager")}]},
    }
    config.write_text(yaml.safe_dump(settings))
    return (
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
    )


def _notify(folder: Path, endpoint: FailingReceiver, ports: dict[str, int]) -> tuple[str, ...]:
    secret = folder / "signing.key"
    secret.write_text(endpoint.secret)
    config = folder / "notify.yaml"
    alertmanager = {
        "name": "alertmanager",
        "type": "alertmanager",
        "url": f"http://127.0.0.1:{ports['alertmanager']}",
        "allow_private": True,
        "silence": True,
    }
    hook = {
        "name": "hook",
        "type": "webhook",
        "url": f"http://127.0.0.1:{endpoint.port}/hook",
        "allow_private": True,
        "signing": [{"file": str(secret)}],
    }
    routes = [{"receivers": ["alertmanager"], "go_on": True}, {"receivers": ["hook"]}]
    settings = {"api_version": "gpuchaos/v1", "kind": "Notify", "receivers": [alertmanager, hook], "routes": routes}
    config.write_text(yaml.safe_dump(settings))
    data = str(folder / "notify")
    return ("--config", str(config), "--data-dir", data, "--status-port", str(ports["notify"]))
