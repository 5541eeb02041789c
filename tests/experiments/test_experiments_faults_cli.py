"""`gpuchaos faults`, and what agents say of each fault."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from gpuchaos_agent.records import standing
from gpuchaos_stream.cli import cli
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.envelope import to_record
from gpuchaos_stream.events.node import GpuPlace, NodeInfo, PortPlace
from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.bus import Bus


def test_every_form_of_every_fault_is_listed_with_what_it_shows() -> None:
    result = CliRunner().invoke(cli, ["faults", "-o", "json"])
    assert result.exit_code == 0
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert [row["fault"] for row in rows] == [kind.name for kind in FAULTS.values() for _ in kind.forms]
    for row in rows:
        assert row["layer"]
        assert row["certifies"]
        assert row["needs"]
    page = CliRunner().invoke(cli, ["faults"]).output
    assert all(name in page for name in FAULTS)
    assert max(map(len, page.splitlines())) <= 120


async def shell(broker: RunningBroker, cluster: str, *words: str) -> tuple[int, str, str]:
    env = os.environ | {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap, "GPUCHAOS_CLUSTER": cluster}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "gpuchaos_stream.cli", "faults", "check", *words),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.broker
async def test_check_says_for_each_node_what_is_possible_and_why_the_rest_is_not(
    broker: RunningBroker, unique: str
) -> None:
    def info(node: str, **fields: Any) -> NodeInfo:
        body: dict[str, Any] = {"faults_possible": ("process-stop",), "faults_impossible": {"rdma-link": "no port"}}
        body |= {"gpus": (GpuPlace(index="0"),), "ports": (PortPlace(name="mlx5_0"),), "jobs": ("llama",)}
        return NodeInfo(id=f"{node}{len(fields)}", time=1.0, cluster=unique, node=node, cell="c", **(body | fields))

    code, _, err = await shell(broker, unique)
    assert (code, "no node has reported" in err) == (2, True)
    bus = Bus(broker.settings, client_id="test")
    await bus.start()
    for each in (info("n1"), info("n2", labels={"gpuchaos.protected": "true"}), info("n3", faults_possible=())):
        await bus.send(to_record(each, topics.NODES, source="/t"))
    await bus.stop()
    code, out, _ = await shell(broker, unique)
    assert code == 1, "n3 can suffer none"
    assert "rdma-link     no port" in out
    assert "process-stop  possible" in out
    assert "n2  agent -  PROTECTED" in out
    assert "  aim at  node/n1, gpu/n1/0, port/n1/mlx5_0, process/n1/PID for each process of llama\n" in out
    code, out, _ = await shell(broker, unique, "--node", "n1", "-o", "json")
    assert code == 0
    assert json.loads(out) == {
        "node": "n1",
        "possible": ["process-stop"],
        "impossible": {"rdma-link": "no port"},
        "protected": False,
        "targets": ["node/n1", "gpu/n1/0", "port/n1/mlx5_0"],
        "jobs": ["llama"],
    }
    code, _, err = await shell(broker, unique, "--node", "n4")
    assert (code, "has not heard of it" in err) == (2, True)


def test_a_strategy_that_cannot_even_say_so_is_impossible_and_silences_nobody() -> None:
    class Fine:
        def unavailable(self) -> str | None:
            return None

    class Broken:
        def unavailable(self) -> str | None:
            raise OSError("no /sys")

    found: Any = {"fine": Fine(), "broken": Broken()}
    assert standing(found) == {"fine": None, "broken": "OSError: no /sys"}
