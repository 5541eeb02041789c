"""`gpuchaos record`: everything that travels, into a file that `gpuchaos replay` judges again."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import click

from gpuchaos_stream.commandline import exits
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.signing import KeyRing
from gpuchaos_stream.events.topics import TOPICS
from gpuchaos_stream.guard.rules import load as check_rules
from gpuchaos_stream.guard.rules import rule_files
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.loop.recording import Header, Recorded, Writer
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.options import hush_kafka_client, kafka_options, key_ring
from gpuchaos_stream.stream.settings import KafkaSettings, load


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@kafka_options
@click.option("--keyring", type=click.Path(path_type=Path), required=True, help="the ring that the workers believe")
@click.option("--rules", type=click.Path(path_type=Path), multiple=True, help="the workers' rules  [default: shipped]")
@click.option("--from-start", is_flag=True, help="from the oldest record that is kept, not from now on")
@click.option("--duration", type=float, help="seconds to record; until Ctrl-C where absent")
@exits({0: "recorded, also where Ctrl-C or SIGTERM ended it"})
def record(
    file: Path,
    bootstrap_servers: str | None,
    kafka_config: Path | None,
    keyring: Path,
    rules: tuple[Path, ...],
    from_start: bool,
    duration: float | None,
) -> None:
    """Record all topics into FILE (compressed JSON lines). Public keys and rules go in, private keys never."""
    if file.exists():
        raise UserError(str(file), "exists already", "choose another name")
    rule_set = rules or (shipped_rules(),)
    check_rules(rule_set)  # a recording with wrong ones could not be judged
    hush_kafka_client()
    settings = load(kafka_config, bootstrap_servers=bootstrap_servers)
    count = asyncio.run(_record(file, settings, key_ring(keyring), rule_set, from_start, duration))
    click.echo(f"{count} records in {file}")


async def _record(
    file: Path, settings: KafkaSettings, ring: KeyRing, rules: Sequence[Path], from_start: bool, duration: float | None
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if duration is not None:
        loop.call_later(duration, stop.set)
    header = Header(ring, {path.name: path.read_text() for path in rule_files(rules)})
    names = [topic.name for topic in TOPICS]
    # The bus is started to be told within seconds that no broker answers.
    async with (
        Bus(settings, client_id="gpuchaos-record") as bus,
        await bus.subscribe(names, "earliest" if from_start else "latest") as subscription,
    ):
        with Writer(file, header) as writer:
            click.echo(f"ready: recording into {file} since {time.strftime('%H:%M:%S')}")
            while not stop.is_set():
                for raw in await subscription.batch(0.2):
                    writer.write(_recorded(raw))
            for raw in await subscription.batch(0.5):
                writer.write(_recorded(raw))
            return writer.count


def _recorded(raw: object) -> Recorded:
    fields = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    values = {name: getattr(raw, name) for name in fields}
    return Recorded(**{**values, "headers": tuple(values["headers"] or ())})
