"""Commands are believed only when signed by a trusted key, allowed to its role, and in time."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.events.command import Command, CommandKind, Role, SignedCommand
from gpuchaos_stream.events.signing import KeyRing, Refusal, RefusedError, Signer, Verifier

NOW = 1_000_000.0
CONTROL = Signer.generate(Role.CONTROL)
OPERATOR = Signer.generate(Role.OPERATOR)
VERIFIER = Verifier(KeyRing(keys=(CONTROL.trusted(), OPERATOR.trusted())))


def command(kind: CommandKind = CommandKind.HALT, *, time: float = NOW, valid_s: float = 60.0) -> Command:
    return Command(id="c1", time=time, cluster="c", kind=kind, expires=time + valid_s, nonce="12345678", node="n1")


def refusal_of(signed: SignedCommand, *, now: float = NOW, verifier: Verifier = VERIFIER) -> Refusal:
    with pytest.raises(RefusedError) as caught:
        verifier.verify(signed, now=now)
    return caught.value.refusal


@pytest.mark.parametrize("kind", sorted(CommandKind))
def test_each_kind_is_believed_from_the_roles_that_may_ask_it(kind: CommandKind) -> None:
    both = {CommandKind.HALT, CommandKind.UNDO}
    for signer, own in (
        (CONTROL, {CommandKind.INJECT, CommandKind.RENEW}),
        (OPERATOR, {CommandKind.START, CommandKind.STOP, CommandKind.STOP_ALL, CommandKind.RESET}),
    ):
        signed = signer.sign(command(kind))
        if kind in both | own:
            assert VERIFIER.verify(signed, now=NOW).kind is kind
        else:
            assert refusal_of(signed) is Refusal.NOT_ALLOWED


def test_operator_may_not_inject() -> None:
    assert refusal_of(OPERATOR.sign(command(CommandKind.INJECT))) is Refusal.NOT_ALLOWED


def test_unknown_key_is_refused() -> None:
    assert refusal_of(Signer.generate(Role.CONTROL).sign(command())) is Refusal.UNKNOWN_KEY


def test_stranger_with_a_known_key_id_is_refused() -> None:
    forged = Signer.generate(Role.CONTROL).sign(command())
    assert refusal_of(forged.model_copy(update={"key_id": CONTROL.key_id})) is Refusal.BAD_SIGNATURE


@given(st.data())
def test_any_altered_byte_is_refused(data: st.DataObject) -> None:
    signed = CONTROL.sign(command())
    at = data.draw(st.integers(0, len(signed.payload) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda c: c != signed.payload[at]))
    altered = signed.payload[:at] + other + signed.payload[at + 1 :]
    assert refusal_of(signed.model_copy(update={"payload": altered})) is Refusal.BAD_SIGNATURE


def test_expired_command_is_refused() -> None:
    assert refusal_of(CONTROL.sign(command()), now=NOW + 61) is Refusal.EXPIRED


def test_command_from_the_future_is_refused() -> None:
    assert refusal_of(CONTROL.sign(command(time=NOW + 3600))) is Refusal.NOT_YET


def test_command_valid_for_ever_is_refused() -> None:
    assert refusal_of(CONTROL.sign(command(valid_s=1e7))) is Refusal.NOT_YET


def test_key_is_refused_after_its_end() -> None:
    ring = KeyRing(keys=(CONTROL.trusted(not_after=NOW - 1),))
    assert refusal_of(CONTROL.sign(command()), verifier=Verifier(ring)) is Refusal.ENDED_KEY


def test_key_file_is_private_and_signs_the_same_after_reading(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    CONTROL.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.load(path).sign(command()) == CONTROL.sign(command())


def test_broken_key_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"control\.json"):
        Signer.load(path)
