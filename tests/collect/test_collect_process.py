from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.collect.base import JobSource
from gpuchaos_agent.collect.process import ProcessCollector
from gpuchaos_agent.jobs.progress import READ_PER_TICK, AppLog
from gpuchaos_agent.kernelfs.processes import process_stat
from gpuchaos_stream.errors import UserError

PROC, SYS = Path("/proc"), Path("/sys")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def becomes(pid: int, states: str) -> None:
    """Signals are delivered when the kernel gets to it: waits for the state, by deadline."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        stat = process_stat(PROC, pid)
        if stat is not None and stat.state in states:
            return
        os.sched_yield()
    raise AssertionError(f"{pid} did not become {states}")


def running(collector: ProcessCollector, now: float = 1.0) -> float | None:
    (group,) = collector.read(now).groups
    return group.columns[group.layout.metrics.index("running")][0]


def test_a_stopped_process_does_not_run_and_a_continued_one_does(sleeper: subprocess.Popen[bytes]) -> None:
    collector = ProcessCollector((JobSource("train", pid=sleeper.pid),), procfs=PROC, sysfs=SYS)
    assert running(collector) == 1.0
    sleeper.send_signal(signal.SIGSTOP)
    becomes(sleeper.pid, "T")
    assert running(collector) == 0.0
    sleeper.send_signal(signal.SIGCONT)
    becomes(sleeper.pid, "SR")
    assert running(collector) == 1.0


def test_a_process_that_is_gone_keeps_its_row_and_does_not_run(sleeper: subprocess.Popen[bytes]) -> None:
    collector = ProcessCollector((JobSource("train", pid=sleeper.pid),), procfs=PROC, sysfs=SYS)
    assert running(collector) == 1.0
    sleeper.kill()
    becomes(sleeper.pid, "Z")
    assert running(collector) == 0.0
    sleeper.wait()
    (group,) = collector.read(2.0).groups
    assert group.layout.ids == (str(sleeper.pid),)
    assert group.layout.labels["job"] == ("train",)
    assert running(collector) == 0.0


def test_a_pid_file_is_followed_to_the_next_process(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    pidfile = tmp_path / "pid"
    collector = ProcessCollector((JobSource("train", pidfile=pidfile),), procfs=PROC, sysfs=SYS)
    reading = collector.read(0.0)
    assert str(pidfile) in reading.absent["process.train"]
    assert reading.groups[0].layout.ids == ("train",)
    pidfile.write_text(f"{os.getpid()}\n")
    assert running(collector) == 1.0
    pidfile.write_text(f"{sleeper.pid}\n")
    assert collector.read(2.0).groups[0].layout.ids == (str(sleeper.pid),)


def fake_process(root: Path, pid: int, *, state: str = "S", start: int = 100, cpus: str = "0-3") -> None:
    path = root / str(pid)
    path.mkdir(parents=True, exist_ok=True)
    rest = " ".join(["0"] * 18)
    (path / "stat").write_text(f"{pid} (a ) b) {state} {rest} {start} 0 0\n")
    (path / "status").write_text(f"Name:\tx\nCpus_allowed_list:\t{cpus}\n")


def test_another_process_under_the_same_pid_is_not_ours(tmp_path: Path) -> None:
    fake_process(tmp_path, 7, start=100)
    collector = ProcessCollector((JobSource("train", pid=7),), procfs=tmp_path, sysfs=tmp_path)
    assert running(collector) == 1.0
    fake_process(tmp_path, 7, start=101)
    assert running(collector) == 0.0


def test_no_job_is_said() -> None:
    assert ProcessCollector((), procfs=PROC, sysfs=SYS).read(0.0).absent == {"process": "no job is configured"}


def test_two_jobs_of_one_pid_are_one_row_and_said() -> None:
    sources = (JobSource("a", pid=os.getpid()), JobSource("b", pid=os.getpid()))
    reading = ProcessCollector(sources, procfs=PROC, sysfs=SYS).read(0.0)
    assert reading.groups[0].layout.ids == (str(os.getpid()),)
    assert "process.b" in reading.absent


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text("")
    return path


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("line", "step", "seconds"),
    [
        ("step=12 loss=0.3 step_time=0.50", 12, 0.5),
        ("INFO Step 1200/5000 | step_time: 250ms", 1200, 0.25),
        (" iteration      100/  500000 | elapsed time per iteration (ms): 5190.6 | lr: 1e-4", 100, 5.1906),
        ('{"global_step": 7, "step_time": 1.5}', 7, 1.5),
        ("iter 33 done", 33, None),
    ],
)
def test_the_usual_forms_of_progress_are_read(log: Path, line: str, step: int, seconds: float | None) -> None:
    follower = AppLog(log)
    append(log, line + "\n")
    follower.poll(1.0)
    assert follower.step == step
    assert follower.step_time == (None if seconds is None else pytest.approx(seconds))


def test_a_pattern_of_ones_own_is_used(log: Path) -> None:
    follower = AppLog(log, step_pattern=r"batch#(\d+)", time_pattern=r"took (\d+\.\d+)")
    append(log, "step=3 batch#9 took 0.25\n")
    follower.poll(1.0)
    assert (follower.step, follower.step_time) == (9, 0.25)


@pytest.mark.parametrize(("pattern", "said"), [("(", "no regular expression"), ("step", "0 groups"), ("(a)(b)", "2")])
def test_a_pattern_that_cannot_work_is_refused(log: Path, pattern: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        AppLog(log, step_pattern=pattern)


def test_a_pattern_that_finds_no_number_finds_nothing(log: Path) -> None:
    follower = AppLog(log, step_pattern=r"at (\w+)")
    append(log, "at 5\nat nan\nat home\n")
    follower.poll(1.0)
    assert follower.step == 5


def test_steps_rate_falls_to_nothing_when_the_job_stands_still(log: Path) -> None:
    follower = AppLog(log)
    rates = []
    for now in range(20):
        if now < 10:
            append(log, f"step={2 * now}\n")
        follower.poll(100.0 + now)
        rates.append(follower.steps_rate())
    assert rates[0] is None
    assert rates[9] == pytest.approx(2.0)
    assert rates[-1] == 0.0
    assert follower.progress_age(119.0) == 10.0


def test_age_of_what_was_there_before_is_that_of_the_file(log: Path) -> None:
    append(log, "step=1\n")
    os.utime(log, (1000.0, 1000.0))
    follower = AppLog(log)
    follower.poll(1060.0)
    assert follower.progress_age(1060.0) == 60.0


def test_a_job_without_a_step_has_no_progress_instead_of_none_at_all(log: Path) -> None:
    follower = AppLog(log)
    append(log, "loading data\n")
    follower.poll(1.0)
    follower.poll(2.0)
    assert (follower.steps_rate(), follower.progress_age(2.0), follower.step_time) == (None, None, None)


def test_resuming_from_a_checkpoint_is_progress_and_no_negative_rate(log: Path) -> None:
    follower = AppLog(log)
    for now, step in ((0.0, 100), (1.0, 102), (2.0, 50), (3.0, 52)):
        append(log, f"step={step}\n")
        follower.poll(now)
        assert follower.steps_rate() is None or follower.steps_rate() == 2.0
    assert follower.progress_age(3.0) == 0.0


def test_a_rotated_log_is_read_from_its_start_and_a_truncated_one_too(log: Path) -> None:
    follower = AppLog(log)
    append(log, "step=1\nstep=2\n")
    follower.poll(1.0)
    log.rename(log.with_suffix(".1"))
    log.write_text("step=3\n")
    follower.poll(2.0)
    assert follower.step == 3
    log.write_text("step=4\n")
    follower.poll(3.0)
    log.write_text("s=1\n")
    follower.poll(4.0)
    append(log, "step=5\n")
    follower.poll(5.0)
    assert follower.step == 5


def test_a_line_is_read_when_it_is_whole(log: Path) -> None:
    follower = AppLog(log)
    append(log, "step=1\nstep=1")
    follower.poll(1.0)
    append(log, "234\n")
    follower.poll(2.0)
    assert follower.step == 1234


def test_a_log_that_grows_faster_than_it_is_read_is_followed_at_its_end(log: Path) -> None:
    follower = AppLog(log)
    follower.poll(0.0)
    append(log, "step=1\n" + "x" * (3 * READ_PER_TICK) + "\nstep=2\n")
    follower.poll(1.0)
    assert follower.step == 2


def test_a_missing_log_is_said_and_found_when_it_comes(tmp_path: Path) -> None:
    log = tmp_path / "later.log"
    collector = ProcessCollector((JobSource("a", pid=os.getpid(), log=log),), procfs=PROC, sysfs=SYS)
    assert str(log) in collector.read(0.0).absent["process.a.log"]
    log.write_text("step=5\n")
    reading = collector.read(1.0)
    assert "process.a.log" not in reading.absent
    assert reading.groups[0].columns[reading.groups[0].layout.metrics.index("progress_age_seconds")][0] is not None


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_random_bytes_in_a_log_are_no_error(tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(b"")
    follower = AppLog(path)
    for now, chunk in enumerate(chunks):
        with path.open("ab") as file:
            file.write(chunk)
        follower.poll(float(now))
        rate = follower.steps_rate()
        assert rate is None or rate >= 0
