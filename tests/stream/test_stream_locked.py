"""The loop on a Kafka with TLS, passwords and ACLs: each part does its work with what docs/operating.md grants it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import structlog
import yaml
from lab.waiting import until
from locked_kafka import LockedKafka, Right, certify, locked_kafka, password
from structlog.testing import capture_logs

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.envelope import Record
from gpuchaos_stream.stream.brokers import Kind, RunningBroker
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.house import READY, SERVING, House
from gpuchaos_stream.stream.refusals import why_not
from gpuchaos_stream.stream.rights import demand
from gpuchaos_stream.stream.settings import KafkaSettings
from gpuchaos_stream.stream.worker import Stage

pytestmark = pytest.mark.kafka

DOCS: Final = Path(__file__).resolve().parents[2] / "docs/operating.md"
#: Users, by what the table calls them. A process of the house that has such a name comes as that user.
USERS: Final = {
    "`gpuchaos topics`": "topics",
    "worker": "worker",
    "agent, `gpuchaos sim`": "agent",
    "operator": "operator",
    "page": "page",
    "notify": "notify",
    "recorder": "recorder",
}
CLUSTER: Final = "locked"
TOKEN: Final = "a-token-of-the-on-call-0123456789"  # noqa: S105  (of a test)
#: A rank of a job of eight nodes stands still, which those may feel.
PLAN: Final = """\
api_version: gpuchaos/v1
kind: Experiment
name: {name}
description: a rank is stopped
owner: tests
fault: {{name: process-stop, certifies: [hang-detection]}}
targets: {{entities: [{target}]}}
duration: {duration}
lease: 3s
undo: {{method: automatic}}
limits: {{gpus: 512, nodes: 8, jobs: 0, gpu_seconds: 900}}
settle: 2s
steady_state:
  hold: 2s
  checks: [{{name: up, telemetry: {{of: {job}, metric: running, op: ">=", value: 1}}}}]
objectives: {{ttd: 10s, ttm: 120s, ttr: 120s}}
"""
_GPUCHAOS: Final = (sys.executable, "-m", "gpuchaos_stream.cli")


def grants() -> list[Right]:
    """What the table grants."""
    table = re.search(r"<!-- grants -->\n(.*?)<!-- end -->", DOCS.read_text(), re.DOTALL)
    assert table is not None
    found = []
    for line in table[1].splitlines()[2:]:
        who, reads, writes, groups, makes = (cell.strip() for cell in line.strip("|").split("|"))
        found += [Right(USERS[who], "Read", "topic", name) for name in _topics(reads)]
        found += [Right(USERS[who], "Write", "topic", name) for name in _topics(writes)]
        found += [Right(USERS[who], "Read", "group", name.strip("`")) for name in groups.split(", ") if name]
        found += [Right(USERS[who], how, "topic", name) for name in _topics(makes) for how in ("Create", "Describe")]
    assert {one.user for one in found} == set(USERS.values())
    return found


def _topics(cell: str) -> list[str]:
    contract = {topic.name.split(".")[1]: topic.name for topic in topics.TOPICS}
    names: list[str] = []
    for word in filter(None, cell.split(", ")):
        names += contract.values() if word == "all topics" else [contract.get(word, word.strip("`"))]
    return names


GRANTS: Final = grants()
WORKERS: Final = [one for one in GRANTS if one.user == "worker"]


class Locked(House):
    """A house whose parts come to Kafka as users of their own."""

    def __init__(self, folder: Path, kafka: LockedKafka) -> None:
        super().__init__(folder, broker=None, settings=kafka.settings("topics"))
        self.user = "operator"

    def start(self, name: str, *argv: str) -> Child:
        """As the user that it is named after, or `user`."""
        user = name if name in USERS.values() else self.user
        return super().start(name, "env", *_as(user), *argv)

    def experiment(self, name: str, target: str, job: str, duration: str) -> Child:
        """An experiment of this name, which is its id too, run by the operator."""
        plan = self.folder / f"{name}.yaml"
        plan.write_text(PLAN.format(name=name, target=target, job=job, duration=duration))
        return self.start(name, *_GPUCHAOS, "experiment", "run", str(plan), "--cluster", CLUSTER, "--id", name)

    def ask(self, *words: str, user: str = "operator", **other: str) -> subprocess.CompletedProcess[str]:
        """A command that ends by itself."""
        return subprocess.run(
            ["env", *_as(user), *(f"{name}={value}" for name, value in other.items()), *_GPUCHAOS, *words],
            env={**os.environ, **self.env, "GPUCHAOS_CLUSTER": CLUSTER},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def _as(user: str) -> list[str]:
    return [f"KAFKA_SASL_USERNAME={user}", f"KAFKA_SASL_PASSWORD={password(user)}"]


@pytest.fixture(scope="module")
def kafka(broker_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LockedKafka]:
    if broker_kind != "kafka":
        pytest.skip("needs real Apache Kafka (Java and Maven)")
    others = ["nobody", "late", *(f"lacks-{number}" for number in range(len(WORKERS)))]
    with locked_kafka(tmp_path_factory.mktemp("locked"), [*USERS.values(), *others]) as running:
        yield running


@pytest.fixture(scope="module")
def house(kafka: LockedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    asyncio.run(kafka.grant(GRANTS))
    with Locked(tmp_path_factory.mktemp("house"), kafka) as house:
        made = house.ask("topics", user="topics")
        assert (made.returncode, made.stdout) == (0, "gpuchaos-control-changelog\n1 topics made\n"), made.stderr
        yield house


def test_the_loop_works_with_what_the_table_grants_and_nothing_is_refused(kafka: LockedKafka, house: Locked) -> None:
    before = len(kafka.denied())
    page = _everything(house)
    small = house.experiment("small", "process/n001/4100", "job/train-c0-0", "3s")
    cut = house.experiment("cut", "process/n012/4100", "job/train-c1-0", "60s")
    until(lambda: "active" in cut.said() or not cut.running, 60, "it is not active", every_s=0.1)
    address = re.search(r"http://127\.0\.0\.1:\d+/", page.said())
    assert address is not None
    stopped = httpx.post(
        f"{address[0]}api/v1/clusters/{CLUSTER}/experiments/cut/stop",
        headers={"Authorization": f"Bearer {TOKEN}"},
        json={"reason": "enough is seen"},
    )
    assert stopped.status_code == 202, stopped.text
    until(lambda: not (small.running or cut.running), 90, "the experiments do not end", every_s=0.1)
    assert (small.status, cut.status) == (0, 1), small.tail() + cut.tail()
    for words in (
        ("experiment", "list"),
        ("experiment", "show", "small"),
        ("explain", "small"),
        ("report", "small", "--out", str(house.folder / "report.html")),
        ("watch", "--once"),
        ("breaker", "trip", "--reason", "of the tests"),
        ("breaker", "reset", "--reason", "of the tests"),
    ):
        asked = house.ask(*words)
        assert asked.returncode == 0, (words, asked.stdout, asked.stderr)
    capture = str(house.folder / "capture.jsonl.zst")
    how = ("--keyring", str(house.keyring), "--from-start", "--duration", "1")
    recorded = house.ask("record", capture, *how, user="recorder")
    assert recorded.returncode == 0, recorded.stderr
    assert house.ask("replay", capture).returncode == 0
    assert kafka.denied()[before:] == []


def test_the_table_grants_what_a_worker_demands() -> None:
    demanded = Stage.ALL.rights("gpuchaos")
    assert demanded.reads == {one.name for one in WORKERS if (one.kind, one.operation) == ("topic", "Read")}
    assert demanded.writes == {one.name for one in WORKERS if one.operation == "Write"}
    assert [demanded.group] == [one.name for one in WORKERS if one.kind == "group"]


@pytest.mark.usefixtures("house")  # for the topics
@pytest.mark.parametrize("number", range(len(WORKERS)), ids=[f"{one.operation} {one.name}" for one in WORKERS])
async def test_a_worker_that_lacks_one_right_is_told_which(kafka: LockedKafka, number: int) -> None:
    user, lacks = f"lacks-{number}", WORKERS[number]
    await kafka.grant(replace(one, user=user) for one in WORKERS if one != lacks)
    # A topic that may not even be seen is as one that may not be read or written.
    verb = "join" if lacks.kind == "group" else lacks.operation.lower()
    with pytest.raises(UserError, match=f"^{lacks.kind} {lacks.name}: user '{user}' has no right to {verb} it; grant "):
        await demand(kafka.settings(user), Stage.ALL.rights("gpuchaos"))


async def test_a_broker_without_rights_lets_everybody_do_everything(broker: RunningBroker) -> None:
    await demand(broker.settings, Stage.DETECT.rights("nobody-in-particular"))


def test_a_worker_without_rights_ends_before_it_begins(house: Locked) -> None:
    house.user = "notify"
    worker = house.worker("worker-of-notify")
    house.user = "operator"
    until(lambda: not worker.running, 60, "it goes on")
    assert worker.status == 2
    assert "topic gpuchaos.commands.v1: user 'notify' has no right to make it, or to see it" in worker.said()


def test_a_page_that_could_not_send_a_stop_does_not_begin(house: Locked) -> None:
    house.user = "recorder"
    page = house.start("page-of-recorder", *_GPUCHAOS, "serve", "--port", "0", *_may_stop(house))
    house.user = "operator"
    until(lambda: not page.running, 60, "it goes on")
    assert page.status == 2
    assert "topic gpuchaos.commands.v1: user 'recorder' has no right to write it" in page.said()


async def test_what_may_not_be_written_is_said_once_and_can_be_written_once_it_may(
    kafka: LockedKafka, house: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that was used before keeps to the settings of then, and what it says would not be captured.
    monkeypatch.setattr("gpuchaos_stream.stream.bus._log", structlog.get_logger())
    record = Record(topics.FAULTS, "late", "late", b"{}", ())
    async with Bus(kafka.settings("late")) as bus:
        with capture_logs() as logs:
            for _ in range(5):
                with pytest.raises(UserError, match=r"^topic gpuchaos.faults.v1: user 'late' has no right to write it"):
                    await bus.send(record)
        assert [line["event"] for line in logs] == ["record not sent"]
        house.user = "late"
        agent = house.agent("late", "--cluster", CLUSTER)
        house.user = "operator"
        agent.wait_for("no commands can be read")
        await kafka.grant(replace(one, user="late") for one in GRANTS if one.user == "agent")
        assert (await bus.send(record)).topic == topics.FAULTS.name
        agent.wait_for(READY)
    frames = Bus(kafka.settings("recorder")).consume([topics.TELEMETRY.name], "earliest")
    assert await anext(frame async for frame in frames if b"late" in frame.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"sasl_password": "of-somebody-else"},
            "does not take user 'nobody' with this password (SCRAM-SHA-512); check KAFKA_SASL_USERNAME",
        ),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "does not know SCRAM-SHA-256; check KAFKA_SASL_MECHANISM"),
        (
            {"ca_file": "another"},
            "its certificate is not believed (certificate signature failure); check KAFKA_CA_FILE",
        ),
        ({"bootstrap_servers": "localhost:{port}"}, "its certificate is not believed (Hostname mismatch"),
        ({"security_protocol": "SASL_PLAINTEXT", "ca_file": None}, "speaks TLS, and security_protocol SASL_PLAINTEXT"),
    ],
    ids=["password", "mechanism", "authority", "name", "protocol"],
)
async def test_a_command_ends_at_once_with_what_is_wrong_and_what_to_check(
    kafka: LockedKafka, tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    certify(tmp_path)
    wrong = {name: str(value).format(port=kafka.port) if value else value for name, value in wrong.items()}
    if wrong.get("ca_file"):
        wrong["ca_file"] = tmp_path / "ca.pem"
    settings = kafka.settings("nobody", **wrong)
    with pytest.raises(UserError, match=f"^{re.escape(f'{settings.bootstrap_servers}: {said}')}"):
        await Bus(settings).start(connect_timeout_s=3600)


async def test_tls_with_a_broker_that_speaks_none_is_said(broker: RunningBroker, tmp_path: Path) -> None:
    certify(tmp_path)
    settings = KafkaSettings(bootstrap_servers=broker.bootstrap, security_protocol="SSL", ca_file=tmp_path / "ca.pem")
    refusal = await why_not(settings)
    assert (refusal.server, refusal.fix.split("?")[0]) == (broker.bootstrap, "does it speak TLS")


async def test_where_nobody_listens_that_is_said() -> None:
    refusal = await why_not(KafkaSettings(bootstrap_servers="127.0.0.1:1,no-such-host.invalid:9092"))
    assert not refusal.lasting
    assert refusal.problem.startswith("the name is not known")
    refusal = await why_not(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    assert "refused" in refusal.problem or "Connect call failed" in refusal.problem


def _everything(house: Locked) -> Child:
    """Starts all parts, each as its user; the page."""
    worker = house.worker("worker")
    house.user = "agent"
    sim = house.sim("--nodes", "16", "--cells", "2", "--cluster", CLUSTER)
    agent = house.agent("host-0", "--cluster", CLUSTER)
    house.user = "operator"
    page = house.page(*_may_stop(house))
    config = house.folder / "notify.yaml"
    receiver = {"name": "ledger", "type": "webhook", "url": "http://127.0.0.1:9/", "allow_private": True}
    told = {"api_version": "gpuchaos/v1", "kind": "Notify", "receivers": [receiver]}
    config.write_text(yaml.safe_dump(told | {"routes": [{"receivers": ["ledger"]}]}))
    house.start("notify", *_GPUCHAOS, "notify", "--config", str(config), "--data-dir", str(house.folder / "told"))
    for child in (worker, sim, agent):
        child.wait_for(READY, 60)
    return page.wait_for(SERVING)


def _may_stop(house: Locked) -> tuple[str, ...]:
    tokens = house.folder / "tokens"
    tokens.write_text(f"on-call:{TOKEN}\n")
    tokens.chmod(0o600)
    return "--token-file", str(tokens), "--key", str(house.folder / "keys/operator.json")
