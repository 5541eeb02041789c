"""The demo: its table, its parts on this machine, and the whole of it as one command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from lab.waiting import until

from gpuchaos_agent.jobs.progress import AppLog
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.experiment import ExperimentState, Halt, HaltState, InjectedFault, Status, Verdict
from gpuchaos_stream.events.incident import BlastRadius, RecoveryRecord
from gpuchaos_stream.guard.rules import RuleSet
from gpuchaos_stream.guard.rules import load as load_rules
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.sim import demo_table
from gpuchaos_stream.sim.demo import _replay_command, _rules, demo
from gpuchaos_stream.sim.scenarios import scenarios
from gpuchaos_stream.stream.brokers import Kind
from gpuchaos_stream.stream.child import Child


def test_the_toy_job_steps_stops_and_goes_on(tmp_path: Path) -> None:
    log, pidfile = tmp_path / "job.log", tmp_path / "job.pid"
    argv = (sys.executable, "-m", "gpuchaos_stream.sim.toy_job", "--step-s", "0.05")
    job = Child("job", (*argv, "--log", str(log), "--pidfile", str(pidfile)), log_file=tmp_path / "out.log").start()
    try:
        job.wait_for("ready", 20)
        assert int(pidfile.read_text()) == job.pid
        os.kill(job.pid, signal.SIGSTOP)
        until(lambda: _state(job.pid) == "T")
        stopped = log.read_text()
        os.kill(job.pid, signal.SIGCONT)
        until(lambda: log.read_text() != stopped)
    finally:
        job.stop()
    reader = AppLog(log)
    reader.poll(time.time())
    assert reader.step is not None
    assert reader.step >= 2
    assert reader.step_time is not None


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_the_demo_changes_nothing_of_the_shipped_rules_but_one_action(tmp_path: Path) -> None:
    ours, shipped = _actions(load_rules([_rules(tmp_path)])), _actions(load_rules([shipped_rules()]))
    different = {name: (shipped[name], ours[name]) for name in ours if ours[name] != shipped[name]}
    assert set(ours) == set(shipped)
    assert different == {"unattributed-critical-on-other-job": ("halt", "notify")}


def _actions(rules: RuleSet) -> dict[str, str]:
    return {loaded.rule.name: str(loaded.rule.action) for loaded in rules.rules}


def test_too_few_nodes_for_the_scenarios_are_refused() -> None:
    result = CliRunner().invoke(demo, ["--nodes", "10"])
    assert isinstance(result.exception, UserError)
    assert "at least 64" in str(result.exception)


def test_the_table_names_every_level_the_objectives_and_the_halt_latency(capsys: pytest.CaptureFixture[str]) -> None:
    scenario = scenarios(7)[1]
    state = ExperimentState(
        id="spreading-hang-1",
        time=100.0,
        cluster="demo",
        name="spreading-hang",
        owner="demo",
        status=Status.FINISHED,
        verdict=Verdict.HALTED,
        plan={},
        started=50.0,
        faults=(InjectedFault(fault_id="f", fault="process-stop", node="n1", entity="process/n1/2", phase="undone"),),
        blast_radius=BlastRadius(gpus=3, nodes=3, gpu_seconds=12.25),
        limits={"nodes": 2, "gpus": 16, "gpu_seconds": 600},
        recovery=RecoveryRecord(ttd=1.5, ttm=8.0, ttr=None, objectives={"ttd": 5.0, "ttr": 45.0}),
        halts=(
            Halt(
                id="h",
                experiment_id="spreading-hang-1",
                cause="hard-limit-nodes",
                reason="",
                state=HaltState.UNDONE,
                requested=60.0,
                acknowledged=60.25,
                undone=61.0,
            ),
        ),
        attributed=18,
        unattributed=2,
    )
    demo_table.show([state, None], [scenario.title, "another"])
    text = capsys.readouterr().out
    rows = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "3 / 2" in rows["hurt beyond target: nodes"]
    assert {f"hurt beyond target: {level}" for level in ("gpus", "cells", "racks", "rails", "jobs")} <= set(rows)
    assert "1.5 s / 5 s" in rows["TTD / objective"]
    assert "- / 45 s" in rows["TTR / objective"]
    assert "0.25 s" in rows["halt: breach → acknowledged"]
    assert "1.00 s" in rows["halt: breach → undone"]
    assert "(not finished)" in rows["experiment"]
    assert "18" in rows["anomalies attributed"]
    assert "the GPU that really failed" in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("started", "program"),
    [(".venv/bin/gpuchaos", ".venv/bin/gpuchaos"), ("cli.py", f"{sys.executable} -m gpuchaos_stream.cli")],
)
def test_the_replay_command_can_be_pasted(monkeypatch: pytest.MonkeyPatch, started: str, program: str) -> None:
    monkeypatch.setattr(sys, "argv", [started, "demo"])
    assert _replay_command(Path("a b/r.zst")) == f"{program} replay 'a b/r.zst'"


@pytest.mark.broker
@pytest.mark.timeout(240)
def test_the_demo_ends_as_it_must_leaves_nothing_running_and_its_recording_gives_the_same_verdicts(
    broker_kind: Kind, tmp_path: Path
) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "gpuchaos_stream.cli"]
    ran = subprocess.run(
        [*command, "demo", "--fast", "--broker", broker_kind, "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    verdicts = re.search(r"^verdict +(\w+) +(\w+) +(\w+)$", ran.stdout, re.MULTILINE)
    assert verdicts is not None
    assert verdicts.groups() == ("passed", "halted", "passed")
    assert not _speaks_of(out)
    first, second = (_replayed([*command, "replay", str(out / "demo.jsonl.zst")]) for _ in range(2))
    assert first == second
    assert [line.split()[1] for line in first if "(as live)" in line] == ["passed", "halted", "passed"]


def _replayed(command: list[str]) -> list[str]:
    """The verdicts of a replay, without its log."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [line for line in ran.stdout.splitlines() if " ttd " in line]


@pytest.mark.broker
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_an_interrupted_demo_ends_with_130_and_leaves_nothing_running(
    broker_kind: Kind, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-u", "-m", "gpuchaos_stream.cli", "demo", "--broker", broker_kind, "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if "hung-rank: active" in line:
                break
        running.send_signal(number)
        rest = running.stdout.read()
    assert running.returncode == 130, rest
    assert "interrupted" in rest
    assert not _speaks_of(out)


def _speaks_of(folder: Path) -> list[str]:
    """Processes whose command line names `folder`: what the demo would have left running."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(folder) in line and "pytest" not in line:
            found.append(line)
    return found
