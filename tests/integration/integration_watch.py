"""What the integration tests share: a watcher of all topics, and independent answers made from raw records."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import yaml
from aiokafka import AIOKafkaConsumer, TopicPartition

from gpuchaos_agent.inject.process_stop import read_process
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.codec import unpack_full
from gpuchaos_stream.events.command import Command, CommandKind, Role, SignedCommand
from gpuchaos_stream.events.deadletter import DeadLetter
from gpuchaos_stream.events.envelope import BadMessageError, command_record, from_value
from gpuchaos_stream.events.experiment import BreakerState, ExperimentState, Status
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.events.frame import TelemetryFrame
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.experiments.client import start_command
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.embedded import end_offsets
from gpuchaos_stream.stream.house import READY, House
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options

ALL = [topic.name for topic in topics.TOPICS]


class Watch:
    """Reads every topic from its beginning and remembers what it saw. `until` waits for records, never for time."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self.bus = Bus(settings, client_id="watch")
        self.seen: dict[str, list[Any]] = {name: [] for name in ALL}
        self._subscription: Any = None

    async def __aenter__(self) -> Self:
        await self.bus.start()
        self._subscription = await self.bus.subscribe(ALL, "earliest")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._subscription.stop()
        await self.bus.stop()

    async def until(self, done: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
        """Reads until `done()` is true, and returns what it gave; fails with `what` in words."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not (answer := done()):
            assert asyncio.get_running_loop().time() < deadline, f"not in {timeout_s:.0f} s: {what}"
            for raw in await self._subscription.batch(0.5):
                self.seen[raw.topic].append(raw)
        return answer

    async def read_on(self, seconds: float) -> None:
        """Reads for a while: for what must *not* come."""
        deadline = asyncio.get_running_loop().time() + seconds
        await self.until(lambda: asyncio.get_running_loop().time() >= deadline, "time passes", seconds + 10)

    def events(self, topic: topics.Topic) -> list[Any]:
        """The readable events of a topic, in order of arrival."""
        found: list[Any] = []
        for raw in self.seen[topic.name]:
            try:
                found.append(from_value(topic.name, raw.value))
            except BadMessageError:
                continue
        return found

    def state(self, experiment_id: str) -> ExperimentState | None:
        """The latest state of an experiment."""
        states = [e for e in self.events(topics.EXPERIMENTS) if isinstance(e, ExperimentState)]
        return next((e for e in reversed(states) if e.id == experiment_id), None)

    def reached(self, experiment_id: str, *statuses: Status) -> ExperimentState | None:
        """Its state once it is in one of `statuses`, or past all of them."""
        state = self.state(experiment_id)
        return state if state is not None and (state.status in statuses or state.status is Status.FINISHED) else None

    def faults(self, **fields: object) -> list[FaultEvent]:
        """Fault events whose fields have these values."""
        events = self.events(topics.FAULTS)
        return [e for e in events if all(getattr(e, name) == value for name, value in fields.items())]

    def commands(self, kind: CommandKind) -> list[Command]:
        """Commands of a kind, as they were sent, repeats included."""
        signed: list[SignedCommand] = self.events(topics.COMMANDS)
        commands = [Command.model_validate_json(each.payload) for each in signed]
        return [command for command in commands if command.kind is kind]

    def letters(self) -> list[DeadLetter]:
        """All dead letters, repeats included."""
        return [e for e in self.events(topics.DEADLETTER) if isinstance(e, DeadLetter)]

    def breaker(self, cluster: str) -> BreakerState | None:
        """The latest state of a cluster's breaker."""
        states = [e for e in self.events(topics.EXPERIMENTS) if isinstance(e, BreakerState)]
        return next((e for e in reversed(states) if e.cluster == cluster), None)

    def frames(self, cluster: str) -> list[TelemetryFrame]:
        """The frames of a cluster, in order of arrival."""
        frames = (unpack_full(raw.value) for raw in self.seen[topics.TELEMETRY.name])
        return [frame for frame in frames if frame.cluster == cluster]

    async def start(self, house: House, plan: Plan, cluster: str) -> str:
        """Starts an experiment as an operator would; returns its id."""
        command = start_command(plan, cluster=cluster)
        signer = Signer.load(house.key(Role.OPERATOR))
        await self.bus.send(command_record(command, signer, source="/test"))
        assert command.experiment_id is not None
        return command.experiment_id

    def true_recovery(self, cluster: str, job: str, injected: float, share: float, hold_s: float) -> float:
        """TTR read off the raw frames: seconds from `injected` to the first `hold_s` in which every rank is at pace.

        Made without any stage of the loop, to hold its answer against.
        """
        pace = self._pace(cluster, job)
        before = sorted(rate for at, rate in pace.items() if at <= injected)
        bound = share * before[len(before) // 2]
        ok_since = None
        was_bad = False
        for at in sorted(at for at in pace if at > injected):
            if pace[at] < bound:
                was_bad, ok_since = True, None
            elif was_bad:
                ok_since = at if ok_since is None else ok_since
                if at - ok_since >= hold_s:
                    return ok_since - injected
        raise AssertionError("the frames show no recovery")

    def _pace(self, cluster: str, job: str) -> dict[float, float]:
        """The slowest rank's step rate in each second."""
        pace: dict[float, float] = {}
        for raw in self.seen[topics.TELEMETRY.name]:
            frame = unpack_full(raw.value)
            if frame.cluster != cluster:
                continue
            for group, columns in zip(frame.layout.groups, frame.values, strict=True):
                if group.kind != "process":
                    continue
                rates = columns[group.metrics.index("steps_rate")]
                for owner, rate in zip(group.labels.get("job", ()), rates, strict=True):
                    if owner == job and rate is not None:
                        second = math.floor(frame.event_time)
                        pace[second] = min(rate, pace.get(second, math.inf))
        return pace

    async def commits_reach_the_end(self, app_id: str, timeout_s: float = 30.0) -> None:
        """Waits until the group has committed all that is there now, on every input. Ticks keep it awake."""
        names = [t.name for t in (topics.TELEMETRY, *topics.CONTROL_INPUTS, *topics.AUDITED)]
        reader: Any = AIOKafkaConsumer(**aiokafka_options(self.settings), group_id=app_id, enable_auto_commit=False)
        await reader.start()
        try:
            cluster = await reader._client.fetch_all_metadata()
            partitions = [TopicPartition(n, p) for n in names for p in cluster.partitions_for_topic(n)]
            ends = {tp: end for tp, end in (await end_offsets(reader, partitions)).items() if end}
            deadline = asyncio.get_running_loop().time() + timeout_s
            while behind := [tp for tp, end in ends.items() if (await reader.committed(tp) or 0) < end]:
                assert asyncio.get_running_loop().time() < deadline, f"commits stand still on {behind}"
                await self._subscription.batch(0.5)
        finally:
            await reader.stop()


def plan(
    *,
    target: str,
    job: str,
    name: str = "test",
    fault: str = "process-stop",
    params: dict[str, Any] | None = None,
    duration: float = 8.0,
    limits: dict[str, float] | None = None,
    share: float = 0.7,
    lease: float = 6.0,
    certifies: Iterable[str] = ("hang-detection",),
) -> Plan:
    """A plan on one target, judged by its job's pace."""
    return Plan.model_validate(
        {
            "api_version": "gpuchaos/v1",
            "kind": "Experiment",
            "name": name,
            "description": "an integration test",
            "owner": "tests",
            "fault": {"name": fault, "params": params or {}, "certifies": tuple(certifies)},
            "targets": {"entities": (target,)},
            "duration": duration,
            "lease": lease,
            "undo": {"method": "automatic", "deadline": 20.0},
            "limits": {"gpus": 64, "nodes": 8, "jobs": 0, "gpu_seconds": 9000.0} | (limits or {}),
            "steady_state": {
                "hold": 3.0,
                "checks": (
                    {
                        "name": "pace",
                        "telemetry": {
                            "of": f"job/{job}",
                            "metric": "steps_rate",
                            "op": ">=",
                            "value": share,
                            "relative_to": "baseline",
                        },
                    },
                ),
            },
            "objectives": {"ttd": 10.0, "ttm": 40.0, "ttr": 60.0},
            "settle": 2.0,
        }
    )


def ids(events: Iterable[Event]) -> set[str]:
    """Their ids."""
    return {event.id for event in events}


def write_job(path: Path) -> Path:
    """A real job: prints a step a tenth of a second into its log, for ever."""
    path.write_text(
        "import sys, time\n"
        "log = open(sys.argv[1], 'a', buffering=1)\n"
        "step = 0\n"
        "while True:\n"
        "    begin = time.monotonic()\n"
        "    time.sleep(0.1)\n"
        "    step += 1\n"
        "    log.write(f'step={step} step_time={time.monotonic() - begin:.3f}\\n')\n"
    )
    return path


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, as /proc says."""
    process = read_process(Path("/proc"), pid)
    return process is not None and process.state == "T"


@dataclass(frozen=True, slots=True)
class RealNode:
    """A real agent on this machine with a real job, for whose process it is responsible."""

    node: str
    job: str
    pid: int
    agent: Child

    @property
    def target(self) -> str:
        """The job's process, as an experiment names it."""
        return f"process/{self.node}/{self.pid}"


def real_node(house: House, *, cluster: str, node: str = "real", job: str = "toy", **config: object) -> RealNode:
    """Starts a real job and the agent that watches it; returns when the agent hears commands.

    `config` is the agent's configuration file beside what is needed here.
    """
    log = house.folder / f"{job}.log"
    process = house.start(job, sys.executable, str(write_job(house.folder / f"{job}.py")), str(log))
    settings = {
        "cluster": cluster,
        "cell": f"cell-{node}",
        "http_port": 0,
        "jobs": [{"job": job, "pid": process.pid, "log": str(log)}],
        **config,
    }
    path = house.folder / f"{node}.yaml"
    path.write_text(yaml.safe_dump(settings))
    agent = house.agent(node, "--config", str(path)).wait_for(READY)
    return RealNode(node=node, job=job, pid=process.pid, agent=agent)


def needs_kernel_log() -> Path:
    """The kernel log; skips where a test may not write to it."""
    path = Path("/dev/kmsg")
    if not os.access(path, os.R_OK | os.W_OK):
        pytest.skip("the kernel log cannot be read and written: needs root and /dev/kmsg")
    return path


def dump(value: object) -> str:
    """For a failing assertion."""
    return json.dumps(value, indent=1, default=str)[:4000]
