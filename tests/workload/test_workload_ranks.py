from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from workload_kit import EXAMPLES, PACE, Run, Start, alive, faults

from gpuchaos_agent.jobs import patterns
from gpuchaos_agent.jobs.heartbeat import Heartbeat

#: Minutes of real time-outs together; the fast ones are in test_workload_status.py.
pytestmark = pytest.mark.soak


@pytest.mark.parametrize("more", [(), ("--tls",)])
def test_a_run_trains_to_its_last_step(start: Start, more: tuple[str, ...]) -> None:
    run = start("--steps", "45", *more)
    assert run.process.wait(60) == 0
    status = run.status()
    assert (status["state"], status["step"], status["restarts"], status["data_lost"]) == ("finished", 45, 0, 0)
    assert (status["checkpoints"]["newest_good"], status["checkpoints"]["bad"]) == ("step-00000045", 0)
    assert len(status["certificates"]) == (4 if more else 0)
    assert faults(run.log()) == set()


def test_the_network_learns(start: Start) -> None:
    run = start("--steps", "120", "--pause", "0")
    assert run.process.wait(60) == 0
    losses = [float(line.split("loss=")[1].split()[0]) for line in run.log().splitlines() if "loss=" in line]
    assert losses[-1] < 0.5 * losses[0]


def test_a_clean_stop_saves_the_step_that_it_ends_with(start: Start) -> None:
    run = start()
    run.until_step(13)
    assert run.stop() == 0
    status = run.status()
    assert status["state"] == "stopped"
    assert status["checkpoints"]["newest_good"] == f"step-{status['step']:08d}"
    again = start()
    again.until_more()
    assert again.stop() == 0
    status = again.status()
    assert (status["steps_lost"], status["data_lost"], status["bad_weights_loaded"]) == (0, 0, 0)


def test_a_killed_rank_costs_no_data_and_the_log_says_it_in_torchs_words(start: Start) -> None:
    run = start("--checkpoint-every", "25")
    run.until_step(33)
    victim = run.pid(2)
    os.kill(victim, signal.SIGKILL)
    run.until(lambda: run.state()["restarts"] == 1, "a restart")
    run.until_step(40)
    assert run.stop() == 0
    status = run.status()
    assert (status["restarts"], status["data_lost"], status["bad_weights_loaded"]) == (1, 0, 0)
    assert status["resumed_from"] == "step-00000025"
    assert status["steps_lost"] >= 8
    assert status["replayed_otherwise"] == 0
    assert status["last_failure"] == "rank2 ended with -9"
    assert f"failed (exitcode: -9) local_rank: 2 (pid: {victim})" in run.log()
    assert {"worker_failed", "peer_process_died"} <= faults(run.log())
    assert not alive(victim)


def test_a_stopped_rank_is_found_by_the_watchdog_and_ended(start: Start) -> None:
    run = start("--watchdog", "2")
    run.until_step(12)
    victim = run.pid(1)
    os.kill(victim, signal.SIGSTOP)
    run.until(lambda: run.state()["restarts"] == 1, "a restart")
    assert not alive(victim)
    run.until_step(25)
    assert run.stop() == 0
    assert "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=" in run.log()
    assert "(exitcode: -6)" in run.log()
    assert faults(run.log()) & {"collective_timeout", "collective_desync"}
    assert run.status()["data_lost"] == 0


def test_a_rank_that_was_stopped_for_a_moment_costs_nothing(start: Start) -> None:
    run = start("--watchdog", "8")
    run.until_step(12)
    os.kill(run.pid(3), signal.SIGSTOP)
    stands = time.monotonic() + 1.5
    run.until(lambda: time.monotonic() > stands, "the time")
    os.kill(run.pid(3), signal.SIGCONT)
    run.until_more()
    assert run.stop() == 0
    assert (run.status()["restarts"], run.status()["steps_lost"]) == (0, 0)


def test_ranks_end_with_their_launcher_and_the_next_one_goes_on(start: Start, tmp_path: Path) -> None:
    run = start()
    run.until_step(22)
    pids = [run.pid(rank) for rank in range(4)]
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    again = start()
    again.until_step(30)
    assert not any(map(alive, pids))
    assert again.stop() == 0
    status = again.status()
    assert (status["data_lost"], status["bad_weights_loaded"], status["replayed_otherwise"]) == (0, 0, 0)


def test_attempts_run_out(start: Start) -> None:
    run = start("--max-restarts", "0")
    run.until_step(5)
    os.kill(run.pid(0), signal.SIGKILL)
    assert run.process.wait(20) == 1
    assert run.status()["state"] == "failed"
    assert "ChildFailedError" in run.log()
    assert "worker_failed" in faults(run.log())


def test_the_agent_reads_steps_and_heartbeats(start: Start) -> None:
    run = start("--steps", "20")
    run.process.wait(60)
    line = next(line for line in run.log().splitlines() if "step=20 loss=" in line).encode()
    steps, times, losses = (
        next(pattern.value(match[1]) for pattern in table if (match := pattern.text.search(line)))
        for table in (patterns.STEPS, patterns.TIMES, patterns.LOSSES)
    )
    assert steps == 20
    assert 0.02 < times < 1.0
    assert losses > 0
    heartbeat = Heartbeat(run.folder / "heartbeat" / "rank0.json")
    heartbeat.poll(time.time())
    assert (heartbeat.step, heartbeat.problem) == (19, "")  # it is written when a rank joins its collective


def test_two_launchers_never_share_a_folder(start: Start) -> None:
    run = start()
    run.until_step(3)
    other = Run(run.folder)
    assert other.process.wait(20) == 2
    assert run.stop() == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--ranks", "5"), "must be a multiple of the ranks"),
        (("--database", "mysql://x"), "a database is postgresql://"),
        (("--keep", "1"), "keep at least 2"),
        (("--pause", "-1"), "times must be above zero"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    command = [sys.executable, "-m", "workload", "run", "--folder", str(tmp_path / "run"), *PACE, *words]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
