"""`gpuchaos sim`: a simulated cluster on the real topics. It speaks as agents do and obeys the same commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from pydantic import ValidationError

from gpuchaos_agent.clock import BrokerOffset
from gpuchaos_agent.clock import now as clocks
from gpuchaos_stream.commandline import exits
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.codec import CONTENT_TYPE
from gpuchaos_stream.events.command import SignedCommand
from gpuchaos_stream.events.envelope import Record, cloud_headers, to_record, traceparent_of
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.events.signing import Verifier
from gpuchaos_stream.events.topics import Topic
from gpuchaos_stream.observe import logs
from gpuchaos_stream.sim.agents import SimulatedAgents
from gpuchaos_stream.sim.cluster import Encoded, SimulatedCluster
from gpuchaos_stream.sim.organic import LLAMA3_RATE, Organic
from gpuchaos_stream.sim.script import Failure, Script
from gpuchaos_stream.sim.script import load as load_script
from gpuchaos_stream.sim.spec import ClusterSpec
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.options import cluster_option, kafka_options, key_ring
from gpuchaos_stream.stream.settings import KafkaSettings, load

#: Seconds between two looks at commands' effects and leases.
CHECK_S: Final = 0.05
#: Seconds between two announcements of every node's place.
INFO_S: Final = 30.0
#: Ticks of telemetry that may wait for a broker that is away; older ones are dropped and counted.
TICKS_KEPT: Final = 30


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    spec: ClusterSpec
    seed: int = 1
    interval_s: float = 1.0
    failure_rate: float = 0.0
    failures: tuple[Failure, ...] = ()
    truth: Path | None = None


class Simulator:
    """Drives one simulated cluster on one bus. Everything that decides is in `sim/`; here are clock and wire."""

    def __init__(self, bus: Bus, verifier: Verifier, options: Options) -> None:
        rng = np.random.default_rng(options.seed)
        world_rng, agents_rng, organic_rng = rng.spawn(3)
        self._bus = bus
        self._options = options
        self._source = f"/sim/{options.spec.cluster}"
        self._offset = BrokerOffset()
        self._traces: dict[str, str] = {}
        self._written = ""
        started = self.now()
        self.cluster = SimulatedCluster(options.spec, world_rng, run=f"{started:.3f}")
        self.agents = SimulatedAgents(self.cluster, verifier, agents_rng)
        self._organic = Organic(self.cluster, organic_rng, options.failure_rate)
        self._script = Script(options.failures, self._organic, started)

    def now(self) -> float:
        """The broker's clock, as far as it is known, epoch seconds."""
        return time.time() + (self._offset.seconds or 0.0)

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set. Says `ready` when every node's place is on the broker and commands are heard."""
        async with await self._bus.subscribe((topics.COMMANDS.name,), "latest") as commands:
            await asyncio.gather(*(self._send(topics.NODES, info) for info in self.cluster.infos(self.now())))
            self.cluster.infos(self.now(), changed_only=True)
            self._frames()
            click.echo(f"ready: {self.cluster.spec.nodes} simulated nodes in cluster {self.cluster.spec.cluster}")
            tasks = [asyncio.create_task(self._listen(commands)), asyncio.create_task(self._beat())]
            waiting = asyncio.create_task(stop.wait())
            done, _ = await asyncio.wait({*tasks, waiting}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*tasks, waiting):
                task.cancel()
            await asyncio.gather(*tasks, waiting, return_exceptions=True)
            for task in done:
                if task is not waiting:
                    task.result()
        self._write_truth()

    async def _listen(self, commands: Any) -> None:
        async for record in commands:
            try:
                signed = SignedCommand.model_validate_json(record.value or b"")
            except ValidationError:
                continue  # the control plane sets it aside
            self._remember_trace(signed, traceparent_of(record.headers))
            for event in self.agents.command(signed, self.now()):
                self._tell(event)

    async def _beat(self) -> None:
        interval = self._options.interval_s
        due = time.monotonic() + interval
        info_due = time.monotonic() + INFO_S
        while True:
            await asyncio.sleep(CHECK_S)
            now = self.now()
            for event in self.agents.tick(now):
                self._tell(event)
            self._organic.tick(now)
            for fact in self.cluster.facts():
                self._tell(fact)
            if time.monotonic() >= due:
                due += interval * max(1, round((time.monotonic() - due) / interval))
                self._frames()
                for info in self.cluster.infos(now, changed_only=True):
                    self._send(topics.NODES, info)
                self._write_truth()
            if time.monotonic() >= info_due:
                info_due += INFO_S
                for info in self.cluster.infos(now):
                    self._send(topics.NODES, info)

    def _frames(self) -> None:
        """One tick of telemetry. A broker that is away costs the newest ticks, counted in each frame."""
        frames = self.cluster.step(self.now())
        if self._bus.pending > TICKS_KEPT * self.cluster.spec.nodes:
            self.cluster.dropped += 1
            return
        sent = clocks()
        for number, frame in enumerate(frames):
            future = self._bus.send_nowait(self._telemetry(frame))
            if number == 0:
                future.add_done_callback(lambda done: self._measure(sent, done))

    def _measure(self, sent: Any, done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and done.exception() is None and done.result().broker_time is not None:
            self._offset.add(sent, clocks(), done.result().broker_time)

    def _telemetry(self, frame: Encoded) -> Record:
        return Record(
            topic=topics.TELEMETRY,
            key=frame.cell,
            partition_by=frame.cell,
            value=frame.value,
            headers=cloud_headers(
                kind="telemetryframe",
                event_id=frame.event_id,
                source=f"{self._source}/{frame.node}",
                time=frame.time,
                content_type=CONTENT_TYPE,
                traceparent=None,
            ),
        )

    def _tell(self, event: FaultEvent) -> None:
        self._script.feed(event)
        self._send(topics.FAULTS, event)

    def _send(self, topic: Topic, event: Event) -> asyncio.Future[Any]:
        trace = self._traces.get(event.experiment_id or "") if isinstance(event, FaultEvent) else None
        return self._bus.send_nowait(to_record(event, topic, source=self._source, traceparent=trace))

    def _remember_trace(self, signed: SignedCommand, traceparent: str | None) -> None:
        if traceparent is None:
            return
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            experiment_id = json.loads(signed.payload).get("experiment_id")
            if isinstance(experiment_id, str):
                self._traces.setdefault(experiment_id, traceparent)

    def _write_truth(self) -> None:
        if self._options.truth is None:
            return
        text = "".join(truth.model_dump_json() + "\n" for truth in self.cluster.truth)
        if text != self._written:
            self._written = text
            self._options.truth.write_text(text)


async def simulate(settings: KafkaSettings, keyring: Path, options: Options) -> None:
    """Runs a simulated cluster until SIGINT or SIGTERM.

    Raises:
        UserError: no broker, no topics, no key ring, a failure that cannot be.
    """
    verifier = Verifier(key_ring(keyring))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Bus(settings, client_id=f"gpuchaos-sim-{options.spec.cluster}") as bus:
        await Simulator(bus, verifier, options).run(stop)


@click.command()
@kafka_options
@click.option("--nodes", default=64, show_default=True, help="Nodes of 8 GPUs and 8 RDMA ports.")
@click.option("--cells", default=4, show_default=True, help="Cells they are spread over.")
@cluster_option
@click.option("--seed", default=1, show_default=True, help="The same seed, the same machines and chances.")
@click.option("--interval", default=1.0, show_default=True, help="Seconds between two frames of a node.")
@click.option(
    "--failure-rate",
    default=0.0,
    show_default=True,
    help=f"Failures nobody asked for, per node and day ({LLAMA3_RATE:g} is Llama 3's).",
)
@click.option("--failures", type=click.Path(path_type=Path), help="YAML file of failures at set times.")
@click.option("--truth", type=click.Path(path_type=Path), help="Where to write what really happened (JSON lines).")
@click.option("--keyring", type=click.Path(path_type=Path), required=True, help="Public keys that are believed.")
@exits({0: "ended by Ctrl-C or SIGTERM"})
def sim(
    *,
    nodes: int,
    cells: int,
    cluster: str,
    seed: int,
    interval: float,
    failure_rate: float,
    failures: Path | None,
    truth: Path | None,
    keyring: Path,
    bootstrap_servers: str | None,
    kafka_config: Path | None,
) -> None:
    """Run a simulated cluster on the topics, beside real agents or alone."""
    logs.configure()
    if interval <= 0 or failure_rate < 0:
        raise UserError("gpuchaos sim", "--interval or --failure-rate is negative", "make it positive")
    options = Options(
        spec=ClusterSpec(cluster=cluster, nodes=nodes, cells=cells),
        seed=seed,
        interval_s=interval,
        failure_rate=failure_rate,
        failures=load_script(failures) if failures is not None else (),
        truth=truth,
    )
    asyncio.run(simulate(load(kafka_config, bootstrap_servers=bootstrap_servers), keyring, options))
