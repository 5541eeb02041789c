"""What a person says to the breaker: the command, its time, its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuchaos_stream.act.cli import show
from gpuchaos_stream.act.orders import order
from gpuchaos_stream.cli import cli
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.command import CommandKind, Role
from gpuchaos_stream.events.experiment import BreakerState
from gpuchaos_stream.events.signing import KeyRing, Signer, Verifier
from gpuchaos_stream.experiments.client import latest_breaker
from gpuchaos_stream.guard.breaker import Breaker


def tripped(since: float = 100.0, cluster: str = "c") -> BreakerState:
    return BreakerState(id="breaker", time=since, cluster=cluster, tripped=True, since=since, cause="rate: 3 halts")


def test_an_operator_may_ask_it_and_the_control_plane_believes_it() -> None:
    signer = Signer.generate(Role.OPERATOR)
    for kind in (CommandKind.RESET, CommandKind.STOP_ALL):
        command = order(kind, "c", "  the switch\n is mended ", now=200.0, before=tripped())
        believed = Verifier(KeyRing(keys=(signer.trusted(),))).verify(signer.sign(command), now=201.0)
        assert (believed.kind, believed.reason, believed.node, believed.time) == (
            kind,
            "the switch is mended",
            None,
            200.0,
        )


def test_a_slow_clock_makes_neither_a_reset_nor_a_trip_stale() -> None:
    breaker = Breaker("c")
    breaker.trip("rate", "", 100.0)
    command = order(CommandKind.RESET, "c", "mended", now=70.0, before=breaker.state)
    assert breaker.reset(by="ann", reason=command.reason, at=command.time, now=110.0, command_id=command.id)
    command = order(CommandKind.STOP_ALL, "c", "fire", now=75.0, before=breaker.state)
    assert breaker.trip("operator", command.reason, command.time)


@pytest.mark.parametrize("reason", ["", " \n", "x" * 501])
def test_a_reason_is_required_and_short(reason: str) -> None:
    with pytest.raises(UserError, match="reason"):
        order(CommandKind.RESET, "c", reason, now=1.0, before=None)


def test_the_latest_state_of_the_right_cluster_is_found_among_everything_else() -> None:
    states = [tripped(1.0), tripped(2.0), tripped(3.0, cluster="other")]
    values = [None, b"junk", *(state.model_dump_json().encode() for state in states)]
    assert latest_breaker(values, "c") == states[1]
    assert latest_breaker(values, "none") is None


def test_it_is_shown_with_what_to_do_and_as_json() -> None:
    assert "closed" in show(None, "c", "table")
    text = show(tripped(), "c", "table")
    assert "1970-01-01 00:01:40 UTC: rate: 3 halts" in text
    assert "gpuchaos breaker reset --reason" in text
    assert json.loads(show(tripped(), "c", "json"))["cause"] == "rate: 3 halts"


def test_a_key_that_is_none_or_another_roles_exits_2_and_says_what_to_do(tmp_path: Path) -> None:
    wrong = tmp_path / "control.json"
    Signer.generate(Role.CONTROL).save(wrong)
    for path, said in ((tmp_path / "none.json", "gpuchaos keys make"), (wrong, "role control")):
        result = CliRunner().invoke(cli, ["breaker", "reset", "--reason", "mended", "--key", str(path)])
        assert isinstance(result.exception, UserError)
        assert said in str(result.exception)


def test_a_reset_without_a_reason_exits_2() -> None:
    assert CliRunner().invoke(cli, ["breaker", "reset"]).exit_code == 2


def test_show_is_status_under_the_name_that_everything_else_has() -> None:
    assert _help("show") == _help("status").replace("breaker status", "breaker show")
    assert "  show " not in CliRunner().invoke(cli, ["breaker", "--help"]).output


def _help(name: str) -> str:
    return CliRunner().invoke(cli, ["breaker", name, "--help"]).output
