"""`gpuchaos serve`: the live page and its API, beside the workers. It keeps nothing: a restart reads all anew."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import structlog
import uvicorn
from aiokafka.errors import KafkaError
from prometheus_client import disable_created_metrics

from gpuchaos_stream.commandline import exits
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.envelope import BadMessageError
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.events.topics import COMMANDS, EXPERIMENTS, INCIDENTS, NODES, OBSERVATIONS
from gpuchaos_stream.experiments import client
from gpuchaos_stream.observe import logs
from gpuchaos_stream.observe.metrics import RECORDS
from gpuchaos_stream.observe.serve import Heartbeat
from gpuchaos_stream.stream import settings as kafka
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.hands import OperatorHands
from gpuchaos_stream.stream.options import hush_kafka_client, kafka_options, log_level_option
from gpuchaos_stream.stream.reader import Start, Subscription
from gpuchaos_stream.stream.rights import Rights, demand
from gpuchaos_stream.web.app import create_app
from gpuchaos_stream.web.board import Board
from gpuchaos_stream.web.connection import Connection
from gpuchaos_stream.web.guard import allowed_hosts
from gpuchaos_stream.web.links import links
from gpuchaos_stream.web.openapi import document
from gpuchaos_stream.web.tokens import Tokens
from gpuchaos_stream.web.wire import Reader

#: Read whole, for they keep the latest of each key.
_KEPT: Final = (NODES.name, EXPERIMENTS.name, INCIDENTS.name)
#: Read from now on: what a cell measured before is of no use.
_LIVE: Final = (OBSERVATIONS.name,)
#: Seconds that a turn waits for a first record.
_TURN_S: Final = 0.25
#: Records taken before others have their turn: some milliseconds.
_AT_ONCE: Final = 100
#: Seconds that a stop waits for requests that are under way.
_LAST_S: Final = 3

_log = structlog.get_logger(__name__)


@click.command()
@kafka_options
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--port", default=8080, show_default=True, help="page, API, /healthz, /readyz, /metrics; 0: a free port")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="name:token a line, for who may stop things; without it everything is read-only",
)
@click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"operator's private key  [default: ${client.KEY_ENV}, then ~/.config/gpuchaos/operator.json]",
)
@click.option("--grafana-url", help="where the dashboards are, for the page's links")
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="a name under which it is asked, as by a proxy; on a loopback address others are refused",
)
@click.option("--openapi", is_flag=True, help="only print the API's description (OpenAPI 3.1)")
@log_level_option
@exits({0: "ended by SIGTERM or Ctrl-C"})
def serve(
    bootstrap_servers: str | None,
    kafka_config: Path | None,
    host: str,
    port: int,
    token_file: Path | None,
    key: Path | None,
    grafana_url: str | None,
    allow_host: tuple[str, ...],
    openapi: bool,
    log_level: str,
) -> None:
    """Show the clusters as they are, on a live page and as an API; with tokens also stop what runs.

    Reading needs no token: keep it on a loopback address, or behind a proxy that knows who may look.
    """
    if openapi:
        click.echo(json.dumps(document(), indent=2, sort_keys=True))
        return
    logs.configure(level=log_level)
    hush_kafka_client()
    # Each step of its start and end is of no use to who runs this; its warnings are.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    tokens = Tokens(token_file) if token_file is not None else None
    signer = client.load_signer(key) if tokens is not None else None
    if key is not None and tokens is None:
        raise UserError("--key", "is of no use without --token-file", "name the file of who may use it")
    found = links(grafana_url)
    settings = kafka.load(kafka_config, bootstrap_servers=bootstrap_servers)
    board = Board(epoch=secrets.token_hex(4), links=found, whole=False)
    server = _Server(board, settings, host=host, port=port, hosts=allowed_hosts(host, allow_host))
    asyncio.run(server.run(tokens, signer))


class _Server:
    """The process: Kafka in, HTTP out, on one loop."""

    def __init__(
        self, board: Board, settings: kafka.KafkaSettings, *, host: str, port: int, hosts: frozenset[str] | None
    ) -> None:
        self._board = board
        self._settings = settings
        self._host = host
        self._port = port
        self._hosts = hosts
        self._heartbeat = Heartbeat(limit_s=30.0)
        self._acts = False
        self._waits = {"kept": "the topics have not been read yet", "live": "no broker has answered yet"}
        self._reader = Reader()
        # Steps of the wall clock would make the stale fresh.
        began, started = time.time(), time.monotonic()
        self._clock: Callable[[], float] = lambda: began + time.monotonic() - started

    async def run(self, tokens: Tokens | None, signer: Signer | None) -> None:
        """Until SIGTERM or Ctrl-C.

        Raises:
            UserError: the address is taken, a topic does not exist, or the broker does not let us do all of it.
        """
        bus = Bus(self._settings, client_id="gpuchaos-serve")
        hands = None
        self._acts = signer is not None
        if signer is not None:
            await bus.start(connect_timeout_s=None)
            hands = OperatorHands(bus, signer)
        app = create_app(
            self._board,
            clock=self._clock,
            tokens=tokens,
            hands=hands,
            hosts=self._hosts,
            healthy=self._heartbeat.check,
            ready=lambda: next(iter(self._waits.values()), None),
        )
        server = _Http(
            uvicorn.Config(
                app,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                # Whose address a request has must not be what its headers say.
                proxy_headers=False,
                timeout_graceful_shutdown=_LAST_S,
                limit_concurrency=1000,
                timeout_keep_alive=30,
                http=Connection,
            )
        )
        with _listening(self._host, self._port) as listener:
            port = listener.getsockname()[1]
            tasks = {
                asyncio.create_task(server.serve(sockets=[listener]), name="http"),
                asyncio.create_task(self._read(bus, _KEPT, "earliest", "kept"), name="kept"),
                asyncio.create_task(self._read(bus, _LIVE, "latest", "live"), name="live"),
                asyncio.create_task(_asked_to_stop(), name="stop"),
            }
            _log.info("serve started", page=f"http://{_shown(self._host)}:{port}/", read_only=hands is None)
            try:
                done, _ = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
            finally:
                server.should_exit = True
                # Before the server waits for its requests: a stream would last as long as its reader.
                app.state.site.streams.close()
                for task in tasks:
                    if task.get_name() != "http":
                        task.cancel()
                await asyncio.wait(tasks, timeout=_LAST_S + 2)
                await bus.stop(1.0)
            for task in done:
                task.result()

    async def _read(self, bus: Bus, topics: tuple[str, ...], start: Start, what: str) -> None:
        async with self._heartbeat.kept(_TURN_S):  # a broker that is away would be away for the next process, too
            subscription = await bus.subscribe(topics, start)
        if what == "live":
            # Whoever presses the stop button must not be the first to learn that it cannot reach anybody.
            writes = frozenset({COMMANDS.name}) if self._acts else frozenset()
            await demand(self._settings, Rights(reads=frozenset({*_KEPT, *_LIVE}), writes=writes))
        behind = {tp for tp, end in subscription.ends.items() if end} if start == "earliest" else set()
        async with subscription:
            async for records in _batches(subscription):
                self._heartbeat.beat()
                for begin in range(0, len(records), _AT_ONCE):
                    self._hear(records[begin : begin + _AT_ONCE])
                    await asyncio.sleep(0)
                if what in self._waits:
                    positions = await subscription.positions()
                    behind = {tp for tp in behind if positions[tp] < subscription.ends[tp]}
                    if not behind:
                        del self._waits[what]
                        if what == "kept":
                            self._board.read_whole()

    def _hear(self, records: Iterable[Any]) -> None:
        now = self._clock()
        for record in records:
            RECORDS.labels(topic=record.topic).inc()
            if not record.value:
                continue  # a tombstone
            try:
                heard = self._reader.read(record.topic, record.value)
            except BadMessageError as error:
                # It stops nothing here; its dead letter is made by the workers, who read these topics as well.
                _log.warning("record not read", topic=record.topic, offset=record.offset, reason=str(error))
                continue
            if heard is not None:
                self._board.hear(heard, now, record.timestamp / 1000)


async def _batches(subscription: Subscription) -> AsyncIterator[list[Any]]:
    """Batches for ever, empty ones while there is nothing or no broker."""
    while True:
        try:
            records = await subscription.batch(_TURN_S)
        except (KafkaError, OSError) as error:
            _log.warning("reading failed, it is tried again", reason=str(error))
            await asyncio.sleep(_TURN_S)
            records = []
        yield records


class _Http(uvicorn.Server):
    """A server that leaves the signals to its process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens there.

    Raises:
        UserError: the address is taken, or is none of this machine.
    """
    where = f"{_shown(host)}:{port}"
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise UserError(where, f"cannot listen there ({said})", "choose another --host or --port") from error
    with listener:
        yield listener


async def _asked_to_stop() -> None:
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    await asked.wait()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
