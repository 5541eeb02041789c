"""`gpuchaos breaker` on a real broker, with the real breaker at the other end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuchaos_stream.cli import cli
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import CommandKind, Role, SignedCommand
from gpuchaos_stream.events.envelope import from_value, to_record
from gpuchaos_stream.events.signing import KeyRing, Signer, Verifier
from gpuchaos_stream.guard.breaker import Breaker
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.bus import Bus

pytestmark = pytest.mark.broker


async def control_plane(bus: Bus, subscription: object, cluster: str, verifier: Verifier) -> None:
    """What a worker does with the two commands, and nothing else."""
    breaker = Breaker(cluster)
    async for record in subscription:  # type: ignore[attr-defined]
        if record.key != cluster.encode():
            continue  # another test's, of whatever kind
        signed: SignedCommand = from_value(topics.COMMANDS.name, record.value)
        command = verifier.verify(signed, now=record.timestamp / 1000)
        if command.kind is CommandKind.STOP_ALL:
            breaker.trip("operator", command.reason, command.time)
        else:
            breaker.reset(
                by=command.issued_by,
                reason=command.reason,
                at=command.time,
                now=record.timestamp / 1000,
                command_id=command.id,
            )
        await bus.send(to_record(breaker.state, topics.EXPERIMENTS, source="/control"))


async def test_it_is_tripped_shown_and_reset_by_a_person(broker: RunningBroker, unique: str, tmp_path: Path) -> None:
    signer, key = Signer.generate(Role.OPERATOR), tmp_path / "operator.json"
    signer.save(key)
    options = ["--cluster", unique, "--bootstrap-servers", broker.settings.bootstrap_servers]

    async def gpuchaos(*arguments: str) -> tuple[int, str]:
        result = await asyncio.to_thread(CliRunner().invoke, cli, ["breaker", *arguments, *options])
        return result.exit_code, result.output

    async with Bus(broker.settings) as bus, await bus.subscribe([topics.COMMANDS.name]) as subscription:
        verifier = Verifier(KeyRing(keys=(signer.trusted(),)))
        serving = asyncio.create_task(control_plane(bus, subscription, unique, verifier))
        try:
            async with asyncio.timeout(60):
                assert await gpuchaos("status") == (0, f"breaker of {unique}: closed\n")
                code, text = await gpuchaos("trip", "--reason", "smoke", "--key", str(key))
                assert (code, "TRIPPED" in text, "smoke" in text) == (0, True, True)
                assert (await gpuchaos("status"))[0] == 1
                code, text = await gpuchaos("reset", "--reason", "the fire is out", "--key", str(key))
                assert (code, "closed" in text, "the fire is out" in text) == (0, True, True)
                assert (await gpuchaos("status"))[0] == 0
        finally:
            serving.cancel()
