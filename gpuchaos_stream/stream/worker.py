"""The worker: detect and control stage as agents of one Faust app.

All thinking is in `loop/`; here are the wires. Faust gives batches of raw records, consumer groups, tables and
commits; the bus sends what leaves and waits for the broker's word.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import click
import faust
from aiokafka.errors import KafkaError

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.envelope import BadMessageError, Record, from_value, partition_for, to_record
from gpuchaos_stream.events.observation import Tick
from gpuchaos_stream.events.signing import KeyRing, Signer, Verifier
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.experiments.probes import Prober
from gpuchaos_stream.guard.rules import load as load_rules
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.loop.audit import audit
from gpuchaos_stream.loop.cluster import ClusterLoop
from gpuchaos_stream.loop.control import Control
from gpuchaos_stream.loop.detection import Detection
from gpuchaos_stream.observe import logs, metrics, tracing
from gpuchaos_stream.observe.serve import Heartbeat, StatusServer
from gpuchaos_stream.stream.app_factory import make_app
from gpuchaos_stream.stream.bulk import bulk_topic
from gpuchaos_stream.stream.bus import RETRY_S, Bus
from gpuchaos_stream.stream.clock import BrokerClock
from gpuchaos_stream.stream.history import telemetry_before
from gpuchaos_stream.stream.refusals import BrokerAwayError
from gpuchaos_stream.stream.rights import Rights, demand
from gpuchaos_stream.stream.settings import KafkaSettings
from gpuchaos_stream.stream.topics_admin import changelog_name, complete_topics
from gpuchaos_stream.stream.watchdog import EXIT_STATUS, install_watchdog

TABLE: Final = "control"

#: Seconds between two ticks of a cluster: how late a deadline may be noticed.
TICK_S: Final = 0.25
#: Seconds without a record, its own ticks included, after which the broker is away: nothing is known of any node.
AWAY_S: Final = 1.0
#: Seconds between two questions of a probe.
PROBE_S: Final = 1.0
#: With more than this many records unacknowledged the broker is away: ticks would only pile up.
MOST_PENDING: Final = 1000

log = logs.logger(__name__)


class Stage(StrEnum):
    """What a worker does. Detection grows with the numbers, control with the events: each can have its own workers."""

    ALL = "all"
    DETECT = "detect"
    CONTROL = "control"

    def group(self, app_id: str) -> str:
        """The consumer group: workers of one group must do the same."""
        return f"{app_id}-detect" if self is Stage.DETECT else app_id

    def rights(self, app_id: str) -> Rights:
        """What a broker must let it do."""
        reads, writes = {topics.FAULTS, topics.ANOMALIES}, {topics.ANOMALIES, topics.OBSERVATIONS, topics.DEADLETTER}
        changelog = set()
        if self is not Stage.CONTROL:
            reads |= {topics.TELEMETRY}
        if self is not Stage.DETECT:
            reads |= {*topics.CONTROL_INPUTS, *topics.AUDITED}
            writes |= {topics.COMMANDS, topics.EXPERIMENTS, topics.INCIDENTS}
            changelog = {changelog_name(app_id, TABLE)}
        return Rights(
            reads=frozenset(topic.name for topic in reads) | changelog,
            writes=frozenset(topic.name for topic in writes) | changelog,
            group=self.group(app_id),
        )


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """What a worker is told. `rules` empty means the shipped ones; `node` is the one it runs on."""

    settings: KafkaSettings
    signer: Signer
    ring: KeyRing
    rules: tuple[Path, ...]
    data_dir: Path
    app_id: str = "gpuchaos"
    status_host: str = "127.0.0.1"
    status_port: int = 0
    dry_run: bool = False
    node: str = ""
    stage: Stage = Stage.ALL
    log_level: str = "INFO"


class Worker:
    """Holds the parts of one worker process and the tasks that are no agents."""

    def __init__(self, config: WorkerConfig, control_partitions: int) -> None:
        rules = load_rules(config.rules or [shipped_rules()])
        self.config = config
        self.source = f"/worker/{config.app_id}"
        self.clock = BrokerClock()
        self.heartbeat = Heartbeat(limit_s=30.0)
        self.recovered = False
        self.bus = Bus(config.settings, client_id=f"{config.app_id}-out")
        group = config.stage.group(config.app_id)
        self.app = make_app(group, config.settings, config.data_dir, partitions=control_partitions)
        self.table: Any = {}
        if config.stage is not Stage.DETECT:
            self.table = self.app.Table(TABLE, key_type=bytes, value_type=bytes, partitions=control_partitions)
        self.detection = Detection(source=self.source)
        self.control = Control(
            table=self.table,
            make_loop=lambda cluster: ClusterLoop(cluster, rules, dry_run=config.dry_run),
            verifier=Verifier(config.ring),
            signer=config.signer,
            source=self.source,
            partitions=control_partitions,
            clock=self.clock.now,
        )
        self.prober = Prober()
        self._tasks: list[asyncio.Task[None]] = []
        self.status = StatusServer(
            host=config.status_host,
            port=config.status_port,
            healthy=self.heartbeat.check,
            ready=lambda: None if self.recovered else "the tables are being recovered",
        )
        self._wire()

    def _wire(self) -> None:
        app = self.app
        if self.config.stage is not Stage.CONTROL:
            app.agent(bulk_topic(app, topics.TELEMETRY.name), name="detect")(self._detect)
        if self.config.stage is not Stage.DETECT:
            app.agent(bulk_topic(app, *(t.name for t in topics.CONTROL_INPUTS)), name="control")(self._control)
            app.agent(bulk_topic(app, *(t.name for t in topics.AUDITED)), name="audit")(self._audit)
        app.task(self._start)
        app.on_before_shutdown.connect(self._stop)
        app.on_partitions_assigned.connect(self._assigned)
        app.on_rebalance_complete.connect(self._rebalanced)
        install_watchdog(app, self.config.settings)

    # -- agents --------------------------------------------------------------------------------------------

    async def _detect(self, stream: Any) -> None:
        async for event in stream.events():
            first = event.value[0]
            if not self.detection.knows(first.partition):
                await self._rebuild(first)
            sent = [self.bus.send_nowait(record) for record in self.detection.take(event.value)]
            # Not waited for one by one: what a crash leaves unsent, a new worker finds again in the same records.
            if self.bus.pending > MOST_PENDING:
                await asyncio.gather(*sent)

    async def _rebuild(self, first: Any) -> None:
        """Windows of a partition that has just come, from what was there before `first`, its next record."""
        with self.detection.rebuilding():
            past = await telemetry_before(self.config.settings, first, self.detection.rewind)
            for fault in past.faults:
                self.detection.fault(fault)
            await self._send(self.detection.restore(first.partition, past.records, past.still_open))

    async def _control(self, stream: Any) -> None:
        async for event in stream.events():
            try:
                await self._decide(event.value)
            except Exception:
                # Faust would drop the batch and go on. What is poison in it was set aside already, so this is the
                # broker's trouble or ours: end, and be started again from the last commit.
                log.exception("the control stage failed: ending the worker", records=len(event.value))
                os._exit(EXIT_STATUS)

    async def _decide(self, records: Any) -> None:
        self.clock.observe(records[-1].timestamp)
        out = self.control.take(records)
        # The order is the promise of one halt: what was decided is kept, then told, then (by Faust) committed.
        self.control.save()
        if any(record.topic is topics.COMMANDS for record in out):
            await self.app.producer.flush()
        await self._send(out)
        metrics.DECISION.observe(max(0.0, self.clock.now() - records[0].timestamp / 1000))

    async def _audit(self, stream: Any) -> None:
        async for event in stream.events():
            await self._send(audit(event.value, source=self.source))

    async def _send(self, records: Iterable[Record]) -> None:
        sent = [self.bus.send_nowait(record) for record in records]
        if sent:
            await asyncio.gather(*sent)

    # -- life ----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await self.bus.start(connect_timeout_s=None)
        self._tasks = [
            asyncio.create_task(self._forever(work, name), name=name)
            for work, name in ((self._tick, "tick"), (self._watch_faults, "watch faults"), (self._probe, "probe"))
        ]

    async def _stop(self, *_: Any, **__: Any) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.prober.close()
        await self.bus.stop()
        self.status.close()

    async def _assigned(self, _app: Any, assigned: set[Any], **_: Any) -> None:
        # Whatever was in hand is finished and saved by now; from here on the table is the truth.
        self.control.forget()
        self.detection.keep({tp.partition for tp in assigned if tp.topic == topics.TELEMETRY.name})

    async def _rebalanced(self, *_: Any, **__: Any) -> None:
        mine = {tp.partition for tp in self.app.consumer.assignment() if tp.topic == topics.FAULTS.name}
        partitions = self.app.conf.topic_partitions
        self.control.restore(lambda cluster: partition_for(cluster, partitions) in mine)
        if not self.recovered:
            self.recovered = True
            click.echo(f"ready: http://{self.config.status_host}:{self.status.port}/metrics")
        log.info("holds", clusters=self.control.clusters, control_partitions=sorted(mine))

    # -- what happens by itself ------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Time, for the control stage and for the detectors: through Kafka, so that a replay has it too."""
        config = self.config
        while True:
            await asyncio.sleep(TICK_S)
            self.heartbeat.beat()
            if not self.recovered or self.bus.pending > MOST_PENDING:
                continue
            now = self.clock.now()
            for cluster in self.control.clusters:
                tick = Tick(id=stable_id("tick", cluster, round(now, 3)), time=now, cluster=cluster, host=config.node)
                self.bus.send_nowait(to_record(tick, topics.OBSERVATIONS, source=self.source))
            if self.control.clusters and self.clock.unheard() > AWAY_S:
                continue  # the detectors take the pause off every node's silence
            for record in self.detection.tick(now):
                self.bus.send_nowait(record)

    async def _watch_faults(self) -> None:
        """Every worker hears of every fault, whoever's partition it is in, so that no baseline learns from one."""
        while True:
            with contextlib.suppress(KafkaError, OSError, UserError):
                async for raw in self.bus.consume([topics.FAULTS.name], "latest"):
                    with contextlib.suppress(BadMessageError):
                        self.detection.fault(from_value(raw.topic, raw.value))
            await asyncio.sleep(1.0)

    async def _probe(self) -> None:
        """Asks the steady-state checks that look outside; a slow answer of one experiment holds up no other's."""
        asking: dict[tuple[str, str], asyncio.Task[None]] = {}
        while True:
            await asyncio.sleep(PROBE_S)
            asking = {key: task for key, task in asking.items() if not task.done()}
            if self.bus.pending > MOST_PENDING:
                continue
            for cluster, experiment_id, plan in self.control.probes():
                if (cluster, experiment_id) not in asking:
                    asking[cluster, experiment_id] = asyncio.create_task(self._ask(cluster, experiment_id, plan))

    async def _ask(self, cluster: str, experiment_id: str, plan: Plan) -> None:
        for result in await self.prober.ask(experiment_id, cluster, plan, self.clock.now()):
            self.bus.send_nowait(to_record(result, topics.OBSERVATIONS, source=self.source))

    async def _forever(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """A task that ended by an error is begun again: without ticks nothing is halted."""
        while True:
            try:
                await work()
            except Exception:
                log.exception("a task failed and is begun again", task=name)
                await asyncio.sleep(1.0)


def run(config: WorkerConfig) -> None:
    """Runs a worker until it is told to stop (SIGTERM, SIGINT).

    Raises:
        UserError: the broker does not let us in or do all that is to be done, the topics are there in another shape,
            the folder cannot be used, or the status port is another's.
    """
    logs.configure(level=config.log_level.upper())
    tracing.configure("gpuchaos-worker")
    load_rules(config.rules or [shipped_rules()])  # a mistake in them is said at once, broker or not
    _make_folder(config.data_dir)
    control_partitions = _found(config)
    worker = Worker(config, control_partitions)
    runner: Any = faust.Worker(worker.app, loglevel="WARNING", redirect_stdouts=False, override_logging=False)
    runner.spinner = None  # else it writes escape sequences into the log
    runner.execute_from_commandline()


def _make_folder(folder: Path) -> None:
    """Faust would make it without its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(str(folder), f"cannot be used ({error.strerror})", "name another --data-dir") from error


def _found(config: WorkerConfig) -> int:
    """Partitions of the control topics, once a broker answers.

    It is waited for, alive and not ready: a supervisor that starts a process again and again waits ever longer.
    """
    waiting = StatusServer(
        host=config.status_host,
        port=config.status_port,
        healthy=lambda: None,
        ready=lambda: "no broker has answered yet",
    )
    worth_saying = logs.Sparingly()
    try:
        while True:
            try:
                return asyncio.run(_prepare(config))
            except BrokerAwayError as error:
                if worth_saying(str(error)):
                    log.warning("no broker yet", error=str(error))
                time.sleep(RETRY_S)
    finally:
        waiting.close()


async def _prepare(config: WorkerConfig) -> int:
    partitions = await complete_topics(config.settings, changelogs=[changelog_name(config.app_id, TABLE)])
    await demand(config.settings, config.stage.rights(config.app_id))
    return partitions
