"""`gpuchaos experiment` against a real broker; a control plane of a few lines answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from experiments_help import plan, plan_data, published

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import Command, CommandKind, Role
from gpuchaos_stream.events.envelope import from_value, to_record
from gpuchaos_stream.events.experiment import BreakerState, InjectedFault, Status, Verdict
from gpuchaos_stream.events.signing import KeyRing, Signer, Verifier
from gpuchaos_stream.experiments import cli, client
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.bus import Bus

on_broker = pytest.mark.broker


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    signer = Signer.generate(Role.OPERATOR)
    signer.save(tmp_path / "operator.json")
    return signer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan_data()))
    return path


class Shell:
    """Runs `gpuchaos experiment …` as a process of its own against one broker and cluster."""

    def __init__(self, broker: RunningBroker, cluster: str, key: Path) -> None:
        self._env = os.environ | {
            "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
            "GPUCHAOS_CLUSTER": cluster,
            "GPUCHAOS_KEY": str(key),
        }

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gpuchaos_stream.cli",
            "experiment",
            *arguments,
            env=self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        process = await self.start(*arguments)
        out, err = await asyncio.wait_for(process.communicate(), 40)
        return process.returncode or 0, out.decode(), err.decode()


@pytest.fixture
def shell(broker: RunningBroker, unique: str, signer: Signer, tmp_path: Path) -> Shell:
    return Shell(broker, unique, tmp_path / "operator.json")


class ControlPlane:
    """Reads the signed commands of a cluster, and publishes the states it is told to."""

    def __init__(self, bus: Bus, cluster: str, signer: Signer) -> None:
        self._bus = bus
        self._cluster = cluster
        self._verifier = Verifier(KeyRing(keys=(signer.trusted(),)))

    async def command(self, kind: CommandKind) -> Command:
        async for record in self._bus.consume((topics.COMMANDS.name,), "earliest"):
            if record.key != self._cluster.encode():
                continue  # another test's, of whatever kind
            command = self._verifier.verify(from_value(record.topic, record.value), now=time.time())
            if command.kind is kind:
                return command
        raise AssertionError("the topic ended")

    async def publish(self, experiment_id: str, status: Status, verdict: Verdict | None = None, **fields: Any) -> None:
        state = published(self._cluster, experiment_id, status, verdict, **fields)
        await self._bus.send(to_record(state, topics.EXPERIMENTS, source="/test"))


@on_broker
@pytest.mark.parametrize(
    ("verdict", "status"),
    [(Verdict.PASSED, 0), (Verdict.FAILED, 1), (Verdict.HALTED, 1), (Verdict.STOPPED, 1), (Verdict.VOID, 1)],
)
async def test_run_follows_its_experiment_and_ends_with_its_verdict(
    broker: RunningBroker, unique: str, signer: Signer, shell: Shell, file: Path, verdict: Verdict, status: int
) -> None:
    async with Bus(broker.settings) as bus:
        plane = ControlPlane(bus, unique, signer)
        running = asyncio.create_task(shell.run("run", str(file), "--id", f"{unique}-e"))
        command = await asyncio.wait_for(plane.command(CommandKind.START), 30)
        assert command.experiment_id == f"{unique}-e"
        assert client.Plan.model_validate(command.plan) == plan()
        await plane.publish("another", Status.FINISHED, Verdict.PASSED)
        await plane.publish(f"{unique}-e", Status.ACTIVE)
        await plane.publish(f"{unique}-e", Status.ACTIVE)  # a later one with nothing new is not said again
        await plane.publish(f"{unique}-e", Status.FINISHED, verdict, reason="because")
        code, out, err = await running
    assert code == status, err
    lines = out.splitlines()
    assert f"{unique}-e active faults=0/0" in lines[0]
    assert f"{unique}-e finished:{verdict}" in lines[1]
    assert "another" not in out
    assert "reason" in out
    assert "\x1b" not in out, "plain where it is no terminal"


@on_broker
async def test_a_reader_that_goes_ends_no_experiment_nor_hides_its_verdict(
    broker: RunningBroker, unique: str, signer: Signer, shell: Shell, file: Path
) -> None:
    async with Bus(broker.settings) as bus:
        plane = ControlPlane(bus, unique, signer)
        process = await shell.start("run", str(file), "--id", unique, "-o", "json")
        await asyncio.wait_for(plane.command(CommandKind.START), 30)
        await plane.publish(unique, Status.ACTIVE)
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), 20)
        process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        await plane.publish(unique, Status.RECOVERING)
        await plane.publish(unique, Status.FINISHED, Verdict.FAILED)
        assert await asyncio.wait_for(process.wait(), 30) == 1, "of the verdict"
        assert process.stderr is not None
        assert b"Traceback" not in await process.stderr.read()


@on_broker
async def test_ctrl_c_stops_the_experiment_and_exits_130(
    broker: RunningBroker, unique: str, signer: Signer, shell: Shell, file: Path
) -> None:
    async with Bus(broker.settings) as bus:
        plane = ControlPlane(bus, unique, signer)
        process = await shell.start("run", str(file), "-o", "json")
        start = await asyncio.wait_for(plane.command(CommandKind.START), 30)
        await plane.publish(str(start.experiment_id), Status.ACTIVE)
        assert process.stdout is not None
        state = json.loads(await asyncio.wait_for(process.stdout.readline(), 20))
        assert state["status"] == "active"
        process.send_signal(signal.SIGINT)
        stop = await asyncio.wait_for(plane.command(CommandKind.STOP), 20)
        assert (stop.experiment_id, stop.reason) == (start.experiment_id, "interrupted at the command line")
        assert await asyncio.wait_for(process.wait(), 20) == 130


@on_broker
async def test_list_show_and_watch_read_the_latest_state_of_each(
    broker: RunningBroker, unique: str, signer: Signer, shell: Shell
) -> None:
    async with Bus(broker.settings) as bus:
        plane = ControlPlane(bus, unique, signer)
        await plane.publish("one", Status.ACTIVE)
        await plane.publish("two", Status.PENDING)
        await plane.publish("one", Status.FINISHED, Verdict.HALTED, reason="blast.gpus 9 > 8")
        await bus.send(to_record(BreakerState(id="breaker", time=1, cluster=unique), topics.EXPERIMENTS, source="/t"))
        listed, one, missing, watched, unwatched = await asyncio.gather(
            shell.run("list", "-o", "json"),
            shell.run("show", "one"),
            shell.run("show", "tow"),
            shell.run("watch", "one"),
            shell.run("watch", "tow"),
        )
    states = [json.loads(line) for line in listed[1].splitlines()]
    assert [(state["id"], state["status"]) for state in states] == [("one", "finished"), ("two", "pending")]
    assert one[0] == 0
    assert "blast.gpus 9 > 8" in one[1]
    assert (missing[0], unwatched[0]) == (2, 2)
    assert "did you mean 'two'?" in missing[2]
    assert unwatched[2] == missing[2]
    assert watched[0] == 0
    assert "one finished:halted" in watched[1]


@on_broker
async def test_stop_tells_control_plane_and_nodes_and_is_done_when_a_worker_has_taken_it(
    broker: RunningBroker, unique: str, signer: Signer, shell: Shell
) -> None:
    fault = InjectedFault(fault_id="f1", fault="process-stop", node="n7", entity="process/n7/9", phase="injected")
    async with Bus(broker.settings) as bus:
        plane = ControlPlane(bus, unique, signer)
        await plane.publish("one", Status.ACTIVE, faults=(fault,))
        running = asyncio.create_task(shell.run("stop", "one", "--reason", "wrong rack"))
        stop = await asyncio.wait_for(plane.command(CommandKind.STOP), 30)
        halt = await asyncio.wait_for(plane.command(CommandKind.HALT), 30)
        await plane.publish("one", Status.HALTING, faults=(fault,))
        stopped, unknown = await asyncio.gather(running, shell.run("stop", "none", "--reason", "x"))
    assert stopped[0] == 0, stopped[2]
    assert unknown[0] == 2
    assert (stop.experiment_id, stop.reason) == ("one", "wrong rack")
    assert (halt.node, halt.experiment_id, halt.reason) == ("n7", "one", "wrong rack")


@on_broker
async def test_stop_that_no_worker_takes_says_so_and_exits_1(
    broker: RunningBroker, unique: str, signer: Signer, shell: Shell
) -> None:
    async with Bus(broker.settings) as bus:
        await ControlPlane(bus, unique, signer).publish("one", Status.ACTIVE)
        code, _, said = await shell.run("stop", "one", "--reason", "wrong rack")
    assert code == 1
    assert "no worker has taken it" in said


@on_broker
async def test_run_without_waiting_ends_at_once(shell: Shell, file: Path) -> None:
    code, out, err = await shell.run("run", str(file), "--no-wait")
    assert (code, out) == (0, "")
    assert "started hang-" in err


async def test_no_broker_no_key_and_no_file_exit_2_with_the_fix(tmp_path: Path, signer: Signer, file: Path) -> None:
    shell = Shell.__new__(Shell)
    shell._env = os.environ | {"GPUCHAOS_KEY": str(tmp_path / "none.json"), "KAFKA_BOOTSTRAP_SERVERS": "nowhere"}
    (bad_server, no_key, no_file) = await asyncio.gather(
        shell.run("list"), shell.run("run", str(file)), shell.run("run", str(tmp_path / "none.yaml"))
    )
    assert (bad_server[0], no_key[0], no_file[0]) == (2, 2, 2)
    assert "'nowhere' is not host:port" in bad_server[2]
    assert "make one: gpuchaos keys make" in no_key[2]
    assert "none.yaml: cannot be read" in no_file[2]


def test_a_control_key_is_no_operator_s(tmp_path: Path) -> None:
    Signer.generate(Role.CONTROL).save(tmp_path / "key.json")
    with pytest.raises(UserError, match="need an operator's key"):
        client.load_signer(tmp_path / "key.json")


def test_a_start_with_a_given_id_is_the_same_command_id_and_another_nonce() -> None:
    one, two = (client.start_command(plan(), cluster="c", experiment_id="e", now=1.0) for _ in range(2))
    assert one.id == two.id
    assert one.nonce != two.nonce
    assert client.start_command(plan(), cluster="c", now=1.0).experiment_id != one.experiment_id


@pytest.mark.parametrize("bad", ["Bad Id!", "../../x<b>", "-x", "", "x" * 81, "ab\n"])
def test_what_cannot_be_an_id_is_refused_before_anything_is_sent(bad: str) -> None:
    with pytest.raises(UserError, match="cannot be an experiment's id; it has small letters"):
        client.start_command(plan(), cluster="c", experiment_id=bad)
    assert client.start_command(plan(), cluster="c", experiment_id="nightly-2026-12-01").experiment_id


@on_broker
async def test_an_id_that_is_there_already_is_refused_and_nothing_is_sent(
    broker: RunningBroker, unique: str, signer: Signer, shell: Shell, file: Path
) -> None:
    async with Bus(broker.settings) as bus:
        await ControlPlane(bus, unique, signer).publish(unique, Status.FINISHED, Verdict.PASSED)
        code, out, err = await shell.run("run", str(file), "--no-wait", "--id", unique)
    assert (code, out) == (2, "")
    assert f"experiment {unique}: is there already (finished: passed); choose another --id, or leave it out" in err
    assert "started" not in err


@on_broker
def test_a_start_that_nobody_takes_while_it_is_valid_ends_with_the_fix(
    broker: RunningBroker, unique: str, signer: Signer, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "VALID_S", 0.2)
    monkeypatch.setattr(cli, "LATE_S", 0.0)
    options = ["--key", str(tmp_path / "operator.json"), "--bootstrap-servers", broker.bootstrap, "--cluster", unique]
    done = CliRunner().invoke(cli.experiment, ["run", str(file), *options])
    assert isinstance(done.exception, UserError)
    assert f"no control plane of cluster '{unique}' took it within 0 s: it will not start any more" in str(
        done.exception
    )


@on_broker
async def test_a_run_that_ends_with_the_breaker_tripped_says_so_and_the_way_out(
    broker: RunningBroker, unique: str, signer: Signer, shell: Shell, file: Path
) -> None:
    async with Bus(broker.settings) as bus:
        plane = ControlPlane(bus, unique, signer)
        running = asyncio.create_task(shell.run("run", str(file), "--id", unique))
        await asyncio.wait_for(plane.command(CommandKind.START), 30)
        state = BreakerState(id="breaker", time=1, cluster=unique, tripped=True, since=1.0, cause="7 of 65 nodes")
        await bus.send(to_record(state, topics.EXPERIMENTS, source="/t"))
        await plane.publish(unique, Status.FINISHED, Verdict.HALTED)
        code, _, err = await running
    assert code == 1
    assert "the breaker is tripped (7 of 65 nodes)" in err
    assert "gpuchaos breaker reset --reason" in err


@on_broker
async def test_where_the_cluster_is_not_named_the_others_are(
    broker: RunningBroker, unique: str, signer: Signer, tmp_path: Path
) -> None:
    async with Bus(broker.settings) as bus:
        await ControlPlane(bus, unique, signer).publish("one", Status.ACTIVE)
    code, _, err = await Shell(broker, f"{unique}-not", tmp_path / "operator.json").run("list")
    assert code == 0
    assert f"cluster {unique}-not: nothing heard; clusters here: " in err
    assert unique in err.split("clusters here: ")[1]
