"""A real agent, or its executor, killed with SIGKILL, with a real process stopped: it never stays stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_kit import NODE
from agent_suicide import STEPS
from lab.waiting import until

from gpuchaos_agent import clock, environment, offline
from gpuchaos_agent.inject import registry
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.process_stop import read_process
from gpuchaos_agent.journal import Journal

HERE = Path(__file__).parent
AGENT = [sys.executable, "-m", "gpuchaos_agent.agent"]


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def stopped(pid: int) -> bool:
    process = read_process(Path("/proc"), pid)
    return process is not None and process.state == "T"


def undo_all(folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [*AGENT, "undo", "--all", "--node", NODE, "--state-dir", str(folder)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)


def die_at(folder: Path, pid: int, step: str, count: int) -> None:
    """Injects into `pid` and is killed at a step; see `agent_suicide.py`."""
    argv = [sys.executable, str(HERE / "agent_suicide.py"), str(folder), str(pid), step, str(count)]
    assert subprocess.run(argv, check=False, timeout=30).returncode == -9


@pytest.mark.parametrize(("step", "count"), STEPS)
def test_killed_at_any_step_the_journal_alone_brings_the_process_back(
    tmp_path: Path, victim: subprocess.Popen[bytes], step: str, count: int
) -> None:
    die_at(tmp_path, victim.pid, step, count)
    if step.startswith("after ProcessStop.inject"):
        assert stopped(victim.pid)
    strategies = registry.build(Env(node=NODE, boot_id=clock.boot_id()))
    journal = Journal(tmp_path / "journal")
    outcomes, damaged = offline.undo(journal, strategies, clock.now(), "test")
    assert [item.problem for item in outcomes if item.problem] == damaged == []
    assert not stopped(victim.pid)
    assert victim.poll() is None
    assert offline.undo(journal, strategies, clock.now(), "again") == ([], [])


def test_undo_all_brings_the_process_back_with_everything_else_down(
    tmp_path: Path, victim: subprocess.Popen[bytes]
) -> None:
    die_at(tmp_path, victim.pid, "after ProcessStop.inject", 0)
    done = undo_all(tmp_path)
    assert (done.returncode, "undone" in done.stdout) == (0, True), done.stderr
    assert not stopped(victim.pid)
    again = undo_all(tmp_path)
    assert (again.returncode, "nothing to undo" in again.stdout) == (0, True)


def test_undo_all_says_what_it_could_not_undo_and_ends_with_one(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "f1.json").write_text("{")
    done = undo_all(tmp_path)
    assert done.returncode == 1
    assert "UNREADABLE" in done.stdout


def test_undo_all_without_a_journal_has_nothing_to_do(tmp_path: Path) -> None:
    done = undo_all(tmp_path / "none")
    assert (done.returncode, "nothing to undo" in done.stdout) == (0, True)


@pytest.mark.parametrize("lease", [300.0, 0.2])
def test_the_dead_mans_switch_undoes_when_its_agent_dies_or_hangs_past_the_lease(
    tmp_path: Path, victim: subprocess.Popen[bytes], lease: float
) -> None:
    die_at(tmp_path, victim.pid, "after Journal.write", 1)
    assert stopped(victim.pid)
    path = tmp_path / "journal" / "f1.json"
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({**entry, "lease_deadline": entry["lease_deadline"] - entry["lease_s"] + lease}))
    switch = [
        sys.executable,
        "-m",
        "gpuchaos_agent.deadman",
        str(tmp_path / "journal"),
        environment.packed(Env(node=NODE, boot_id=clock.boot_id())),
        "0.1",
    ]
    with subprocess.Popen(switch, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        if lease > 100:
            process.stdin.close()  # the agent's end of the pipe goes with the agent
        until(lambda: not stopped(victim.pid))
        process.stdin.close()
        assert process.wait(10) == 0
    entry = json.loads(path.read_text())
    assert (entry["state"], entry["reported"]) == ("undone", False)


def test_bad_input_ends_with_two_and_names_file_line_and_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("cluster: c1\nkeyrng: /x\n")
    done = subprocess.run(
        [*AGENT, "--once", "--config", str(tmp_path / "agent.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 2
    assert "agent.yaml:2" in done.stderr
    assert "keyring" in done.stderr


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--keyring", "/nothing"], "/nothing"),
        (["--interval", "never"], "interval"),
        (["--job", "llama"], "--job"),
        (["--job", "job=a,pid=x"], "pid"),
        (["--node", "a/b"], "node"),
        (["--bootstrap-servers", "nowhere"], "bootstrap_servers"),
        (["undo"], "--all"),
    ],
)
def test_bad_options_are_explained(tmp_path: Path, options: list[str], word: str) -> None:
    argv = [*AGENT, "--state-dir", str(tmp_path), *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2, done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_once_print_is_one_valid_frame_with_what_is_absent_said(tmp_path: Path) -> None:
    argv = [*AGENT, "--once", "--print", "--interval", "0.2", "--state-dir", str(tmp_path / "never-made")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30)
    frame = json.loads(done.stdout)
    kinds = {group["kind"] for group in frame["groups"]}
    assert kinds | set(frame["absent"]) >= {"gpu", "rdma", "numa", "process"}
    assert "kernel_log" in frame["sources"] or "kernel_log" in frame["absent"]
    assert not (tmp_path / "never-made").exists()


def test_a_second_agent_on_the_same_state_directory_is_refused(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        argv = [*AGENT, "--state-dir", str(tmp_path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2
    assert "another agent" in done.stderr


def test_the_agent_needs_none_of_the_processors_libraries() -> None:
    code = (
        "import sys, gpuchaos_agent.runtime, gpuchaos_agent.agent\n"
        "heavy = {'faust', 'numpy', 'sklearn', 'pandas', 'httpx', 'cel'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
