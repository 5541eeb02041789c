import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuchaos_stream.cli import cli
from gpuchaos_stream.guard.ruletest import parse_values

RULES = """\
groups:
  - name: g
    rules:
      - name: too-many
        expr: blast.gpus > limits.gpus
        for: 1s
        action: halt
        annotations: {summary: "{{ blast.gpus }} hurt"}
"""
TESTS = """\
rule_files: [../rules.yaml]
tests:
  - name: more than allowed
    input:
      - {path: limits.gpus, values: 8}
      - {path: blast.gpus, values: "0 9x3"}
    rule_test:
      - {eval_time: 1s, rule: too-many, exp_decisions: []}
      - {eval_time: 2s, rule: too-many, exp_decisions: [{action: halt, reason: 9 hurt, annotations: {summary: 9 hurt}}]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "tests" / "rules.yaml").write_text(TESTS)
    return tmp_path


def gpuchaos(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def lines(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.output.splitlines()]


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_good_rules_are_listed(folder: Path) -> None:
    result = gpuchaos("rules", "check", folder)
    assert result.exit_code == 0
    assert "rules.yaml: 1 rule, all good" in result.output
    assert "too-many" in result.output
    (body,) = lines(gpuchaos("rules", "check", folder, "-o", "json"))
    assert (body["name"], body["for"], body["where"]) == ("too-many", 1.0, f"{folder}/rules.yaml:4")


def test_a_typo_in_a_rule_exits_2_with_file_line_and_the_nearest_name(folder: Path) -> None:
    change(folder / "rules.yaml", "blast.gpus >", "blast.gpuz >")
    for command in ("check", "test"):
        result = gpuchaos("rules", command, folder)
        assert result.exit_code == 2
        assert f"{folder}/" in result.output
        assert (
            "rules.yaml:5: rule 'too-many': expr: unknown name 'blast.gpuz'; did you mean 'blast.gpus'?"
            in result.output
        )
    (body,) = lines(gpuchaos("rules", "check", folder, "-o", "json"))
    assert (body["where"], body["fix"]) == (f"{folder}/rules.yaml:5", "did you mean 'blast.gpus'?")


def test_tests_that_hold_exit_0(folder: Path) -> None:
    for path in (folder, folder / "tests" / "rules.yaml"):
        result = gpuchaos("rules", "test", path)
        assert result.exit_code == 0
        assert "2 of 2 checks hold" in result.output


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("exp_decisions: []", "exp_decisions: [{action: halt}]", "expected 1 decisions, got 0: none"),
        ("action: halt,", "action: notify,", "action: expected 'notify', got 'halt'"),
        ("reason: 9 hurt", "reason: 8 hurt", "reason: expected '8 hurt', got '9 hurt'"),
        ("annotations: {", "labels: {a: b}, annotations: {", "labels: expected {'a': 'b'}, got {}"),
        (
            "{action: halt, reason: 9 hurt, annotations: {summary: 9 hurt}}",
            "",
            "expected 0 decisions, got 1: halt (9 hurt)",
        ),
    ],
)
def test_a_test_that_does_not_hold_exits_1_and_says_where(folder: Path, old: str, new: str, said: str) -> None:
    change(folder / "tests" / "rules.yaml", old, new)
    result = gpuchaos("rules", "test", folder)
    assert result.exit_code == 1
    assert "tests/rules.yaml:" in result.output
    assert said in result.output
    bad = [body for body in lines(gpuchaos("rules", "test", folder, "-o", "json")) if not body["ok"]]
    assert [body["rule"] for body in bad] == ["too-many"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("blast.gpus", "blast.gpuz", ("rules.yaml:6:", "did you mean 'blast.gpus'?")),
        ("rule: too-many", "rule: to-many", ("rules.yaml:8:", "unknown rule 'to-many'", "did you mean 'too-many'?")),
        (
            "../rules.yaml",
            "rules2.yaml",
            ("tests/rules.yaml:1:", "'rules2.yaml' is not there", "relative to the folder"),
        ),
        ("exp_decisions", "exp_decision", ("rules.yaml:8:", "did you mean 'exp_decisions'?")),
        ("0 9x3", "0 9+x3", ("rules.yaml:6:", "'9+x3' is no value")),
        ("0 9x3", "0 many", ("rules.yaml:4:", "blast.gpus", "value 1 of its series does not fit")),
        ("eval_time: 2s", "eval_time: 2000h", ("rules.yaml:3:", "shorten it")),
        ("action: halt", "action: stop", ("rules.yaml:9:", "action")),
    ],
)
def test_a_mistake_in_a_test_exits_2_and_says_where(folder: Path, old: str, new: str, said: tuple[str, ...]) -> None:
    change(folder / "tests" / "rules.yaml", old, new)
    result = gpuchaos("rules", "test", folder)
    assert result.exit_code == 2
    for part in said:
        assert part in result.output


def test_without_a_path_the_shipped_rules_are_meant() -> None:
    assert "hard-limit-gpus" in gpuchaos("rules", "check").output
    assert gpuchaos("rules", "test").exit_code == 0


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1 2.5 -3", [1, 2.5, -3]),
        ("0+2x3", [0, 2, 4, 6]),
        ("10-5x2", [10, 5, 0]),
        ("4x2", [4, 4, 4]),
        ("_ true false active", [None, True, False, "active"]),
    ],
)
def test_series_are_written_as_in_promtool(text: str, values: list[object]) -> None:
    assert parse_values(text) == values


def test_an_experiment_given_as_rules_is_one_mistake_and_not_one_for_each_field(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("api_version: gpuchaos/v1\nkind: Experiment\nname: a\nowner: me\n")
    result = gpuchaos("rules", "check", plan)
    assert result.exit_code == 2
    assert result.output == f"{plan}: is an Experiment, not rules; gpuchaos experiment check checks it\n"


def test_a_name_of_the_shipped_rules_is_found_when_both_are_checked(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(RULES.replace("too-many", "too-many-nodes-hurt"))
    shipped = tmp_path / "rules"
    shipped.mkdir()
    (shipped / "hard.yaml").write_text(RULES.replace("too-many", "too-many-nodes-hurt"))
    result = gpuchaos("rules", "check", shipped, mine)
    assert result.exit_code == 2
    assert "rule 'too-many-nodes-hurt' is also at" in result.output
