"""Whole runs of the simulated loop without a broker, gathered into stories, and experiments of every verdict."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.command import Command
from gpuchaos_stream.events.envelope import Record, command_record, to_record
from gpuchaos_stream.events.experiment import BreakerState, ExperimentState
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.events.observation import CellSummary, Tick
from gpuchaos_stream.experiments.client import start_command
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.guard.rules import rule_files
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.loop.recording import Header, Recorded, Writer
from gpuchaos_stream.report.story import Story
from gpuchaos_stream.sim.scenarios import CLUSTER, scenarios

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sim"))

from sim_help import OPERATOR, RING
from sim_loop_help import Whole

_SPREADING, _RECORD = (each.plan for each in scenarios(4242)[1:])


class Recorder(Whole):
    """The whole loop, which also keeps every event that a report is made of, and all that it was fed."""

    def __init__(self, cluster: str) -> None:
        self.events: list[Event] = []
        self.inputs: list[tuple[float, Event | Command]] = []
        super().__init__(cluster)
        self.events += self.cluster.infos(self.now)
        self.inputs += [(self.now, info) for info in self.cluster.infos(self.now)]
        feed = self.loop.feed

        def hear(event: Event) -> None:
            self.inputs.append((self.now, event))
            feed(event)

        self.loop.feed = hear  # type: ignore[method-assign]

    def start(self, plan: Plan) -> str:
        """As `Whole.start`, and keeps the command."""
        command = start_command(plan, cluster=self.name, experiment_id=f"{plan.name}-1", now=self.now)
        self.inputs.append((self.now, command))
        self.loop.command(command, now=self.now)
        return str(command.experiment_id)

    def _fault(self, event: FaultEvent) -> None:
        self.events.append(event)
        super()._fault(event)

    def _note(self, topic: str, event: Event) -> None:
        self.events.append(event)
        super()._note(topic, event)


@dataclass(frozen=True)
class Told:
    """One experiment with everything that was said."""

    state: ExperimentState
    events: tuple[Event, ...] = field(repr=False)
    inputs: tuple[tuple[float, Event | Command], ...] = field(repr=False)

    @property
    def story(self) -> Story:
        return Story.of(self.events)


def _passed() -> Told:
    return _run(_RECORD)


def _halted() -> Told:
    return _run(_SPREADING)


def _failed() -> Told:
    """Held to objectives that are shorter than its fault."""
    goals = _RECORD.objectives.model_copy(update={"ttm": 5.5, "ttr": 6.0})
    return _run(_RECORD.model_copy(update={"objectives": goals}))


def _void() -> Told:
    """Aimed at a node that the cluster does not have."""
    targets = _RECORD.targets.model_copy(update={"entities": ("gpu/n999/0",)})
    return _run(_RECORD.model_copy(update={"targets": targets}))


def _stopped() -> Told:
    whole = Recorder(CLUSTER)
    whole.run(10)
    name = whole.start(_SPREADING.model_copy(update={"limits": _RECORD.limits}))
    whole.run(8)
    whole.loop.machine.stop(name, reason="lunch", by="ada")
    return _told(whole, name)


#: Verdict → an experiment that ends with it.
EVERY: dict[str, Callable[[], Told]] = {
    "passed": _passed,
    "failed": _failed,
    "halted": _halted,
    "void": _void,
    "stopped": _stopped,
}


@cache
def told(verdict: str) -> Told:
    """An experiment with that verdict, run once for all tests."""
    return EVERY[verdict]()


def _run(plan: Plan) -> Told:
    whole = Recorder(CLUSTER)
    whole.run(10)
    return _told(whole, whole.start(plan))


def _told(whole: Recorder, name: str) -> Told:
    (state,) = whole.run_until_finished(name)
    return Told(state, tuple(whole.events), tuple(whole.inputs))


def records(events: tuple[Event, ...]) -> list[Record]:
    """The events as they travel, each on its own topic."""
    return [to_record(event, _topic(event), source="/test") for event in events]


def recording(path: Path, events: tuple[Event, ...]) -> Path:
    """A recording of what the loop concluded, as `gpuchaos record` would write it."""
    return _write(path, [(event.time, record) for event, record in zip(events, records(events), strict=True)])


def bare_recording(path: Path, one: Told) -> Path:
    """A recording of what the loop was fed alone: no state of an experiment is in it."""
    said: list[tuple[float, Record]] = []
    for at, each in one.inputs:
        if isinstance(each, Command):
            said.append((at, command_record(each, OPERATOR, source="/test")))
        else:
            said.append((at, to_record(each, _topic(each), source="/test")))
    return _write(path, said)


def _write(path: Path, said: Iterable[tuple[float, Record]]) -> Path:
    rules = {file.name: file.read_text() for file in rule_files([shipped_rules()])}
    with Writer(path, Header(RING, rules)) as writer:
        for offset, (at, record) in enumerate(said):
            headers = tuple(record.headers)
            key, name = record.key.encode(), record.topic.name
            writer.write(Recorded(name, 0, offset, round(at * 1000), key, record.value, headers))
    return path


#: Kind of event → its topic.
_TOPICS: dict[type[Event], topics.Topic] = {
    Incident: topics.INCIDENTS,
    FaultEvent: topics.FAULTS,
    NodeInfo: topics.NODES,
    Anomaly: topics.ANOMALIES,
    Tick: topics.OBSERVATIONS,
    CellSummary: topics.OBSERVATIONS,
    ExperimentState: topics.EXPERIMENTS,
    BreakerState: topics.EXPERIMENTS,
}


def _topic(event: Event) -> topics.Topic:
    return _TOPICS[type(event)]


def xml(text: str) -> ET.Element:
    """The text read as XML; what is not well-formed raises."""
    return ET.fromstring(text.encode())  # noqa: S314  (we wrote it ourselves a moment ago)
