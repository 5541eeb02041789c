from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from agent_kit import CONTROL, STRANGER, WALL, Bench, command, inject, signed
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.fault import FaultPhase

P = FaultPhase


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_an_unsigned_command_is_refused_and_reported(bench: Bench) -> None:
    (event,) = bench.give(inject(WALL).model_dump_json().encode())
    assert (event.phase, event.evidence["refusal"]) == (P.REFUSED, "unsigned")
    assert not bench.node.broken


def test_a_command_by_an_unknown_key_is_refused_and_reported(bench: Bench) -> None:
    (event,) = bench.give(signed(inject(WALL), STRANGER))
    assert event.evidence["refusal"] == "unknown_key"
    assert not bench.node.broken


def test_a_forged_signature_is_refused_and_reported(bench: Bench) -> None:
    forged = STRANGER.sign(inject(WALL)).model_copy(update={"key_id": CONTROL.key_id})
    (event,) = bench.give(forged.model_dump_json().encode())
    assert event.evidence["refusal"] == "bad_signature"
    assert not bench.node.broken


def test_an_altered_command_is_refused_and_speaks_for_no_fault(bench: Bench) -> None:
    bench.inject("f1")
    genuine = json.loads(signed(inject(WALL, "f2")))
    genuine["payload"] = genuine["payload"].replace('"lease_s":10.0', '"lease_s":290.0')
    (event,) = bench.give(json.dumps(genuine).encode())
    assert event.evidence["refusal"] == "bad_signature"
    assert event.fault_id is event.experiment_id is event.command_id is None
    assert set(bench.node.broken) == {"f1"}


def test_a_forged_halt_undoes_nothing(bench: Bench) -> None:
    bench.inject()
    bench.give(signed(command(CommandKind.HALT, WALL, experiment_id="e1"), STRANGER))
    assert bench.node.broken


def test_an_expired_inject_is_refused_and_its_sender_answered(bench: Bench) -> None:
    late = signed(inject(WALL))
    bench.later(61)
    (event,) = bench.give(late)
    assert (event.phase, event.fault_id) == (P.REFUSED, "f1")
    assert event.reason.startswith("expired")
    assert not bench.node.broken


def test_an_inject_from_the_future_is_refused(bench: Bench) -> None:
    (event,) = bench.give(signed(inject(WALL + 600)))
    assert event.evidence["refusal"] == "not_yet_valid"
    assert not bench.node.broken


def test_an_authentic_halt_is_obeyed_however_late_it_comes(bench: Bench) -> None:
    bench.inject(lease_s=300.0)
    halt = signed(command(CommandKind.HALT, WALL, experiment_id="e1"))
    bench.later(200)
    bench.give(halt)
    assert not bench.node.broken


def test_a_replayed_inject_changes_nothing_and_is_reported(bench: Bench) -> None:
    genuine = signed(inject(WALL))
    (first,) = bench.give(genuine)
    again = bench.give(genuine)
    assert [event.phase for event in again] == [P.REFUSED, P.INJECTED]
    assert again[0].evidence["refusal"] == "replayed"
    assert again[0].fault_id is None
    assert again[1].id == first.id


@pytest.mark.parametrize("restart", [False, True])
def test_an_inject_replayed_after_its_undo_does_not_come_back(bench: Bench, restart: bool) -> None:
    genuine = signed(inject(WALL))
    bench.give(genuine)
    bench.give(signed(command(CommandKind.UNDO, WALL, fault_id="f1")))
    if restart:
        bench.restart()
    (event,) = bench.give(genuine)
    assert event.evidence["refusal"] == "replayed"
    assert not bench.node.broken


def test_a_replay_after_the_expiry_is_told_as_a_replay_and_speaks_for_no_fault(bench: Bench) -> None:
    genuine = signed(inject(WALL, lease_s=300.0))
    bench.give(genuine)
    bench.later(100)
    (event,) = bench.give(genuine)
    assert event.evidence["refusal"] == "replayed"
    assert event.fault_id is None
    assert bench.node.broken


def test_another_command_with_a_used_nonce_is_a_replay(bench: Bench) -> None:
    bench.give(signed(inject(WALL, "f1", nonce="same-nonce")))
    (event,) = bench.give(signed(inject(WALL, "f2", nonce="same-nonce")))
    assert event.evidence["refusal"] == "replayed"
    assert set(bench.node.broken) == {"f1"}


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_change_of_any_byte_of_a_signed_inject_is_obeyed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    bench = Bench(tmp_path_factory.mktemp("altered"))
    genuine = json.loads(signed(inject(WALL)))
    field = data.draw(st.sampled_from(["payload", "signature", "key_id"]))
    text = genuine[field]
    at = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.characters(codec="ascii").filter(lambda c: c != text[at]))
    altered = text[:at] + letter + text[at + 1 :]
    # The last digit of base64 holds bits that mean nothing: such a change leaves the same signature.
    assume(field != "signature" or _bits(altered) != _bits(text))
    genuine[field] = altered
    bench.give(json.dumps(genuine).encode())
    assert not bench.node.broken


@settings(max_examples=200, deadline=None)
@given(
    value=st.binary(max_size=300)
    | st.text().map(str.encode)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda c: (
            st.lists(c)
            | st.dictionaries(st.sampled_from(["payload", "node", "cluster", "key_id", "signature", "kind"]), c)
        ),
    ).map(lambda v: json.dumps(v).encode())
)
def test_nothing_that_comes_makes_the_agent_raise(tmp_path_factory: pytest.TempPathFactory, value: bytes) -> None:
    bench = Bench(tmp_path_factory.mktemp("noise"))
    bench.give(value)
    assert not bench.node.broken


def _bits(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
