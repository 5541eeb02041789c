"""`gpuchaos notify` beside a real broker: killed, restarted, its receiver down, and each state told once."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from notify_cases import Seen, Server, breaker, confirmed, halted, serving, write

from gpuchaos_stream.cli import cli
from gpuchaos_stream.events.envelope import to_record
from gpuchaos_stream.events.topics import EXPERIMENTS
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.child import Child

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


def where(folder: Path) -> list[str]:
    return ["--config", str(folder / "notify.yaml"), "--data-dir", str(folder / "data")]


def queue(folder: Path) -> str:
    """What `--queue` shows while another process owns it."""
    shown = CliRunner().invoke(cli, ["notify", "--queue", *where(folder)])
    assert shown.exit_code == 0, shown.output
    return shown.output


@contextmanager
def notifying(broker: RunningBroker, folder: Path, name: str) -> Iterator[Child]:
    argv = [sys.executable, "-m", "gpuchaos_stream.cli", "notify"]
    argv += where(folder)
    child = Child(name, argv, log_file=folder / f"{name}.log", env=broker.env)
    child.start()
    try:
        yield child
    finally:
        child.kill()


async def send(broker: RunningBroker, *events: Any) -> None:
    async with Bus(broker.settings) as bus:
        for event in events:
            await bus.send(to_record(event, EXPERIMENTS, source="/test"))


def told(seen: list[Seen], name: str) -> list[str]:
    """What the receiver was told of that alert: firing, resolved; an attempt that was repeated counts once."""
    requests = {each.headers["webhook-id"]: each.json for each in seen}
    return [
        alert["status"]
        for request in requests.values()
        for alert in request["alerts"]
        if alert["labels"]["alertname"] == name
    ]


async def test_a_kill_while_the_receiver_is_down_loses_nothing_and_a_restart_repeats_nothing(
    broker: RunningBroker, tmp_path: Path, unique: str
) -> None:
    of_ours = {"cluster": unique, "id": unique}
    with serving(Server()) as once:
        server = Server(port=once.port)
    write(
        tmp_path,
        f"  - {{name: it, type: webhook, url: '{server.url}', allow_private: true}}",
        f"  - {{receivers: [it], match: {{cluster: {unique}}}, group_wait: 10ms}}",
    )
    with notifying(broker, tmp_path, "first") as child:
        await send(broker, halted().model_copy(update=of_ours))
        await asyncio.to_thread(child.wait_for, "receiver failed", 30)
        deadline = time.monotonic() + 15
        while "last answer: " not in (shown := queue(tmp_path)):
            assert time.monotonic() < deadline, shown
            await asyncio.sleep(0.05)
        assert "it: 1 wait, the oldest" in shown
    with serving(server), notifying(broker, tmp_path, "second") as child:
        await asyncio.to_thread(server.wait, lambda seen: told(seen, "GPUChaosExperimentHalted") == ["firing"], 30)
        await send(broker, *[confirmed().model_copy(update=of_ours)] * 2)
        await asyncio.to_thread(
            server.wait, lambda seen: told(seen, "GPUChaosExperimentHalted") == ["firing", "resolved"], 30
        )
        child.stop()
        assert child.status == 0
    with serving(server), notifying(broker, tmp_path, "third"):
        await send(
            broker, confirmed().model_copy(update=of_ours), breaker(tripped=True).model_copy(update={"cluster": unique})
        )
        await asyncio.to_thread(server.wait, lambda seen: told(seen, "GPUChaosBreakerTripped") == ["firing"], 30)
    assert told(server.seen, "GPUChaosExperimentHalted") == ["firing", "resolved"]
