"""The check of plan files: file, line, field, nearest known name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from experiments_help import plan, plan_data

from gpuchaos_stream.cli import cli, main
from gpuchaos_stream.errors import UserError, UserErrors
from gpuchaos_stream.experiments import parameters
from gpuchaos_stream.experiments.check import check
from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.experiments.load import load

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(plan_data(**changes), sort_keys=False))
    return path


def mistakes(**changes: Any) -> str:
    return "\n".join(str(error) for error in check(plan(**changes)))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_the_shipped_examples_are_good(file: Path) -> None:
    assert load(file).name == file.stem


def test_there_is_an_example_of_every_fault() -> None:
    assert {load(file).fault.name for file in EXAMPLES} == set(FAULTS)


def test_a_good_plan_has_no_mistakes() -> None:
    assert mistakes() == ""


def test_a_typo_in_a_field_exits_2_and_names_file_line_and_the_nearest_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "plan.yaml")
    text = file.read_text().replace("lease:", "leese:")
    file.write_text(text)
    line = text.splitlines().index("leese: 6s") + 1
    with pytest.raises(SystemExit) as exit_:
        main(["experiment", "check", str(file)])
    assert exit_.value.code == 2
    shown = capsys.readouterr().err
    assert f"{file}:{line}: unknown field 'leese'; did you mean 'lease'?" in shown


def test_a_typo_in_a_nested_value_names_its_own_line(tmp_path: Path) -> None:
    file = write(tmp_path / "plan.yaml", fault={"name": "proces-stop", "certifies": ["hang-detection"]})
    line = next(i for i, text in enumerate(file.read_text().splitlines(), 1) if "proces-stop" in text)
    with pytest.raises(UserErrors) as error:
        load(file)
    assert str(error.value) == (
        f"{file}:{line}: field 'fault.name': no fault is called 'proces-stop'; did you mean 'process-stop'?"
    )


def test_check_reports_every_file_and_as_json_one_object_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = write(tmp_path / "good.yaml"), write(tmp_path / "bad.yaml", lease="1s", duration="-5s")
    missing = tmp_path / "none.yaml"
    with pytest.raises(SystemExit) as exit_:
        main(["experiment", "check", "-o", "json", str(bad), str(missing), str(good)])
    assert exit_.value.code == 2
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [item["ok"] for item in said] == [False, False, True]
    assert said[1]["problem"] == "cannot be read (No such file or directory)"


def test_a_good_file_exits_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["experiment", "check", str(write(tmp_path / "plan.yaml"))])
    assert exit_.value.code == 0
    assert "ok: hang: process-stop on process/n1/10, process/n2/20 for 20 s" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["limits", "duration", "undo", "steady_state", "objectives", "owner", "lease"])
def test_a_plan_without_what_makes_it_safe_is_refused(tmp_path: Path, missing: str) -> None:
    data = plan_data()
    del data[missing]
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(data))
    with pytest.raises(UserErrors, match=f"field '{missing}' is missing"):
        load(file)


def steady(check_: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"hold": "5s", "checks": [{"name": "pace"} | check_]} | fields


def telemetry(**fields: Any) -> dict[str, Any]:
    body = {"of": "job/llama", "metric": "steps_rate", "op": ">=", "value": 0.5} | fields
    return {"steady_state": steady({"telemetry": body})}


def promql(**fields: Any) -> dict[str, Any]:
    body = {"url": "http://prometheus:9090", "query": "up", "op": ">=", "value": 1} | fields
    return {"steady_state": steady({"promql": body})}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"fault": {"name": "process-stop", "certifies": ["checkpoint-resume"]}},
            "'process-stop' cannot certify 'checkpoint-resume'",
        ),
        ({"fault": {"name": "process-stop", "certifies": ["gpu-failure"]}}, "cannot certify 'gpu-failure'"),
        ({"fault": {"name": "process-stop", "certifies": ["hang-detectoin"]}}, "did you mean 'hang-detection'?"),
        ({"targets": {"entities": ["gpu/n1/0"]}}, "cannot be aimed at 'gpu/n1/0'; aim it at process/NODE/ID"),
        ({"targets": {"entities": ["process/n1/1", "process/n1/1"]}}, "is named twice"),
        ({"targets": {"entities": ["process/n1"]}}, "is on no single node"),
        (
            {"targets": {"entities": ["process/n1/abc"]}},
            "'process/n1/abc' names no process; a process is named by its pid",
        ),
        ({"targets": {"entities": ["process/n1/0"]}}, "'process/n1/0' names no process"),
        ({"lease": "2s"}, "too short to be renewed"),
        ({"lease": "30s"}, "longer than the duration"),
        (
            {"lease": "400s", "duration": "500s", "objectives": {"ttd": 5, "ttm": 600, "ttr": 700}},
            "outlive a dead control plane",
        ),
        ({"duration": "5h", "objectives": {"ttd": 5, "ttm": 18600, "ttr": 18700}}, "with its recovery"),
        ({"objectives": {"ttd": 50, "ttm": 30, "ttr": 40}}, "detection within 50 s is later than recovery"),
        ({"objectives": {"ttd": 5, "ttm": 50, "ttr": 40}}, "mitigation within 50 s is later than recovery"),
        ({"objectives": {"ttd": 5, "ttm": 10, "ttr": 40}}, "removes the fault only after 20 s"),
        ({"limits": {"gpus": 8, "nodes": 1, "jobs": 0, "gpu_seconds": 0}}, "halt at the first"),
        (telemetry(metric="step_rate"), "did you mean 'steps_rate'?"),
        (
            telemetry(of="node/n1", metric="gpu.utilisation_ratio.mean"),
            "did you mean 'gpu.utilization_ratio.mean'?",
        ),
        (telemetry(of="gpu/n1/0"), "has no summary; write node/NAME or job/NAME"),
        (telemetry(relative_to="baseline", value=0), "no share of a baseline"),
        (promql(query="  "), "the query is empty"),
        (promql(url="prometheus:9090"), "is no http or https URL"),
        (promql(url="http://[half"), "is no http or https URL"),
        ({"steady_state": steady({"http": {"url": "ftp://x"}})}, "is no http or https URL"),
        ({"steady_state": steady({"http": {"url": "http://x", "status": 20}})}, "20 is no HTTP status"),
        ({"steady_state": steady({})}, "asks nothing; write exactly one"),
        (
            {"steady_state": {"hold": 5, "checks": [{"name": "a", "http": {"url": "http://x"}}] * 2}},
            "check 'a' is named twice",
        ),
    ],
)
def test_what_cannot_be_meant_is_named_with_its_fix(changes: dict[str, Any], said: str) -> None:
    assert said in mistakes(**changes)


@pytest.mark.parametrize("hold", ["0s", 0, "500ms", "1.9s", -1, float("nan")])
def test_a_hold_that_is_too_short_is_refused_in_one_wording_whatever_it_is(tmp_path: Path, hold: Any) -> None:
    file = write(tmp_path / "plan.yaml", steady_state=steady({"http": {"url": "http://x"}}, hold=hold))
    with pytest.raises(UserErrors, match=r"'steady_state.hold': .* s hold no two samples; write at least 2s"):
        load(file)


@pytest.mark.parametrize("text", ["5", "x", "5 parsecs", "-3s", "0s", "inf", "nan"])
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        plan(duration=text)


def test_targets_are_checked_against_the_cluster_where_it_is_known() -> None:
    class Places:
        nodes = ("n1",)

        def nodes_of(self, entity: str) -> tuple[str, ...]:
            return {"process/n1/10": ("n1",), "process/n2/20": ("n2",)}.get(entity, ())

    said = [str(error) for error in check(plan(), places=Places())]
    assert said == [
        "plan hang: field 'targets.entities.1': the cluster has no 'process/n2/20'; check the node's name",
        "plan hang: field 'steady_state.checks.0.telemetry.of': the cluster has no 'job/llama'; check the name",
    ]


def test_a_fault_that_no_agent_has_yet_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: said for name, said in parameters.SCHEMAS.items() if name != "process-stop"}
    monkeypatch.setattr(parameters, "SCHEMAS", known)
    assert "'process-stop' is not yet available; available are certificate-expiry" in mistakes()


def test_a_comparison_that_is_written_as_elsewhere_is_told_how_it_is_written_here(tmp_path: Path) -> None:
    data = plan_data()
    data["steady_state"]["checks"] = [
        {"name": name, "telemetry": {"of": "job/a", "metric": "steps_rate", "op": op, "value": 1}}
        for name, op in (("a", "=>"), ("b", "=<"))
    ]
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(UserErrors) as caught:
        load(path)
    assert [error.fix for error in caught.value.errors] == ["did you mean '>='?", "did you mean '<='?"]


def test_a_value_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(plan_data() | {"duration": "5 parsecs"}))
    with pytest.raises(UserErrors) as caught:
        load(path)
    (error,) = caught.value.errors
    assert str(error).count("5 parsecs") == 1
    assert error.fix == "write it like 500ms, 30s, 5m or 1h"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("groups: []\nsafety: {}\n", "holds rules, not an Experiment; gpuchaos rules check checks it"),
        ("api_version: gpuchaos/v1\nkind: Notify\n", "it is no Experiment; gpuchaos notify --check checks it"),
    ],
)
def test_another_kind_of_file_is_one_mistake(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(said)):
        load(path)


def test_a_folder_is_checked_file_by_file(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(plan_data() | {"name": name}))
    good = CliRunner().invoke(cli, ["experiment", "check", str(tmp_path)])
    assert good.exit_code == 0
    assert [line.split(": ")[2] for line in good.output.splitlines()] == ["a", "b"]
    (tmp_path / "c.yaml").write_text("kind: Experiment\n")
    bad = CliRunner().invoke(cli, ["experiment", "check", str(tmp_path)])
    assert bad.exit_code == 2
    assert f"{tmp_path / 'b.yaml'}: ok" in bad.output
    (tmp_path / "empty").mkdir()
    none = CliRunner().invoke(cli, ["experiment", "check", str(tmp_path / "empty")])
    assert (none.exit_code, "there is no *.yaml in this folder" in none.output) == (2, True)
