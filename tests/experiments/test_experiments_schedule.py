"""`gpuchaos schedule` against a real broker; a control plane of a few lines answers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from experiments_help import plan_data, published

from gpuchaos_stream.cli import cli
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import Command, CommandKind, Role
from gpuchaos_stream.events.envelope import from_value, to_record
from gpuchaos_stream.events.experiment import InjectedFault, Status, Verdict
from gpuchaos_stream.events.signing import KeyRing, Signer, Verifier
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.bus import Bus

on_broker = pytest.mark.broker


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    signer = Signer.generate(Role.OPERATOR)
    signer.save(tmp_path / "operator.json")
    return signer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "plans"
    folder.mkdir()
    for name in ("first", "second"):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(plan_data() | {"name": name}))
    return folder


class ControlPlane:
    """Hears the commands of a cluster in order, and publishes the states that it is told to."""

    def __init__(self, bus: Bus, cluster: str, signer: Signer, records: Any) -> None:
        self._bus = bus
        self._cluster = cluster
        self._verifier = Verifier(KeyRing(keys=(signer.trusted(),)))
        self._records = aiter(records)

    async def hears(self, kind: CommandKind, within_s: float = 30.0) -> Command:
        async with asyncio.timeout(within_s):
            async for record in self._records:
                if record.key == self._cluster.encode():
                    command = self._verifier.verify(from_value(record.topic, record.value), now=time.time())
                    assert command.kind is kind
                    return command
        raise AssertionError("the topic ended")

    async def says(self, experiment_id: str, status: Status, verdict: Verdict | None = None, **fields: Any) -> None:
        state = published(self._cluster, experiment_id, status, verdict, **fields)
        await self._bus.send(to_record(state, topics.EXPERIMENTS, source="/test"))


@asynccontextmanager
async def control_plane(broker: RunningBroker, cluster: str, signer: Signer) -> AsyncIterator[ControlPlane]:
    async with Bus(broker.settings) as bus, await bus.subscribe((topics.COMMANDS.name,)) as records:
        yield ControlPlane(bus, cluster, signer, records)


@asynccontextmanager
async def scheduling(
    broker: RunningBroker, cluster: str, key: Path, *words: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    env = os.environ | {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap, "GPUCHAOS_CLUSTER": cluster}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gpuchaos_stream.cli",
        "schedule",
        f"--key={key}",
        *words,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def end(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), 40)
    return process.returncode, out.decode(), err.decode()


@on_broker
async def test_the_files_of_a_folder_take_turns_one_at_a_time_up_to_the_count(
    broker: RunningBroker, unique: str, signer: Signer, folder: Path, tmp_path: Path
) -> None:
    async with (
        control_plane(broker, unique, signer) as plane,
        scheduling(broker, unique, tmp_path / "operator.json", str(folder), "--every=1ms", "--count=3") as process,
    ):
        seen = []
        for verdict in (Verdict.PASSED, Verdict.HALTED, Verdict.PASSED):
            start = await plane.hears(CommandKind.START)
            assert start.plan is not None
            seen.append(start.plan["name"])
            await plane.says(str(start.experiment_id), Status.ACTIVE)
            await plane.says(str(start.experiment_id), Status.FINISHED, verdict)
        code, out, err = await end(process)
    assert seen == ["first", "second", "first"]
    assert code == 1, f"one was halted: {err}"
    assert [line.split()[2] for line in out.splitlines()] == ["finished:passed", "finished:halted", "finished:passed"]


@on_broker
async def test_nothing_is_started_while_somebody_elses_experiment_runs(
    broker: RunningBroker, unique: str, signer: Signer, folder: Path, tmp_path: Path
) -> None:
    async with control_plane(broker, unique, signer) as plane:
        await plane.says(f"{unique}-theirs", Status.ACTIVE)
        async with scheduling(broker, unique, tmp_path / "operator.json", str(folder), "--count=1") as process:
            assert process.stderr is not None
            said = await asyncio.wait_for(process.stderr.readline(), 30)
            assert said.decode() == f"waiting for {unique}-theirs to finish\n"
            await plane.says(f"{unique}-theirs", Status.FINISHED, Verdict.PASSED)
            start = await plane.hears(CommandKind.START)
            await plane.says(str(start.experiment_id), Status.FINISHED, Verdict.PASSED)
            assert (await end(process))[0] == 0


@on_broker
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_signal_stops_what_runs_and_waits_until_its_faults_are_gone(
    broker: RunningBroker,
    unique: str,
    signer: Signer,
    folder: Path,
    tmp_path: Path,
    number: signal.Signals,
    status: int,
) -> None:
    async with (
        control_plane(broker, unique, signer) as plane,
        scheduling(broker, unique, tmp_path / "operator.json", str(folder)) as process,
    ):
        name = str((await plane.hears(CommandKind.START)).experiment_id)
        fault = InjectedFault(fault_id="f", node="n001", entity="gpu/n001/0", fault="hang", phase="injected")
        await plane.says(name, Status.ACTIVE, faults=(fault,))
        assert process.stderr is not None
        assert await asyncio.wait_for(process.stderr.readline(), 30) == f"started {name}\n".encode()
        await settled(broker, name)
        process.send_signal(number)
        stop = await plane.hears(CommandKind.STOP)
        assert (stop.experiment_id, stop.reason) == (name, "the schedule was ended")
        halt = await plane.hears(CommandKind.HALT)
        assert halt.node == "n001", "each agent is told as well"
        assert process.returncode is None, "its faults are there"
        await plane.says(name, Status.RECOVERING)
        code, out, err = await end(process)
    assert code == status, err
    assert f"{name} recovering" in out


async def settled(broker: RunningBroker, name: str) -> None:
    """Returns when what was published can be read by everybody, the schedule among them."""
    async with Bus(broker.settings) as bus:
        async with asyncio.timeout(20):
            async for record in bus.consume((topics.EXPERIMENTS.name,), "earliest"):
                if name.encode() in (record.value or b""):
                    return


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--every", "soon"], "'soon' is no duration"),
        (["--every", "0s"], "is not above 0"),
        (["--count", "0"], "--count"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(folder: Path, words: list[str], complaint: str) -> None:
    result = CliRunner().invoke(cli, ["schedule", str(folder), *words])
    assert result.exit_code == 2
    assert complaint in result.output


def test_every_mistake_of_every_file_is_told_before_anything_starts(folder: Path, tmp_path: Path) -> None:
    (folder / "third.yaml").write_text(yaml.safe_dump(plan_data() | {"duration": "long"}))
    (tmp_path / "empty").mkdir()
    words = ["schedule", str(folder), str(tmp_path / "empty"), str(tmp_path / "none.yaml")]
    result = CliRunner().invoke(cli, words)
    assert isinstance(result.exception, UserError)
    for part in ("third.yaml", "duration", "there is no *.yaml in this folder", "none.yaml"):
        assert part in str(result.exception)
