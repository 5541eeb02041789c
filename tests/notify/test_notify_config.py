"""The configuration: every mistake named with file, line and fix, and no secret in it, in a log or in a repr."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from notify_cases import write

from gpuchaos_stream.cli import cli, main
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.notify.config import load
from gpuchaos_stream.notify.routing import Route, ways

EXAMPLE = Path(__file__).parents[2] / "examples/notify/notify.yaml"


def test_the_example_can_be_read_without_its_secrets() -> None:
    result = CliRunner().invoke(cli, ["notify", "--check", "--config", str(EXAMPLE)])
    assert result.exit_code == 0, result.output
    assert "5 receivers, 4 routes" in result.output


@pytest.mark.parametrize(
    ("receiver", "line", "message"),
    [
        ("{name: it, type: pager}", 5, "unknown type 'pager'; did you mean 'pagerduty'?"),
        ("{name: it}", 5, "field 'type' is missing"),
        ("{name: it, type: slack, urll: x}", 5, "unknown field 'urll'; did you mean 'url'?"),
        ("{name: it, type: slack, url: 'https://hooks.example.com/secret'}", 5, "field 'url'"),
        ("{name: it, type: webhook, url: 'http://hooks.example.com/'}", 5, "is without TLS"),
        ("{name: it, type: webhook, url: 'ftp://hooks.example.com/'}", 5, "is no http address"),
        ("{name: it, type: webhook, url: 'https://me:pass@hooks.example.com/'}", 5, "has a password in it"),
        (
            "{name: it, type: pagerduty, routing_key: {env: NOT_THERE_1}}",
            5,
            "environment variable NOT_THERE_1: is empty",
        ),
        ("{name: it, type: pagerduty, routing_key: {file: /not/there}}", 5, "secret file /not/there: No such file"),
        ("{name: it, type: pagerduty, routing_key: {file: /a, env: B}}", 5, "either {file: PATH} or {env: NAME}"),
        ("{name: it, type: webhook, url: 'https://h.example/', ca_file: /not/there}", 5, "/not/there is no file"),
        ("{name: other, type: webhook, url: 'https://h.example/'}", 7, "no receiver is called 'it'"),
        ("{name: it, type: webhook, url: 'https://h.example/', timeout: soon}", 5, "'soon' is no duration"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_what_to_do(
    tmp_path: Path, receiver: str, line: int, message: str
) -> None:
    path = write(tmp_path, f"  - {receiver}")
    with pytest.raises(UserError) as error:
        load(path)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_bad_input_ends_with_status_2_and_shows_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_URL", "gopher://hooks.example.com/T0PSECRET")
    path = write(tmp_path, "  - {name: it, type: slack, url: {env: HOOK_URL}}")
    with pytest.raises(SystemExit) as end:
        main(["notify", "--config", str(path), "--data-dir", str(tmp_path / "data")])
    told = capsys.readouterr()
    assert end.value.code == 2
    assert "T0PSECRET" not in told.err + told.out
    assert "is no http address" in told.err


def test_two_receivers_of_one_name_are_a_mistake(tmp_path: Path) -> None:
    one = "  - {name: it, type: webhook, url: 'https://h.example/'}"
    with pytest.raises(UserError, match="is there twice"):
        load(write(tmp_path, f"{one}\n{one}"))


LABELS = {"alertname": "GPUChaosIncident", "cluster": "training", "signal": "harm", "attributed": "false"}


@pytest.mark.parametrize(
    ("route", "fits"),
    [
        ({}, True),
        ({"match": {"cluster": "training"}}, True),
        ({"match": {"cluster": ["inference", "training"]}}, True),
        ({"match": {"cluster": "inference"}}, False),
        ({"match": {"experiment_id": ""}}, True),
        ({"severity": "error"}, True),
        ({"severity": "critical"}, False),
    ],
)
def test_a_route_fits_by_labels_and_least_severity(route: dict[str, object], fits: bool) -> None:
    made = Route.model_validate({"receivers": ["it"], **route})
    assert made.fits(LABELS, Severity.ERROR) is fits


def test_the_first_route_that_fits_ends_the_search_unless_it_goes_on() -> None:
    def to(name: str, **more: object) -> Route:
        return Route.model_validate({"receivers": [name], **more})

    routes = [to("a", match={"cluster": "other"}), to("b", go_on=True), to("c"), to("d")]
    assert [way.receiver for way in ways(routes, LABELS, Severity.ERROR)] == ["b", "c"]


def test_a_receiver_that_two_routes_name_is_told_once() -> None:
    routes = [Route.model_validate({"receivers": ["a"], "go_on": True})] * 2
    assert len(ways(routes, LABELS, Severity.ERROR)) == 1
