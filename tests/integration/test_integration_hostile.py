"""Commands that nobody trusted sent, and messages that nobody can read: nothing changes, all of it is told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from integration_hostile_help import flood, forgeries, malformed, send
from integration_watch import Watch, dump, ids, is_stopped, plan, real_node

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import entity_node, stable_id
from gpuchaos_stream.events.command import Command, CommandKind, Role, SignedCommand
from gpuchaos_stream.events.deadletter import DeadLetter
from gpuchaos_stream.events.envelope import Record
from gpuchaos_stream.events.experiment import ExperimentState, Status, Verdict
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.signing import Refusal, Signer
from gpuchaos_stream.experiments.client import operator_command, start_command
from gpuchaos_stream.stream.bus import Ack
from gpuchaos_stream.stream.house import READY, House

pytestmark = [pytest.mark.broker, pytest.mark.timeout(150)]

CLUSTER = "hostile"
JOB = "train-c0-0"
TARGET = "process/n002/4101"
SIM = ("--nodes", "12", "--cells", "1", "--cluster", CLUSTER, "--seed", "7")
#: Malformed messages on each topic.
MANY = 10_000


def operator(house: House) -> Signer:
    return Signer.load(house.key(Role.OPERATOR))


def control(house: House) -> Signer:
    return Signer.load(house.key(Role.CONTROL))


def letter_at(watch: Watch, ack: Ack) -> DeadLetter | None:
    """The dead letter of the record that `ack` is about."""
    place = (ack.topic, ack.partition, ack.offset)
    return next((e for e in watch.letters() if (e.topic, e.partition, e.offset) == place), None)


def experiments(watch: Watch) -> set[str]:
    return ids(e for e in watch.events(topics.EXPERIMENTS) if isinstance(e, ExperimentState))


def tripped(watch: Watch) -> bool:
    state = watch.breaker(CLUSTER)
    return state is not None and state.tripped


async def set_aside(watch: Watch, signed: SignedCommand, refusal: Refusal, what: str) -> None:
    """Sends a command that must be refused by the control plane; returns when its dead letter says why."""
    ack = await send(watch, signed, CLUSTER)
    letter = await watch.until(lambda: letter_at(watch, ack), f"a letter: {what}")
    assert letter.stage == "control", what
    assert letter.reason.startswith(f"refused ({refusal.value})"), f"{what}: {letter.reason}"


async def forge_all(watch: Watch, house: House, make: Callable[[float], Command]) -> None:
    """Sends every forgery of the operator's command that `make` gives for a time."""
    for what, signed, refusal in forgeries(make, operator(house), wrong_role=control(house)):
        await set_aside(watch, signed, refusal, what)


async def test_control_plane_obeys_no_forged_altered_expired_or_replayed_command(house: House) -> None:
    worker = house.worker().wait_for(READY)
    house.sim(*SIM).wait_for(READY)
    hang = plan(target=TARGET, job=JOB, duration=30.0, lease=20.0)

    def start(now: float) -> Command:
        return start_command(hang, cluster=CLUSTER, now=now)

    def stop_all(now: float) -> Command:
        return operator_command(CommandKind.STOP_ALL, cluster=CLUSTER, now=now, reason="a test")

    def reset(now: float) -> Command:
        return operator_command(CommandKind.RESET, cluster=CLUSTER, now=now, reason="a test")

    async with Watch(house.settings) as watch:
        await watch.read_on(5.0)
        # No start, no experiment.
        await forge_all(watch, house, start)
        assert not experiments(watch)
        assert not watch.commands(CommandKind.INJECT)

        # While one runs: no stop, no second start, no breaker.
        started = operator(house).sign(start(time.time()))
        await send(watch, started, CLUSTER)
        (experiment,) = await watch.until(lambda: experiments(watch), "the genuine start is obeyed")
        await watch.until(lambda: watch.reached(experiment, Status.ACTIVE), "the fault is in place")
        await forge_all(watch, house, stop_all)
        await set_aside(watch, started, Refusal.REPLAYED, "a start, sent again")
        state = watch.state(experiment)
        assert state is not None
        assert state.status is Status.ACTIVE, state.reason
        assert not tripped(watch)

        # A tripped breaker is reset by nobody but a person who may.
        stopped = operator(house).sign(stop_all(time.time()))
        await send(watch, stopped, CLUSTER)
        await watch.until(lambda: tripped(watch), "the genuine stop trips the breaker")
        await forge_all(watch, house, reset)
        assert tripped(watch)
        opened = operator(house).sign(reset(time.time()))
        await send(watch, opened, CLUSTER)
        await watch.until(lambda: not tripped(watch), "the genuine reset closes it")
        await watch.until(lambda: watch.reached(experiment, Status.FINISHED), "the stopped one ends")

        # What was true once is not true for ever: a later experiment is not stopped by an old stop.
        later = await watch.start(house, plan(target=TARGET, job=JOB, duration=4.0, lease=4.0), CLUSTER)
        await watch.until(lambda: watch.reached(later, Status.ACTIVE), "a later experiment runs")
        for what, signed in (("start", started), ("stop of all", stopped), ("reset", opened)):
            await set_aside(watch, signed, Refusal.REPLAYED, f"a {what}, sent again")
        assert not tripped(watch)
        state = await watch.until(lambda: watch.reached(later, Status.FINISHED), "it finishes", 60.0)
        assert state.verdict is Verdict.PASSED, state.reason
        assert not tripped(watch)
        assert experiments(watch) == {experiment, later}
        assert len(ids(watch.faults(phase=FaultPhase.INJECTED))) == 2
        assert worker.running


def command_for(target: str, kind: CommandKind, *, experiment: str) -> Callable[[float], Command]:
    """Makes a command of the control plane to the agent of `target`, for a time."""
    node, fault_id = entity_node(target), stable_id(experiment, target)
    body = {"fault": "process-stop", "entity": target, "lease_s": 40.0} if kind is CommandKind.INJECT else {}
    if kind is CommandKind.RENEW:
        body = {"lease_s": 200.0}

    def make(now: float) -> Command:
        unique = stable_id(kind, fault_id, now)
        return Command.model_validate(
            {"id": unique, "time": now, "cluster": CLUSTER, "kind": kind, "expires": now + 30.0, "nonce": unique}
            | {"node": node, "experiment_id": experiment, "fault_id": fault_id, **body}
        )

    return make


def refused(watch: Watch, node: str, refusal: str) -> set[str]:
    """Ids of the node's refusals of a kind."""
    events = watch.faults(node=node, phase=FaultPhase.REFUSED)
    return ids(event for event in events if event.reason.startswith(refusal))


async def refuse(watch: Watch, signed: SignedCommand, node: str, refusal: str, what: str) -> None:
    """Sends a command that the agent must refuse; returns when it has told so."""
    before = refused(watch, node, refusal)
    await send(watch, signed, CLUSTER)
    await watch.until(lambda: refused(watch, node, refusal) - before, f"{node} refuses {what} as {refusal}", 20.0)


def of_fault(watch: Watch, fault_id: str, phase: FaultPhase) -> list[FaultEvent]:
    return watch.faults(fault_id=fault_id, phase=phase)


async def agent_believes_none(watch: Watch, house: House, target: str) -> None:
    """The agent of `target` under forged, altered, expired and replayed commands, before, while and after a fault."""
    node, experiment = str(entity_node(target)), f"e-{stable_id(target)}"
    fault_id, signer = stable_id(experiment, target), control(house)
    makes = {kind: command_for(target, kind, experiment=experiment) for kind in CommandKind}
    for what, signed, refusal in forgeries(makes[CommandKind.INJECT], signer, wrong_role=operator(house)):
        await refuse(watch, signed, node, refusal.value, f"an inject, {what}")
    assert not of_fault(watch, fault_id, FaultPhase.INJECTED)

    genuine = signer.sign(makes[CommandKind.INJECT](time.time()))
    await send(watch, genuine, CLUSTER)
    await watch.until(lambda: of_fault(watch, fault_id, FaultPhase.INJECTED), "the genuine inject is obeyed")
    for kind in (CommandKind.HALT, CommandKind.UNDO):
        # An authentic undo is believed whenever it comes and from any role: it can only take a fault away.
        for what, signed, refusal in forgeries(makes[kind], signer, wrong_role=None, untimely=False):
            await refuse(watch, signed, node, refusal.value, f"a {kind}, {what}")
    for what, signed, refusal in forgeries(makes[CommandKind.RENEW], signer, wrong_role=operator(house)):
        await refuse(watch, signed, node, refusal.value, f"a renewal, {what}")
    assert not of_fault(watch, fault_id, FaultPhase.UNDONE)
    assert not of_fault(watch, fault_id, FaultPhase.RENEWED)

    await send(watch, signer.sign(makes[CommandKind.HALT](time.time())), CLUSTER)
    await watch.until(lambda: of_fault(watch, fault_id, FaultPhase.UNDONE), "the genuine halt is obeyed")
    await refuse(watch, genuine, node, Refusal.REPLAYED.value, "an inject, sent again")
    assert len(ids(of_fault(watch, fault_id, FaultPhase.INJECTED))) == 1


async def test_agents_obey_no_forged_altered_expired_or_replayed_command(house: House) -> None:
    house.sim(*SIM).wait_for(READY)
    node = real_node(house, cluster=CLUSTER)
    async with Watch(house.settings) as watch:
        await agent_believes_none(watch, house, TARGET)
        await agent_believes_none(watch, house, node.target)
        assert not is_stopped(node.pid)


POISON: dict[str, tuple[bytes, list[tuple[str, Any]]]] = {
    "a kind that is a list": (json.dumps({"cluster": CLUSTER, "node": "real", "kind": []}).encode(), []),
    "a kind that is an object, signed": (
        json.dumps({"payload": json.dumps({"cluster": CLUSTER, "node": "real", "kind": {}})}).encode(),
        [],
    ),
    "a trace context that is nothing": (b"{}", [("traceparent", None)]),
    "lone surrogates": (b'{"cluster":"hostile","node":"real","kind":"halt","id":"\\ud800"}', []),
    "no value": (b"", []),
}


async def test_malformed_command_takes_no_genuine_one_with_it(house: House) -> None:
    node = real_node(house, cluster=CLUSTER)
    signer = control(house)
    async with Watch(house.settings) as watch:
        for what, (value, headers) in POISON.items():
            experiment = f"after {what}"
            fault_id = stable_id(experiment, node.target)
            for kind, phase in ((CommandKind.INJECT, FaultPhase.INJECTED), (CommandKind.HALT, FaultPhase.UNDONE)):
                make = command_for(node.target, kind, experiment=experiment)
                # Together, so that an agent reads them in one fetch.
                watch.bus.send_nowait(Record(topics.COMMANDS, CLUSTER, CLUSTER, value, headers))
                await send(watch, signer.sign(make(time.time())), CLUSTER)
                await watch.until(
                    lambda f=fault_id, p=phase: of_fault(watch, f, p), f"the {kind} after {what} is obeyed", 10.0
                )
        assert "a part failed" not in node.agent.said()


async def test_ten_thousand_malformed_messages_on_each_topic_stop_nothing_and_are_all_set_aside(house: House) -> None:
    worker = house.worker().wait_for(READY)
    node = real_node(house, cluster=CLUSTER)
    flooded = [topic for topic in topics.TOPICS if topic is not topics.DEADLETTER]
    async with Watch(house.settings) as watch:
        await watch.read_on(2.0)
        sent: set[tuple[str, int, int]] = set()
        for topic in flooded:
            values = malformed(topic, MANY, cluster=CLUSTER, node=node.node)
            sent |= await flood(house.settings, topic, values)
        assert len(sent) == MANY * len(flooded)

        letters = Letters(watch, sent)
        await watch.until(lambda: letters.take() == len(sent), "all are in the dead-letter topic", 75.0)
        assert not letters.foreign, dump(letters.foreign[:5])
        assert all(len(found) == 1 for found in letters.ids.values()), "one id for each record"
        assert worker.running
        assert node.agent.running

        # And the loop goes on as if nothing had been, and begins again with all of it in its past.
        worker.kill()
        worker.start().wait_for(READY)
        house.sim(*SIM).wait_for(READY)  # not before: a cluster that seems silent under the flood freezes injection
        await watch.read_on(5.0)
        experiment = await watch.start(house, plan(target=TARGET, job=JOB, duration=4.0, lease=4.0), CLUSTER)
        state = await watch.until(lambda: watch.reached(experiment, Status.FINISHED), "it finishes", 60.0)
        assert state.verdict is Verdict.PASSED, state.reason
        renew = command_for(node.target, CommandKind.RENEW, experiment="nobody")
        await refuse(watch, control(house).sign(renew(time.time())), node.node, "nothing to renew", "a renewal")
        await watch.commits_reach_the_end("gpuchaos")


class Letters:
    """Dead letters, taken as they come: which of the records that were sent are set aside, and what else is."""

    def __init__(self, watch: Watch, sent: set[tuple[str, int, int]]) -> None:
        self._watch = watch
        self._sent = sent
        self._read = 0
        self.ids: dict[tuple[str, int, int], set[str]] = {}
        self.foreign: list[DeadLetter] = []

    def take(self) -> int:
        """How many of the records are set aside by now. Reads only what is new, for there are many."""
        for letter in self._new():
            place = (letter.topic, letter.partition, letter.offset)
            if place in self._sent:
                self.ids.setdefault(place, set()).add(letter.id)
                assert letter.reason
            else:
                self.foreign.append(letter)
        return len(self.ids)

    def _new(self) -> Iterator[DeadLetter]:
        seen = self._watch.seen[topics.DEADLETTER.name]
        fresh, self._read = seen[self._read :], len(seen)
        for raw in fresh:
            yield DeadLetter.model_validate_json(raw.value)
