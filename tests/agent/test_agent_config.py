from __future__ import annotations

from pathlib import Path

import pytest

from gpuchaos_agent import config
from gpuchaos_agent.agent import main
from gpuchaos_agent.inject import registry
from gpuchaos_agent.inject.base import Env
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.experiments.faults import FAULTS


def write(folder: Path, text: str) -> Path:
    path = folder / "agent.yaml"
    path.write_text(text)
    return path


def test_the_command_line_beats_the_environment_which_beats_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "cluster: file\ncell: file\nrack: file\n")
    monkeypatch.setenv("GPUCHAOS_AGENT_CELL", "environment")
    monkeypatch.setenv("GPUCHAOS_AGENT_RACK", "environment")
    settings = config.load(path, rack="line", node=None)
    assert (settings.cluster, settings.cell, settings.rack) == ("file", "environment", "line")


def test_jobs_come_from_the_file_and_a_pidfile_is_read_each_time(tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    settings = config.load(write(tmp_path, f"jobs:\n  - {{job: llama, pidfile: {pidfile}, gpu: '3', numa_node: 1}}\n"))
    assert settings.job_of(4242) is None
    pidfile.write_text("4242\n")
    assert settings.job_of(4242) == "llama"
    (source,) = settings.sources().jobs
    assert (source.job, source.gpu, source.numa_node, source.pidfile) == ("llama", "3", 1, pidfile)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clutser: a\n", ["agent.yaml:1", "clutser", "cluster"]),
        ("cell: a\ninterval: 0\n", ["agent.yaml:2", "interval"]),
        ("jobs:\n  - job: a\n    pid: 5\n    pidfile: /x\n", ["agent.yaml:2", "exclude"]),
        ("jobs:\n  - job: a\n    pids: 5\n", ["agent.yaml:3", "pids"]),
        ("- a\n", ["agent.yaml:1", "mapping"]),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        config.load(write(tmp_path, text))
    assert [word for word in words if word not in str(error.value)] == []


def test_a_list_that_is_no_json_in_the_environment_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCHAOS_AGENT_JOBS", "llama")
    with pytest.raises(UserError, match="JSON"):
        config.load()


def test_plans_and_agents_agree_on_what_each_fault_certifies() -> None:
    made = registry.build(Env(node="n1", boot_id="b"))
    assert set(made) == {name for name, kind in FAULTS.items() if kind.available}
    for name, strategy in made.items():
        assert (name, set(strategy.certifies), set(strategy.not_certified)) == (
            strategy.name,
            set(FAULTS[name].certifies),
            set(FAULTS[name].never),
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--clustr", "x"], "no such option '--clustr'; did you mean '--cluster'? See gpuchaos-agent --help"),
        (["--clustr=x", "faults"], "no such option '--clustr'; did you mean '--cluster'? See gpuchaos-agent --help"),
        (["fautls"], "no such command 'fautls'; did you mean 'faults'? See gpuchaos-agent --help"),
        (["--zzz"], "no such option '--zzz'; see gpuchaos-agent --help"),
        (["--interval"], "argument --interval: expected one argument; see gpuchaos-agent --help"),
    ],
)
def test_a_slip_on_the_command_line_is_one_line_with_what_was_meant(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"gpuchaos-agent: {said}\n"
