from pathlib import Path

import pytest

from gpuchaos_stream.errors import UserError, UserErrors
from gpuchaos_stream.guard.context import calm
from gpuchaos_stream.guard.rules import Scope, load

RULE = """\
groups:
  - name: g
    rules:
      - name: too-many
        expr: blast.gpus > limits.gpus
        for: 2s
        action: halt
        annotations:
          summary: "{{ blast.gpus }} of {{ limits.gpus }}, {{blast.gpu_seconds}} lost, racks {{ limits.racks }}"
"""


def write(tmp_path: Path, text: str, name: str = "rules.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def mistakes(tmp_path: Path, text: str) -> str:
    with pytest.raises(UserErrors) as caught:
        load([write(tmp_path, text)])
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_a_rule_is_read_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, RULE)
    (rule,) = load([path]).rules
    assert (rule.rule.name, rule.rule.for_, rule.rule.scope, rule.group) == ("too-many", 2.0, Scope.EXPERIMENT, "g")
    assert rule.where == f"{path}:4"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("blast.gpus > limits.gpus", "blast.gpuz > 1", ("rules.yaml:5:", "'blast.gpuz'", "did you mean 'blast.gpus'?")),
        ("blast.gpus > limits", "blast.gpus > > limits", ("rules.yaml:5:", "not CEL")),
        ("blast.gpus > limits.gpus", "blast.gpus", ("rules.yaml:5:", "neither true nor false")),
        ("{{ blast.gpus }}", "{{ blast.gpuz }}", ("rules.yaml:9:", "summary", "did you mean 'blast.gpus'?")),
        ("{{ blast.gpus }}", "{{ blast.gpus + 1 }}", ("rules.yaml:9:", "a template that is none")),
        ("for: 2s", "fro: 2s", ("rules.yaml:6:", "fro", "did you mean 'for'?")),
        ("for: 2s", "for: 2 sec", ("rules.yaml:6:", "500ms, 30s, 5m or 1h")),
        ("action: halt", "action: freez", ("rules.yaml:7:", "unknown value 'freez'; did you mean 'freeze'?")),
        ("for: 2s", "for: -1", ("rules.yaml:6:", "for")),
        ("action: halt", "action: stop", ("rules.yaml:7:", "action", "halt_all")),
        ("action: halt", "scope: cluster\n        action: halt", ("rules.yaml:4:", "use halt_all")),
        ("        action: halt\n", "", ("rules.yaml:4:", "'groups.0.rules.0.action' is missing")),
        ("too-many", "Too Many", ("rules.yaml:4:", "name")),
        ("summary:", "sumary:", ("rules.yaml:9:", "sumary", "did you mean 'summary'?")),
    ],
)
def test_a_mistake_is_named_with_file_and_line(tmp_path: Path, old: str, new: str, said: tuple[str, ...]) -> None:
    assert old in RULE
    text = mistakes(tmp_path, RULE.replace(old, new, 1))
    for part in said:
        assert part in text


def test_a_mistake_in_an_item_is_not_said_again_of_its_list(tmp_path: Path) -> None:
    assert len(mistakes(tmp_path, RULE.replace("action: halt", "action: freez")).splitlines()) == 1
    assert "at least 1 item" in mistakes(tmp_path, "groups: []")


def test_a_rule_of_the_cluster_knows_no_experiment(tmp_path: Path) -> None:
    text = mistakes(tmp_path, RULE.replace("action: halt", "action: halt_all\n        scope: cluster"))
    assert "rules.yaml:5:" in text
    assert "'blast' is not known to a rule of scope cluster" in text
    assert "breaker, cluster, total" in text


def test_all_mistakes_of_all_files_are_said_at_once(tmp_path: Path) -> None:
    write(tmp_path, RULE.replace("blast.gpus >", "blast.gpuz >"), "a.yaml")
    write(tmp_path, RULE.replace("limits.gpus\n", "limits.gpuz\n"), "b.yaml")
    write(tmp_path, "groups: {", "c.yaml")
    with pytest.raises(UserErrors) as caught:
        load([tmp_path])
    text = str(caught.value)
    assert "a.yaml:5" in text
    assert "b.yaml:5" in text
    assert "c.yaml:" in text
    assert "rule 'too-many' is also at" in text


def test_a_folder_is_read_without_its_tests(tmp_path: Path) -> None:
    write(tmp_path, RULE)
    (tmp_path / "tests").mkdir()
    write(tmp_path / "tests", "rule_files: []")
    assert len(load([tmp_path]).rules) == 1


def test_a_folder_that_is_a_mounted_configmap_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "..2026_12_01").mkdir()
    write(tmp_path / "..2026_12_01", RULE)
    (tmp_path / "..data").symlink_to("..2026_12_01")
    (tmp_path / "rules.yaml").symlink_to("..data/rules.yaml")
    assert len(load([tmp_path]).rules) == 1


def test_a_path_without_rules_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no rule file"):
        load([tmp_path])
    with pytest.raises(UserError, match="is not there"):
        load([tmp_path / "none.yaml"])


def test_annotations_are_filled_in_with_numbers_that_a_person_reads(tmp_path: Path) -> None:
    (rule,) = load([write(tmp_path, RULE)]).rules
    names = calm().model_dump(mode="json")
    names["blast"] |= {"gpus": 12, "gpu_seconds": 1234.567}
    names["limits"]["racks"] = 2**53
    assert rule.render(names) == {"summary": "12 of 8, 1234.6 lost, racks no limit"}
