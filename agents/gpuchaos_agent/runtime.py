"""The agent at work: frames at their beat, facts at once, commands to the hands, and everything said onto the bus.

One event loop for what waits, one thread for what looks (`eyes`), one that decides what changes the node (`hands`, with
a thread for each step of a fault while it lasts). The broker may come and go: only sending waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from gpuchaos_agent import clock, devices, environment, metrics, slim
from gpuchaos_agent.admit import Limits
from gpuchaos_agent.believe import Believer
from gpuchaos_agent.collect import registry as collectors
from gpuchaos_agent.config import AgentSettings
from gpuchaos_agent.deadman import DeadMan
from gpuchaos_agent.executor import Executor
from gpuchaos_agent.hands import Hands
from gpuchaos_agent.hardware import Hardware
from gpuchaos_agent.inject import registry as faults
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.journal import Journal
from gpuchaos_agent.lock import take
from gpuchaos_agent.nonces import Seen
from gpuchaos_agent.outbox import Ring, Spool
from gpuchaos_agent.records import Records
from gpuchaos_agent.sender import Sender
from gpuchaos_agent.snapshot import Snapshot, Taken, fault_event
from gpuchaos_agent.traces import SERVICE
from gpuchaos_stream import __version__
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.envelope import to_record, traceparent_of
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.events.signing import KeyRing, Verifier
from gpuchaos_stream.observe import otlp
from gpuchaos_stream.observe.logs import Sparingly
from gpuchaos_stream.observe.serve import StatusServer
from gpuchaos_stream.stream.bus import BROKER_AWAY, Bus
from gpuchaos_stream.stream.settings import KafkaSettings

_log = structlog.get_logger(__name__)

#: A node tells its place again after this, seconds, even if nothing changed.
PLACE_EVERY_S: Final = 30.0
#: After so many frames everything has been loaded and tried once.
SETTLED_AFTER: Final = 5
#: How long one wait for commands lasts at most, seconds; a command ends it at once.
COMMANDS_WAIT_S: Final = 30.0
#: A missing topic, a broken reader: tried again after this, seconds.
RETRY_S: Final = 1.0
#: Seconds that a stopping agent waits for the broker to take its last fault events; then the spool keeps them.
LAST_WORDS_S: Final = 3.0


class Agent:
    """One node's agent. `run` it once.

    Raises:
        UserError: from the constructor, where the key ring cannot be read, the state directory cannot be written,
            or another agent uses it.
    """

    def __init__(self, settings: AgentSettings, kafka: KafkaSettings) -> None:
        self.settings = settings
        self._records = Records(settings, uuid.uuid4().hex[:12])
        self._lock = take(settings.state_dir)
        self._ring_stamp: tuple[int, int] | None = None
        self._believer = Believer(Verifier(KeyRing()))
        self._read_ring(at_start=True)
        self._frames = Ring(settings.frames_kept)
        self._spool = Spool(settings.state_dir / "outbox.jsonl")
        self._offset = clock.BrokerOffset()
        self._snapshot = Snapshot(collectors.build(settings.sources(), settings.collectors))
        self._taken: Taken | None = None
        self._hardware = Hardware(settings.node)
        otlp.configure_metrics(SERVICE, settings.node, self._hardware.add)
        self._eyes = ThreadPoolExecutor(1, thread_name_prefix="eyes")
        # One record a second: waiting for more to send along would be one more wake for each.
        self._bus = Bus(kafka, client_id=f"gpuchaos-agent-{settings.node}", linger_s=0.0)
        self._sender = Sender(self._bus, self._frames, self._spool, self._offset)
        self._brokers = tuple(kafka.bootstrap_servers.replace(" ", "").split(","))
        self._strategies = faults.build(self._env())
        self._executor = self._make_executor()
        self._hands = Hands(
            self._executor, cluster=settings.cluster, node=settings.node, interval_s=settings.check_interval
        )
        at_least_s = max(settings.check_interval, 0.25)
        self._deadman = DeadMan(journal=settings.journal_dir, env=self._env(), interval_s=at_least_s)
        self._status: StatusServer | None = None
        self._obeying = asyncio.Event()
        self._stirred = asyncio.Event()
        #: From looking until what was seen is safe: a position may only be kept for facts that were told.
        self._telling = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._place: tuple[object, float] | None = None
        self._frames_made = 0
        self._last_frame = clock.now().boot
        self._show()

    async def run(self, stop: asyncio.Event) -> bool:
        """Works until `stop` is set, then undoes everything; whether nothing is left on the node."""
        self._loop = asyncio.get_running_loop()
        self._hands.start()
        if self.settings.deadman:
            self._deadman.ensure()
        await self._bus.start(None)
        self._sender.start()
        self._serve()
        tasks = [
            asyncio.create_task(self._forever(step, name), name=name)
            for name, step in (("frames", self._beat), ("commands", self._obey), ("facts", self._follow))
        ]
        try:
            await stop.wait()
        finally:
            clean = await self._end(tasks)
        return clean

    # What is looked at

    async def _beat(self) -> None:
        """Frames at their interval; a late one does not shift the next."""
        interval, due = self.settings.interval, clock.now().boot
        while True:
            await self._frame()
            due = max(due + interval, clock.now().boot - interval)
            await asyncio.sleep(max(0.0, due - clock.now().boot))

    async def _frame(self) -> None:
        async with self._telling:
            at = clock.now()
            taken = await self._look(self._snapshot.take, at.wall)
            metrics.COLLECT.observe(clock.now().boot - at.boot)
            self._taken = taken
            self._hardware.feed(taken)
            for name, count in self._snapshot.errors.items():
                metrics.COLLECTOR_ERRORS.labels(name).set(count)
            await self._tell_facts(taken.facts)
        self._frames.put(self._records.frame(taken, clock_offset_s=self._offset.seconds, dropped=self._frames.dropped))
        self._last_frame = clock.now().boot
        metrics.FRAMES.inc()
        self._frames_made += 1
        if self._frames_made == SETTLED_AFTER:
            slim.give_back()
        self._sender.wake_frames()
        self._stirred.set()
        if self._obeying.is_set():
            self._tell_place(taken, at)
        self._read_ring()
        if self.settings.deadman:
            self._deadman.ensure()

    async def _follow(self) -> None:
        """Facts of logs that can be waited on, as soon as they are there."""
        loop, stirred = asyncio.get_running_loop(), self._stirred
        rung: list[int] = []

        def ring(descriptor: int) -> None:
            rung.append(descriptor)
            stirred.set()

        while True:
            # Asked anew after each frame: a log may be opened again under another descriptor.
            descriptors = {f for f in (follower.fileno() for follower in self._snapshot.followers) if f is not None}
            for descriptor in descriptors:
                # Closed meanwhile, or nothing that can be waited on (/dev/null as kmsg): each frame asks it.
                with contextlib.suppress(OSError):
                    loop.add_reader(descriptor, ring, descriptor)
            try:
                await stirred.wait()
            finally:
                for descriptor in descriptors:
                    loop.remove_reader(descriptor)
            stirred.clear()
            if rung:
                rung.clear()
                async with self._telling:
                    await self._tell_facts(await self._look(self._snapshot.drain, clock.now().wall))

    async def _look(self, what: Any, wall: float) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._eyes, what, wall)

    async def _tell_facts(self, facts: Any) -> None:
        for fact in facts:
            try:
                event = fault_event(
                    fact,
                    cluster=self.settings.cluster,
                    node=self.settings.node,
                    clock_offset_s=self._offset.seconds,
                )
                self._tell(event, None)
            except Exception as error:  # noqa: BLE001  (one that cannot be said must not take those behind it along)
                self._survive("fact", error)
        if facts:
            await asyncio.get_running_loop().run_in_executor(self._eyes, self._snapshot.commit)

    # What is said

    def _tell(self, event: FaultEvent, traceparent: str | None) -> None:
        """Keeps a fault event and sends it. Called from the hands' thread as well; never raises."""
        self._spool.put(to_record(event, topics.FAULTS, source=self._records.source, traceparent=traceparent))
        metrics.EVENTS.labels(event.phase, event.fault).inc()
        _log.info(
            event.phase.value,
            fault=event.fault,
            entity=event.entity,
            experiment_id=event.experiment_id,
            fault_id=event.fault_id,
            node=event.node,
            reason=event.reason,
        )
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: the spool keeps it
                self._loop.call_soon_threadsafe(self._sender.wake_faults)

    def _tell_place(self, taken: Taken, at: clock.Now) -> None:
        content = (taken.places, self.settings.jobs)
        if self._place is not None and self._place[0] == content and at.boot - self._place[1] < PLACE_EVERY_S:
            return
        self._place = (content, at.boot)
        event_time = at.wall + (self._offset.seconds or 0.0)
        # Lost with the agent and told again by the next: it needs no spool.
        self._bus.send_nowait(self._records.place(taken.places, event_time=event_time, strategies=self._strategies))

    # What is obeyed

    async def _obey(self) -> None:
        """Commands from now on. Older ones are nobody's: no fault outlives an agent, so none waits to be undone."""
        start: Any = "latest"
        worth_saying = Sparingly()
        while True:
            try:
                async with await self._bus.subscribe([topics.COMMANDS.name], start) as subscription:
                    if not self._obeying.is_set():
                        self._obeying.set()
                        _log.info("ready", cluster=self.settings.cluster, node=self.settings.node, pid=os.getpid())
                    while True:
                        for record in await subscription.batch(COMMANDS_WAIT_S):
                            self._take(record)
                        start = await subscription.positions()
            except (*BROKER_AWAY, UserError) as error:
                if worth_saying(str(error)):
                    _log.warning("no commands can be read", error=str(error))
                await asyncio.sleep(RETRY_S)

    def _take(self, record: Any) -> None:
        """Hands one record over. One that is not even that must not take the genuine ones beside it along."""
        try:
            if self._hands.give(record.value, traceparent_of(record.headers)):
                metrics.COMMANDS.inc()
        except Exception as error:  # noqa: BLE001  (anybody who reaches Kafka may write anything)
            self._survive("command", error)

    def _read_ring(self, *, at_start: bool = False) -> None:
        """Takes the key ring anew when its file has changed; a broken file leaves the old one in force."""
        path = self.settings.keyring
        if path is None:
            return
        try:
            found = path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp == self._ring_stamp:
                return
            self._believer.use(Verifier(KeyRing.load(path)))
            self._ring_stamp = stamp
        except (OSError, ValueError) as error:
            if at_start:
                raise UserError(str(path), f"no key ring: {error}", "make one: gpuchaos keys make") from error
            self._survive("keyring", error)

    # Parts

    def _env(self) -> Env:
        return environment.of(self.settings, brokers=self._brokers, gpu_pci=self._gpu_pci)

    def _gpu_pci(self, index: str) -> str | None:
        taken = self._taken
        return next((gpu.pci for gpu in taken.places.gpus if gpu.index == index and gpu.pci), None) if taken else None

    def _make_executor(self) -> Executor:
        settings = self.settings
        try:
            journal = Journal(settings.journal_dir)
            seen = Seen(settings.state_dir / "seen.jsonl", now=clock.now().wall)
        except OSError as error:
            raise UserError(
                str(settings.state_dir), f"cannot be written: {error.strerror}", "set --state-dir"
            ) from error
        return Executor(
            cluster=settings.cluster,
            node=settings.node,
            boot_id=clock.boot_id(settings.procfs),
            strategies=self._strategies,
            journal=journal,
            seen=seen,
            believer=self._believer,
            emit=self._tell,
            offset=lambda: self._offset.seconds,
            clock=clock.now,
            limits=Limits(settings.longest_lease, settings.most_faults),
        )

    def _serve(self) -> None:
        if self.settings.http_port is None:
            return
        try:
            self._status = StatusServer(
                host=self.settings.http_host,
                port=self.settings.http_port,
                healthy=self._healthy,
                ready=self._ready,
                alive=self._alive,
                option="http_port",
            )
        except UserError as error:
            self._survive("status", error)
        else:
            _log.info("status is served", port=self._status.port)

    async def _forever(self, step: Any, name: str) -> None:
        """A part that fails is counted, said, and begun again: none takes the others with it."""
        while True:
            try:
                await step()
            except Exception as error:  # noqa: BLE001
                self._survive(name, error)
                await asyncio.sleep(RETRY_S)

    def _survive(self, part: str, error: Exception) -> None:
        metrics.ERRORS.labels(part).inc()
        _log.warning("a part failed and the rest goes on", part=part, error=f"{type(error).__name__}: {error}")

    async def _end(self, tasks: list[asyncio.Task[None]]) -> bool:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        clean = await asyncio.to_thread(self._hands.stop)
        if not await self._sender.drained(LAST_WORDS_S):
            _log.warning("fault events are kept for the next start", bytes=self._spool.pending_bytes)
        await self._sender.stop()
        await self._bus.stop(0.2)
        if self._status is not None:
            await asyncio.to_thread(self._status.close)
        self._deadman.release()
        self._spool.close()
        with contextlib.suppress(TimeoutError):  # a collector that hangs: the node is clean, which is what counts
            await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(self._eyes, self._snapshot.close), 2)
        self._eyes.shutdown(wait=False)
        self._lock.close()
        return clean

    # What is told of itself

    def _show(self) -> None:
        metrics.INFO.labels(self.settings.cluster, self.settings.node, __version__).set(1)
        devices.show(self.settings, lambda: self._taken)
        metrics.DROPPED.set_function(lambda: self._frames.dropped)
        metrics.WAITING.set_function(lambda: len(self._frames))
        metrics.SPOOL.set_function(lambda: self._spool.pending_bytes)
        metrics.DEGRADED.set_function(lambda: self._spool.degraded)
        metrics.ACTIVE.set_function(lambda: len(self._executor.active))
        metrics.FAILING.set_function(lambda: len(self._executor.failing) + len(self._executor.unread))
        metrics.HANGING.set_function(lambda: len(self._executor.hanging))
        metrics.OFFSET.set_function(lambda: math.nan if self._offset.seconds is None else self._offset.seconds)

    def _alive(self) -> str | None:
        at, settings = clock.now().boot, self.settings
        for part, last, allowed in (
            ("frame", self._last_frame, 5 * settings.interval + 5),
            ("look at the leases", self._hands.last_tick, 5 * settings.check_interval + 5),
        ):
            if at - last > allowed:
                return f"the last {part} was {at - last:.1f} s ago"
        return None

    def _healthy(self) -> str | None:
        if (late := self._alive()) is not None:
            return late
        for item in self._executor.unread:
            return f"fault {item.fault_id} may stand: the journal cannot read it ({item.problem}); see undo --all"
        return next((f"fault {fault_id}: {problem}" for fault_id, problem in self._executor.hanging.items()), None)

    def _ready(self) -> str | None:
        if not self._bus.connected:
            return "no broker has answered yet"
        if not self._obeying.is_set():
            return "the commands topic is not read yet"
        if self.settings.keyring is None and self.settings.most_faults > 0:
            return "no key ring is set: no command is believed"
        return None
