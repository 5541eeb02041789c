"""How things are printed: the same fields in JSON and YAML, colours only where they are wanted, nothing that drives."""

from __future__ import annotations

import io
import json
import re

import pytest
import yaml
from cli_kit import GPUCHAOS, call, terminal

from gpuchaos_stream import output

SHOWING = (
    ("faults",),
    ("rules", "check"),
    ("rules", "test"),
    ("experiment", "check", "examples/stopped-rank.yaml", "examples/ecc-record.yaml"),
)


@pytest.mark.parametrize("words", SHOWING, ids=" ".join)
def test_json_and_yaml_say_the_same(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    in_json, in_yaml = (call(capsys, *words, "-o", form) for form in ("json", "yaml"))
    assert (in_json.status, in_yaml.status) == (0, 0)
    rows = [json.loads(line) for line in in_json.out.splitlines()]
    assert list(yaml.safe_load_all(in_yaml.out)) == rows
    assert len(rows) > 1
    assert in_yaml.out.startswith("---\n")
    assert in_json.out.isascii()


def test_what_could_drive_a_terminal_is_written_as_an_escape() -> None:
    wicked = "a\x1b[2J\x9bm\rb"
    out = io.StringIO()
    output.table(("reason",), [(wicked,)], out)
    for shown in (out.getvalue(), output.text({"reason": wicked}, "json"), output.text({"reason": wicked}, "yaml")):
        assert not {"\x1b", "\x9b", "\r"} & set(shown)
    assert yaml.safe_load(output.text({"reason": wicked}, "yaml")) == {"reason": wicked}


def test_yaml_repeats_a_value_instead_of_pointing_to_it() -> None:
    same = ["n1", "n2"]
    assert yaml.safe_load(text := output.text({"a": same, "b": same}, "yaml")) == {"a": same, "b": same}
    assert "&" not in text


def test_a_plain_table_stands_in_columns() -> None:
    out = io.StringIO()
    output.table(("id", "status"), [("a-long-one", "active"), ("b", "-")], out)
    assert out.getvalue() == "id          status\na-long-one  active\nb           -\n"


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_for_terminals_that_want_them(env: dict[str, str], coloured: bool) -> None:
    code = "import sys; from gpuchaos_stream import output; output.table(['a'], [['x']], styles=['red'])"
    with terminal(GPUCHAOS[0], "-c", code, **env) as screen:
        assert screen.ended() == 0
    assert "x" in screen.shown
    assert ("\x1b[" in screen.shown) is coloured


def test_a_table_keeps_within_its_terminal() -> None:
    with terminal(*GPUCHAOS, "rules", "check", columns=60) as screen:
        assert screen.ended() == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.shown)
    table = shown[shown.index("\nrule ") :]
    assert "hard-limit-gpus" in table
    assert max(len(line.rstrip()) for line in table.splitlines()) <= 60


@pytest.mark.parametrize("columns", [24, 60])
def test_on_a_narrow_terminal_nothing_of_a_table_is_cut(columns: int) -> None:
    names, cells = [f"name-{n}" for n in range(6)], [f"value-number-{n}" for n in range(6)]
    code = f"from gpuchaos_stream import output; output.table({names}, [{cells}])"
    with terminal(GPUCHAOS[0], "-c", code, columns=columns, NO_COLOR="1") as screen:
        assert screen.ended() == 0
    lines = screen.shown.splitlines()
    assert max(map(len, lines)) <= columns
    assert "\u2026" not in screen.shown
    assert ("name-5  value-number-5" in lines) is (columns == 24)
