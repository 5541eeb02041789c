"""`gpuchaos report` and `gpuchaos explain`, on recordings and on a real broker, as a person runs them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from report_help import bare_recording, recording, records, told, xml

from gpuchaos_stream.cli import cli
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.report.explain import Explained
from gpuchaos_stream.report.model import Report
from gpuchaos_stream.report.period import Period
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.bus import Bus

HALTED, FAILED = "spreading-hang-1", "ecc-record-1"


@pytest.fixture
def halted(tmp_path: Path) -> Path:
    return recording(tmp_path / "halted.jsonl.zst", told("halted").events)


@pytest.fixture
def both(tmp_path: Path) -> Path:
    return recording(tmp_path / "both.jsonl.zst", (*told("halted").events, *told("failed").events))


def run(*words: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], env=env)


def refused(*words: object) -> str:
    result = run(*words)
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


@pytest.mark.parametrize(
    ("form", "begins"),
    [
        ("html", "<!DOCTYPE html>"),
        ("md", "# Experiment"),
        ("json", '{\n  "format": "gpuchaos-report/1"'),
        ("junit", "<?xml"),
    ],
)
def test_a_report_is_written_in_every_form(form: str, begins: str, halted: Path) -> None:
    result = run("report", HALTED, "--recording", halted, "--format", form)
    assert result.exit_code == 0, result.exception
    assert result.output.startswith(begins)
    assert HALTED in result.output


@pytest.mark.parametrize(
    ("name", "begins"), [("r.html", "<!DOCTYPE"), ("r.md", "# "), ("r.json", "{"), ("r.xml", "<?xml"), ("r.txt", "# ")]
)
def test_a_file_says_its_form_by_its_ending(name: str, begins: str, halted: Path, tmp_path: Path) -> None:
    result = run("report", HALTED, "--recording", halted, "--out", tmp_path / name)
    assert result.exit_code == 0
    assert (tmp_path / name).read_text().startswith(begins)
    assert f"{HALTED} halted" in result.stderr


def test_a_recording_of_one_experiment_needs_no_name_and_one_of_several_is_a_period(halted: Path, both: Path) -> None:
    one = run("report", "--recording", halted, "--format", "json")
    assert Report.model_validate_json(one.output).experiment_id == HALTED
    several = Period.model_validate_json(run("report", "--recording", both, "--format", "json").output)
    assert {run.experiment_id for run in several.runs} == {HALTED, FAILED}
    suites = xml(run("report", "--recording", both, "--format", "junit").output)
    assert {suite.attrib["name"] for suite in suites} == {HALTED, FAILED}
    assert "What repeats" in run("report", "--recording", both, "--format", "html").output


def test_a_period_of_a_recording_ends_with_its_last_record(both: Path) -> None:
    found = Period.model_validate_json(run("report", "--since", "15s", "--recording", both, "--format", "json").output)
    last = max(event.time for event in (*told("halted").events, *told("failed").events))
    assert found.until == pytest.approx(last, abs=0.01)
    assert found.until - found.since == pytest.approx(15)
    assert found.runs == ()
    days = Period.model_validate_json(run("report", "--since", "7d", "--recording", both, "--format", "json").output)
    assert days.until - days.since == pytest.approx(7 * 86400)
    assert len(days.runs) == 2


@pytest.mark.parametrize(
    ("verdicts", "status"), [("", 0), ("failed", 0), ("halted", 1), ("failed,halted", 1), ("failed, void", 0)]
)
def test_fail_on_ends_with_1_only_on_the_verdicts_that_it_names(verdicts: str, status: int, halted: Path) -> None:
    assert run("report", HALTED, "--recording", halted, "--fail-on", verdicts).exit_code == status


@pytest.mark.parametrize("verdict", ["passed", "halted"])
def test_a_recording_without_states_is_judged_again(verdict: str, tmp_path: Path) -> None:
    bare = bare_recording(tmp_path / "bare.jsonl.zst", told(verdict))
    result = run("report", "--recording", bare, "--format", "json")
    assert result.exit_code == 0, result.exception
    again, live = Report.model_validate_json(result.output), told(verdict).state
    assert again.verdict is live.verdict
    assert again.recovery.ttr == pytest.approx(live.recovery.ttr, abs=0.5)
    assert [line.metric for line in again.charged] == [line.metric for line in live.charged]
    assert again.injected[0].evidence


def test_a_recording_of_no_experiment_is_refused_with_what_to_do(tmp_path: Path) -> None:
    events = tuple(event for event in told("halted").events if isinstance(event, NodeInfo))
    said = refused("report", "--recording", recording(tmp_path / "bare.jsonl.zst", events))
    assert "no experiment is in it" in said
    assert "--from-start" in said


def test_bad_input_names_what_is_wrong_and_the_fix(halted: Path, tmp_path: Path) -> None:
    assert "did you mean 'spreading-hang-1'" in refused("report", "spreading-hang-2", "--recording", halted)
    assert "did you mean 'spreading-hang-1'" in refused("explain", "spreading-hang-2", "--recording", halted)
    assert "--since 7d" in refused("report")
    assert "leave out" in refused("report", HALTED, "--since", "7d", "--recording", halted)
    for span in ("soon", "-3d", "nand", "0s", "infd"):
        assert "7d" in refused("report", f"--since={span}", "--recording", halted)
    assert "did you mean 'failed'" in refused("report", HALTED, "--recording", halted, "--fail-on", "faild")
    assert "cannot be read" in refused("report", "--recording", tmp_path / "none.zst")
    assert "cannot be written" in refused("report", "--recording", halted, "--out", tmp_path / "no" / "r.md")


def test_explain_says_why_in_words_json_and_yaml(halted: Path) -> None:
    words = run("explain", HALTED, "--recording", halted)
    assert words.exit_code == 0
    assert "What decided it\n  halt hard-limit-nodes: 3 nodes beyond" in words.output
    found = Explained.model_validate_json(run("explain", HALTED, "--recording", halted, "-o", "json").output)
    again = yaml.safe_load(run("explain", HALTED, "--recording", halted, "-o", "yaml").output)
    assert again == found.model_dump(mode="json")
    assert found.decided[0].fact == "halt hard-limit-nodes"


@pytest.mark.broker
async def test_from_kafka_comes_the_same_report_as_from_a_recording(
    broker: RunningBroker, unique: str, halted: Path
) -> None:
    here = tuple(event.model_copy(update={"cluster": unique}) for event in told("halted").events)
    async with Bus(broker.settings) as bus:
        for record in records(here):
            await bus.send(record)
    env = {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap, "GPUCHAOS_CLUSTER": unique}
    recorded = Report.model_validate_json(run("report", HALTED, "--recording", halted, "--format", "json").output)
    live = await _beside("report", HALTED, "--format", "json", env=env)
    assert Report.model_validate_json(live) == recorded.model_copy(update={"cluster": unique})
    why = Explained.model_validate_json(await _beside("explain", HALTED, "-o", "json", env=env))
    assert why.decided[0].fact == "halt hard-limit-nodes"


async def _beside(*words: str, env: dict[str, str]) -> str:
    """The command in a process of its own; what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuchaos_stream.cli", *words, env={**os.environ, **env}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


def test_an_ending_that_no_format_has_is_refused_before_anything_is_read(halted: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.pdf"
    said = refused("report", HALTED, "--recording", halted, "--out", out)
    assert "no format has the ending .pdf; use .html, .htm, .md, .txt, .json, .xml, or --format" in said
    assert not out.exists()
    assert run("report", HALTED, "--recording", halted, "--out", out, "--format", "md").exit_code == 0
    assert run("report", HALTED, "--recording", halted, "--out", tmp_path / "REPORT.HTML").exit_code == 0
    assert (tmp_path / "REPORT.HTML").read_text().startswith("<!DOCTYPE html>")
    assert run("report", HALTED, "--recording", halted, "--out", tmp_path / "report").exit_code == 0
    assert (tmp_path / "report").read_text().startswith("# Experiment")
