"""The control and detect stages under records that were made to harm them: without a broker, and at once."""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import ValidationError

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.command import Command, CommandKind, Role
from gpuchaos_stream.events.deadletter import DeadLetter
from gpuchaos_stream.events.envelope import Record
from gpuchaos_stream.events.experiment import BreakerState
from gpuchaos_stream.events.observation import Tick
from gpuchaos_stream.events.signing import KeyRing, Signer, Verifier
from gpuchaos_stream.events.topics import Topic
from gpuchaos_stream.experiments.client import operator_command
from gpuchaos_stream.guard.rules import load
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.loop.cluster import ClusterLoop
from gpuchaos_stream.loop.control import Control
from gpuchaos_stream.loop.detection import Detection

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))

from integration_hostile_help import impossible, malformed

NOW = 1_796_000_000.0
CLUSTER = "hostile"
READ_BY_CONTROL = [topic for topic in topics.CONTROL_INPUTS if topic is not topics.COMMANDS]


@dataclass(frozen=True)
class Raw:
    topic: str
    value: bytes | None
    offset: int
    partition: int = 0
    timestamp: int = int(NOW * 1000)
    key: bytes | None = b"k"
    headers: tuple[tuple[str, bytes], ...] = ()


@pytest.fixture
def operator() -> Signer:
    return Signer.generate(Role.OPERATOR)


def control(table: dict[bytes, bytes], ring: KeyRing | None = None) -> Control:
    rules = load([shipped_rules()])
    return Control(
        table=table,
        make_loop=lambda cluster: ClusterLoop(cluster, rules),
        verifier=Verifier(ring or KeyRing()),
        signer=Signer.generate(Role.CONTROL),
        source="/test",
    )


def raws(topic: Topic, values: Iterable[bytes | None]) -> list[Raw]:
    return [Raw(topic.name, value, offset) for offset, value in enumerate(values)]


def letters(records: Iterable[Record]) -> list[DeadLetter]:
    return [DeadLetter.model_validate_json(r.value) for r in records if r.topic is topics.DEADLETTER]


def breaker(records: Iterable[Record]) -> bool | None:
    """Whether the breaker is tripped, by the last state in `records`; None where there is none."""
    values = [r.value for r in records if r.topic is topics.EXPERIMENTS and b'"tripped"' in r.value]
    return BreakerState.model_validate_json(values[-1]).tripped if values else None


@pytest.mark.parametrize("topic", READ_BY_CONTROL, ids=lambda topic: topic.name)
def test_event_at_an_impossible_time_is_set_aside_and_leaves_no_state_that_cannot_be_loaded(topic: Topic) -> None:
    table: dict[bytes, bytes] = {}
    stage = control(table)
    records = raws(topic, impossible(topic))
    for raw in records:
        assert [letter.offset for letter in letters(stage.take([raw]))] == [raw.offset], raw.value
        stage.save()
    again = control(table)
    again.restore(lambda _: True)
    tick = Tick(id="t", time=NOW, cluster="nobody").model_dump_json().encode()
    assert not letters(again.take(raws(topics.OBSERVATIONS, [tick])))


@pytest.mark.parametrize("topic", topics.CONTROL_INPUTS, ids=lambda topic: topic.name)
def test_every_malformed_record_is_a_dead_letter_with_its_bytes_and_a_reason(topic: Topic) -> None:
    records = raws(topic, malformed(topic, 500, cluster=CLUSTER, node="n1"))
    found = letters(control({}).take(records))
    assert [letter.offset for letter in found] == [raw.offset for raw in records]
    for letter, raw in zip(found, records, strict=True):
        assert letter.reason
        assert (raw.value or b"").startswith(base64.b64decode(letter.value))


def test_every_malformed_frame_is_a_dead_letter() -> None:
    at = int(time.time() * 1000)  # the frames that are sound but for one thing are of now
    values = malformed(topics.TELEMETRY, 500, cluster=CLUSTER, node="n1")
    records = [Raw(topics.TELEMETRY.name, value, offset, timestamp=at) for offset, value in enumerate(values)]
    found = letters(Detection(source="/test").take(records))
    assert {letter.offset for letter in found} == {raw.offset for raw in records}


def readable(value: bytes) -> Anomaly | None:
    try:
        return Anomaly.model_validate_json(value)
    except ValidationError:
        return None  # the contract keeps this one out


def test_past_full_of_malformed_frames_keeps_no_worker_from_its_start() -> None:
    at = int(time.time() * 1000)
    values = malformed(topics.TELEMETRY, 500, cluster=CLUSTER, node="n1")
    records = [Raw(topics.TELEMETRY.name, value, offset, timestamp=at) for offset, value in enumerate(values)]
    bad = [found for value in impossible(topics.ANOMALIES) if (found := readable(value)) is not None]
    assert bad
    stage = Detection(source="/test")
    stage.restore(0, records, bad)
    assert stage.knows(0)
    stage.tick(at / 1000 + 60.0)


def signed(operator: Signer, kind: CommandKind, at: float) -> bytes:
    command: Command = operator_command(kind, cluster=CLUSTER, now=at, reason="a test")
    return operator.sign(command).model_dump_json().encode()


def test_stop_of_all_sent_again_after_the_reset_trips_nothing_and_is_told(operator: Signer) -> None:
    table: dict[bytes, bytes] = {}
    ring = KeyRing().with_key(operator.trusted())
    stop, reset = signed(operator, CommandKind.STOP_ALL, NOW - 2), signed(operator, CommandKind.RESET, NOW - 1)
    stage = control(table, ring)
    assert breaker(stage.take([Raw(topics.COMMANDS.name, stop, 0)])) is True
    assert breaker(stage.take([Raw(topics.COMMANDS.name, reset, 1)])) is False
    stage.save()
    for each in (stage, control(table, ring)):  # and the same after a restart
        out = each.take([Raw(topics.COMMANDS.name, stop, 2), Raw(topics.COMMANDS.name, reset, 3)])
        assert [letter.reason.partition(":")[0] for letter in letters(out)] == ["refused (replayed)"] * 2
        assert breaker(out) in {None, False}


def test_record_delivered_again_after_a_crash_is_no_replay(operator: Signer) -> None:
    ring = KeyRing().with_key(operator.trusted())
    stop = Raw(topics.COMMANDS.name, signed(operator, CommandKind.STOP_ALL, NOW), 7)
    table: dict[bytes, bytes] = {}
    first = control(table, ring)
    first.take([stop])
    first.save()  # and then the worker is killed before it commits
    assert not letters(control(table, ring).take([stop]))
    assert not letters(first.take([stop]))


def test_nonce_is_forgotten_only_when_its_command_is_refused_for_its_age(operator: Signer) -> None:
    ring = KeyRing().with_key(operator.trusted())
    value = signed(operator, CommandKind.STOP_ALL, NOW)
    table: dict[bytes, bytes] = {}
    stage = control(table, ring)
    reasons = set()
    for offset, later in enumerate(range(0, 600, 7)):
        at = NOW + later
        tick = Tick(id=f"t{offset}", time=at, cluster=CLUSTER).model_dump_json().encode()
        stage.take([Raw(topics.OBSERVATIONS.name, tick, offset, timestamp=int(at * 1000))])
        out = stage.take([Raw(topics.COMMANDS.name, value, offset, timestamp=int(at * 1000))])
        assert bool(letters(out)) is (offset > 0)
        reasons |= {letter.reason.partition(":")[0] for letter in letters(out)}
    stage.save()
    assert reasons == {"refused (replayed)", "refused (expired)"}
    assert not [key for key in table if b"heard/" in key], "what is over is not kept"
