"""`gpuchaos notify`: reads experiments and incidents beside the workers, and tells receivers of them.

The positions in Kafka are the queue's own: they move in the transaction that queues what was read.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import structlog
from aiokafka import TopicPartition

from gpuchaos_stream.commandline import exits, output_option
from gpuchaos_stream.errors import UserError, nearest
from gpuchaos_stream.events.envelope import from_value
from gpuchaos_stream.events.topics import EXPERIMENTS, INCIDENTS
from gpuchaos_stream.notify import metrics
from gpuchaos_stream.notify.config import Config, load
from gpuchaos_stream.notify.delivery import Sender
from gpuchaos_stream.notify.desk import Desk
from gpuchaos_stream.notify.notifier import Notifier
from gpuchaos_stream.notify.queue import Queue
from gpuchaos_stream.observe import logs
from gpuchaos_stream.observe.logs import Sparingly
from gpuchaos_stream.observe.metrics import RECORDS
from gpuchaos_stream.observe.serve import Heartbeat, StatusServer
from gpuchaos_stream.output import Form, write
from gpuchaos_stream.stream import settings as kafka
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.options import hush_kafka_client, kafka_options, log_level_option

#: Seconds that a turn waits for a first record.
_TURN_S: Final = 0.5
#: Seconds between two looks for what may be forgotten.
_TIDY_S: Final = 3600.0
#: Seconds between two attempts to note what was read, while the disk refuses.
_DISK_S: Final = 1.0
#: Seconds that a stop waits for requests that are under way.
_LAST_S: Final = 5.0

_log = structlog.get_logger(__name__)


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), required=True, help="receivers and routes (YAML)"
)
@kafka_options
@click.option(
    "--data-dir", type=click.Path(path_type=Path), default=Path("data/notify"), show_default=True, help="the queue's"
)
@click.option("--status-port", default=0, show_default=True, help="/metrics, /healthz, /readyz; 0: a free port")
@click.option("--status-host", default="127.0.0.1", show_default=True)
@click.option("--check", is_flag=True, help="only read the configuration, without its secrets, and say what is wrong")
@click.option("--queue", "show", is_flag=True, help="only show what waits and what was set aside, and why")
@click.option("--revive", metavar="RECEIVER", help="only put its dead letters back, and it into service")
@log_level_option
@output_option
@exits({0: "ended by SIGTERM or Ctrl-C, or what was asked is done"})
def notify(
    config: Path,
    bootstrap_servers: str | None,
    kafka_config: Path | None,
    data_dir: Path,
    status_port: int,
    status_host: str,
    check: bool,
    show: bool,
    revive: str | None,
    log_level: str,
    output: Form,
) -> None:
    """Tell Alertmanager, PagerDuty, Slack, Opsgenie and webhooks what was injected, what broke and what was halted.

    One process beside the workers, with a folder of its own. It may be killed at any time.
    """
    read = load(config, secrets=not (check or show or revive))
    if check:
        if output == "table":
            click.echo(f"{config}: {len(read.receivers)} receivers, {len(read.routes)} routes; secrets were not read")
        else:
            write([{"where": str(config), "receivers": len(read.receivers), "routes": len(read.routes)}], output)
    elif show or revive:
        with contextlib.closing(Queue(data_dir, random.Random(), reading=not revive)) as queue:
            if revive:
                _revive(config, read, queue, revive)
            else:
                _show(read, queue, output)
    else:
        logs.configure(level=log_level)
        hush_kafka_client()
        settings = kafka.load(kafka_config, bootstrap_servers=bootstrap_servers)
        asyncio.run(_run(read, settings, data_dir, status_host, status_port))


def _revive(path: Path, config: Config, queue: Queue, receiver: str) -> None:
    if receiver not in config.receivers:
        raise UserError(str(path), f"no receiver is called {receiver!r}", nearest(receiver, config.receivers))
    click.echo(f"{receiver}: {queue.revive(receiver, time.time())} messages put back")


def _show(config: Config, queue: Queue, output: Form) -> None:
    now = time.time()
    if output != "table":
        write(_standing(config, queue, now), output)
        return
    for name in config.receivers:
        standing = queue.standing(name, now)
        off = " OUT OF SERVICE, see --revive" if queue.disabled(name) else ""
        answer = queue.last_answer(name)
        last = f", last answer: {answer}" if answer else ""
        click.echo(f"{name}: {standing['waiting']:g} wait, the oldest {standing['oldest']:.0f} s{last}{off}")
    for receiver, title, reason, dead in queue.dead_letters():
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(dead))
        click.echo(f"set aside {stamp}Z for {receiver}: {title} ({reason})")


def _standing(config: Config, queue: Queue, now: float) -> Iterator[dict[str, Any]]:
    for name in config.receivers:
        yield {
            "kind": "receiver",
            "receiver": name,
            "waiting": int(queue.standing(name, now)["waiting"]),
            "oldest_s": round(queue.standing(name, now)["oldest"], 1),
            "in_service": not queue.disabled(name),
            "last_answer": queue.last_answer(name) or "",
        }
    for receiver, title, reason, dead in queue.dead_letters():
        yield {"kind": "dead_letter", "receiver": receiver, "title": title, "reason": reason, "since": dead}


async def _run(config: Config, settings: kafka.KafkaSettings, data_dir: Path, host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    heartbeat = Heartbeat(limit_s=30.0)
    waiting = ["no broker has answered yet"]
    with contextlib.closing(Queue(data_dir, random.Random())) as queue:
        status = StatusServer(
            host=host,
            port=port,
            healthy=heartbeat.check,
            ready=lambda: waiting[0] or None,
        )
        desk = Desk(config, queue, Sender(), time.time)
        delivering = asyncio.create_task(desk.run(), name="desk")
        reading = asyncio.create_task(_read(config, settings, queue, desk, heartbeat, waiting), name="read")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        _log.info("notify started", receivers=sorted(config.receivers), status=f"http://{host}:{status.port}")
        try:
            await asyncio.wait({delivering, reading, stopping}, return_when="FIRST_COMPLETED")
        finally:
            for task in (reading, stopping, delivering):
                task.cancel()
            await asyncio.wait({delivering, reading, stopping}, timeout=_LAST_S)
            status.close()
        for task in (reading, delivering):
            if not task.cancelled() and task.done() and (error := task.exception()) is not None:
                raise error


async def _read(
    config: Config,
    settings: kafka.KafkaSettings,
    queue: Queue,
    desk: Desk,
    heartbeat: Heartbeat,
    waiting: list[str],
) -> None:
    """Reads for ever; `waiting` holds what it waits for, in words, empty: for nothing."""
    notifier = Notifier(config, queue)
    topics = (EXPERIMENTS.name, INCIDENTS.name)
    start = {TopicPartition(topic, part): following for (topic, part), following in queue.positions().items()}
    async with heartbeat.kept(_TURN_S):  # a broker that is away would be away for the next process, too
        subscription = await Bus(settings, client_id="gpuchaos-notify").subscribe(topics, start or "earliest")
    tidied = float("-inf")
    async with subscription:
        records: list[Any] = []
        say = Sparingly()
        while True:
            heartbeat.beat()
            records = records or await subscription.batch(_TURN_S)
            now = time.time()
            try:
                if records:
                    _hear(records, notifier, queue, now)
                    desk.wake()
                if now - tidied > _TIDY_S:
                    queue.forget(now)
                    tidied = now
            except sqlite3.OperationalError as error:  # another process would find the same disk
                waiting[0] = f"the queue cannot be written: {error}"
                if say(waiting[0]):
                    _log.error("queue cannot be written", reason=str(error))
                await asyncio.sleep(_DISK_S)
                continue
            waiting[0] = ""
            records = []
            metrics.ALERTS.set(queue.count_open())


def _hear(records: Iterable[Any], notifier: Notifier, queue: Queue, now: float) -> None:
    with queue.transaction():
        for record in records:
            RECORDS.labels(topic=record.topic).inc()
            queue.read_up_to(record.topic, record.partition, record.offset + 1)
            if not record.value:
                continue  # a tombstone
            try:
                with queue.attempt():
                    notifier.hear(from_value(record.topic, record.value), now)
            except ValueError as error:
                # It stops nothing here; its dead letter is made by the workers, who read these topics as well.
                _log.warning("record not read", topic=record.topic, offset=record.offset, reason=str(error))
