"""`gpuchaos dev`: it starts all parts, says how to go on, and leaves nothing running; and one default cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from click.testing import CliRunner
from pydantic import SecretStr

from gpuchaos_agent.config import AgentSettings
from gpuchaos_stream.cli import cli
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.experiments import client
from gpuchaos_stream.stream import dev
from gpuchaos_stream.stream.brokers import Kind, RunningBroker, start_broker
from gpuchaos_stream.stream.house import House
from gpuchaos_stream.stream.options import DEFAULT_CLUSTER
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options
from gpuchaos_stream.stream.topics_admin import changelog_name, complete_topics, ensure_topics

GPUCHAOS = (sys.executable, "-u", "-m", "gpuchaos_stream.cli")


@contextlib.contextmanager
def running_dev(*options: str, env: Mapping[str, str] | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`gpuchaos dev` as a process, and what it has said until it was ready. Killed where the test did not end it."""
    with subprocess.Popen(
        [*GPUCHAOS, "dev", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_env() | dict(env or {}),
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if line.startswith("Ctrl-C"):
                    break
            else:
                pytest.fail("it ended before it was ready:\n" + "".join(said))
            yield process, "".join(said)
        finally:
            process.kill()


def end(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Ends it, and returns what it said last."""
    process.send_signal(number)
    return process.communicate(timeout=60)[0]


def clean_env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_", "GPUCHAOS_"))}


def exports(said: str) -> dict[str, str]:
    """The `export` lines as a shell reads them."""
    lines = [shlex.split(line) for line in said.splitlines() if line.startswith("export ")]
    return dict(word.split("=", 1) for _, word in lines)


def speaks_of(folder: Path) -> list[str]:
    """Processes whose command line names `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if str(folder) in line and "pytest" not in line:
                found.append(line)
    return found


def until(done: Callable[[], Any], what: str, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline, f"not in {within_s:.0f} s: {what}"
        time.sleep(0.02)


# -- the whole of it ---------------------------------------------------------------------------------------------


@pytest.mark.broker
@pytest.mark.timeout(180)
def test_another_terminal_works_with_the_lines_that_dev_prints_and_sigterm_stops_every_part(
    broker_kind: Kind, tmp_path: Path
) -> None:
    folder = tmp_path / "my house"
    options = ("--broker", broker_kind, "--nodes", "4", "--cells", "1", "--folder", str(folder))
    # Settings of somebody's production: they are not for the broker that is started here.
    others = {"KAFKA_BOOTSTRAP_SERVERS": "nowhere:1", "KAFKA_SASL_USERNAME": "me", "KAFKA_SASL_PASSWORD": "secret"}
    with running_dev(*options, env=others) as (process, said):
        given = exports(said)
        assert {"KAFKA_BOOTSTRAP_SERVERS", "GPUCHAOS_KEY", "GPUCHAOS_CLUSTER"} <= set(given)
        assert str(folder / "keys" / "keyring.json") in said
        assert str(folder / "logs") in said
        page, token = page_of(said)
        assert httpx.get(page, timeout=10).status_code == 200
        asked = httpx.post(
            f"{page}api/v1/clusters/{DEFAULT_CLUSTER}/breaker/reset",
            headers={"Authorization": f"Bearer {token}"},
            json={},
            timeout=10,
        )
        assert asked.status_code == 422, "the token is believed, and the reason is missing"
        listed = subprocess.run(
            [*GPUCHAOS, "experiment", "list"], env=clean_env() | given, capture_output=True, text=True, check=False
        )
        assert listed.returncode == 0, listed.stderr
        assert client.load_signer(Path(given["GPUCHAOS_KEY"]))

        status = re.search(r"http://\S+(?=/metrics)", said)
        assert status is not None, said
        assert httpx.get(f"{status[0]}/readyz").status_code == 200
        target = re.search(r"process/host-0/(\d+)", said)
        assert target is not None, said
        assert b"toy_job" in Path(f"/proc/{target[1]}/cmdline").read_bytes()

        assert "everything is stopped" in end(process, signal.SIGTERM)
    assert process.returncode == 0
    assert not speaks_of(folder)
    assert client.load_signer(folder / "keys" / "operator.json")
    logs = {path.stem: path.read_text() for path in (folder / "logs").iterdir()}
    assert set(logs) == {"worker", "page", "sim", "toy", "host-0"}
    assert not [name for name, text in logs.items() if "\x1b" in text]


@pytest.mark.broker
@pytest.mark.timeout(180)
def test_dev_uses_a_running_broker_with_its_topics_as_they_are_and_leaves_it_alone(
    broker_kind: Kind, tmp_path: Path
) -> None:
    with start_broker(broker_kind) as broker:
        _, made = run_on(broker, control_partitions=8, telemetry_partitions=2)
        assert made
        options = ("--bootstrap-servers", broker.bootstrap, "--no-sim", "--no-agent")
        env = {**broker.env, "TMPDIR": str(tmp_path)}
        with running_dev(*options, env=env) as (process, said):
            assert exports(said)["KAFKA_BOOTSTRAP_SERVERS"] == broker.bootstrap
            [folder] = tmp_path.glob("gpuchaos-dev-*")
            lines = [json.loads(line) for line in worker_log(folder) if line.startswith("{")]
            held = [line["control_partitions"] for line in lines if line["event"] == "holds"]
            assert held[-1] == list(range(8))
            end(process, signal.SIGINT)
        assert process.returncode == 0
        assert list(tmp_path.iterdir()) == [], "the temporary folder is still there"
        assert broker.running
        counts, _ = run_on(broker)
    assert counts[changelog_name("gpuchaos", "control")] == 8
    assert counts[topics.TELEMETRY.name] == 2


def worker_log(folder: Path) -> list[str]:
    return (folder / "logs" / "worker.log").read_text().splitlines()


def run_on(broker: RunningBroker, **counts: Any) -> tuple[dict[str, int], list[str]]:
    """Makes the topics where counts are given. The partition count of all topics, and what was made."""

    async def work() -> tuple[dict[str, int], list[str]]:
        made = await ensure_topics(broker.settings, **counts) if counts else []
        return await partition_counts(broker), made

    return asyncio.run(work())


async def partition_counts(broker: RunningBroker) -> dict[str, int]:
    admin: Any = AIOKafkaAdminClient(**aiokafka_options(broker.settings))
    await admin.start()
    try:
        return {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}
    finally:
        await admin.close()


@pytest.mark.broker
async def test_topics_that_are_missing_are_made_to_fit_those_that_are_there(broker_kind: Kind) -> None:
    with start_broker(broker_kind) as broker:
        await make(broker, {topics.FAULTS.name: 6, topics.COMMANDS.name: 6, topics.DEADLETTER.name: 3})
        assert await complete_topics(broker.settings, changelogs=["a-t-changelog"]) == 6
        counts = await partition_counts(broker)
    assert {counts[topic.name] for topic in topics.CONTROL_INPUTS} == {counts["a-t-changelog"]} == {6}
    assert (counts[topics.TELEMETRY.name], counts[topics.DEADLETTER.name]) == (8, 3)


@pytest.mark.broker
async def test_a_control_topic_that_differs_from_the_others_is_named_and_nothing_is_made(broker_kind: Kind) -> None:
    with start_broker(broker_kind) as broker:
        there = {topics.EXPERIMENTS.name: 2, topics.FAULTS.name: 6, topics.COMMANDS.name: 6}
        await make(broker, there)
        with pytest.raises(UserError, match=rf"{topics.EXPERIMENTS.name}: has 2 partitions, 6 are asked for"):
            await complete_topics(broker.settings)
        counts = await partition_counts(broker)
    assert {name: count for name, count in counts.items() if name.startswith("gpuchaos.")} == there


async def make(broker: RunningBroker, there: Mapping[str, int]) -> None:
    admin: Any = AIOKafkaAdminClient(**aiokafka_options(broker.settings))
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, count, 1) for name, count in there.items()])
    finally:
        await admin.close()
    # Kafka answers before all of it knows, and tells nobody when it does.
    while not there.items() <= (await partition_counts(broker)).items():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


# -- parts that die ----------------------------------------------------------------------------------------------

#: Ends with status 70 at its first start, and is ready at its second.
STUCK_ONCE = """
import pathlib, sys, time
if pathlib.Path(sys.argv[1]).exists():
    print("ready: http://127.0.0.1:7/metrics", flush=True)
    time.sleep(600)
pathlib.Path(sys.argv[1]).touch()
sys.exit(70)
"""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A house with no broker of its own, for parts that need none."""
    entered = House(tmp_path, broker=None, settings=KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    yield entered
    for child in entered.children:
        child.kill()


def test_a_worker_that_ends_with_70_is_started_again_and_its_new_address_is_said(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = house.start("worker", sys.executable, "-c", STUCK_ONCE, str(tmp_path / "begun"))
    until(lambda: not worker.running, "the worker ends")
    supervisor = dev.Supervisor(house)
    supervisor.look()
    assert worker.running
    until(lambda: "ready" in worker.said(), "the worker is ready again")
    supervisor.look()
    supervisor.look()
    first, second = capsys.readouterr().out.splitlines()
    assert "70" in first
    assert second == "worker is ready: http://127.0.0.1:7/metrics"


@pytest.mark.parametrize(("name", "status"), [("sim", 70), ("worker", 3)])
def test_any_other_death_is_said_once_with_the_end_of_its_log_and_the_rest_goes_on(
    house: House, capsys: pytest.CaptureFixture[str], name: str, status: int
) -> None:
    child = house.start(name, sys.executable, "-c", f"print('the last word'); raise SystemExit({status})")
    other = house.start("other", sys.executable, "-c", "import time; time.sleep(600)")
    until(lambda: not child.running, "it ends")
    supervisor = dev.Supervisor(house)
    supervisor.look()
    supervisor.look()
    text = capsys.readouterr().out
    assert text.count(f"{name} has ended with status {status}") == 1
    assert "the last word" in text
    assert other.running


@pytest.mark.broker
@pytest.mark.soak
def test_dev_ends_with_1_and_says_so_when_the_broker_dies(broker_kind: Kind, tmp_path: Path) -> None:
    folder = tmp_path / "house"
    options = ("--broker", broker_kind, "--no-sim", "--no-agent", "--folder", str(folder))
    with running_dev(*options) as (process, _):
        os.kill(broker_of(process.pid, broker_kind), signal.SIGKILL)
        last = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert f"the {broker_kind} broker has ended" in last
    assert not speaks_of(folder)


def broker_of(pid: int, kind: Kind) -> int:
    """The child of `pid` that is its broker: the one that is no Python."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    [found] = [int(child) for child in children if "python" not in Path(f"/proc/{child}/exe").readlink().name]
    return found


# -- what is said and refused ------------------------------------------------------------------------------------


def test_a_path_is_quoted_for_the_shell_and_a_password_is_never_shown(tmp_path: Path) -> None:
    settings = KafkaSettings(
        bootstrap_servers="127.0.0.1:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_username="it's me",
        sasl_password=SecretStr("dragon"),
    )
    said = "\n".join(dev.exports(House(tmp_path / "a b", broker=None, settings=settings)))
    assert "dragon" not in said
    assert "KAFKA_SASL_PASSWORD" in said
    given = exports(said)
    assert given["KAFKA_SASL_USERNAME"] == "it's me"
    assert given["GPUCHAOS_KEY"] == str(tmp_path / "a b" / "keys" / "operator.json")


def page_of(said: str) -> tuple[str, str]:
    """Address and token of the page."""
    found = re.search(r"^page +(http://\S+/), its token for stopping things is (\S+)$", said, re.MULTILINE)
    assert found is not None, said
    return found[1], found[2]


def test_rules_that_are_wrong_are_said_before_anything_starts(tmp_path: Path) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text(
        "groups: [{name: mine, rules: [{name: one, expr: 'blast.gpu > 1', action: halt, annotations: {summary: s}}]}]\n"
    )
    result = CliRunner().invoke(cli, ["dev", "--rules", str(rules)])
    assert isinstance(result.exception, UserError)
    assert "blast.gpu" in str(result.exception)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--broker", "kafka", "--bootstrap-servers", "127.0.0.1:1"], "leave one of them out"),
        (["--nodes", "2", "--cells", "3"], "use fewer cells"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_anything_starts(
    options: list[str], complaint: str
) -> None:
    result = CliRunner().invoke(cli, ["dev", *options])
    assert isinstance(result.exception, UserError)
    assert complaint in str(result.exception)


def test_where_no_cluster_is_named_every_command_and_the_agent_mean_the_same_one() -> None:
    found = {" ".join(words): option.default for words, option in cluster_options(cli)}
    assert {"sim", "experiment run", "experiment list", "breaker status", "breaker reset"} <= set(found)
    assert set(found.values()) == {DEFAULT_CLUSTER}
    assert AgentSettings.model_fields["cluster"].default == DEFAULT_CLUSTER


def cluster_options(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that takes --cluster, with the option."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from cluster_options(inner, (*words, name))
    yield from ((words, option) for option in command.params if option.name == "cluster")
