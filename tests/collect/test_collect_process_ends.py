from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuchaos_agent.collect.base import Fact, JobSource, Reading
from gpuchaos_agent.collect.process import ProcessCollector
from gpuchaos_stream.events.base import Severity

PROC, SYS = Path("/proc"), Path("/sys")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def running(collector: ProcessCollector, now: float = 1.0) -> float | None:
    (group,) = collector.read(now).groups
    return group.columns[group.layout.metrics.index("running")][0]


def column(reading: Reading, metric: str, row: int = 0) -> float | None:
    (group,) = reading.groups
    return group.columns[group.layout.metrics.index(metric)][row]


def fake_process(root: Path, pid: int, *, state: str = "S", start: int = 100, cpus: str = "0-3") -> None:
    path = root / str(pid)
    path.mkdir(parents=True, exist_ok=True)
    rest = " ".join(["0"] * 18)
    (path / "stat").write_text(f"{pid} (a ) b) {state} {rest} {start} 0 0\n")
    (path / "status").write_text(f"Name:\tx\nCpus_allowed_list:\t{cpus}\n")


def fake_group(root: Path, pid: int, *, periods: int = 0, throttled: int = 0, kills: int = 0) -> None:
    at = root / "fs/cgroup/job"
    at.mkdir(parents=True, exist_ok=True)
    (root / "fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    (root / str(pid) / "cgroup").write_text("0::/job\n")
    (at / "cpu.stat").write_text(f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 0\n")
    (at / "memory.events").write_text(f"oom 0\noom_kill {kills}\n")
    (at / "memory.max").write_text("4096\n")
    (at / "memory.pressure").write_text("some avg10=12.00 avg60=0.00 avg300=0.00 total=0\n")


def test_throttling_is_the_share_of_the_periods_since_the_last_tick(tmp_path: Path) -> None:
    fake_process(tmp_path, 7)
    fake_group(tmp_path, 7, periods=100, throttled=90)
    collector = ProcessCollector((JobSource("train", pid=7),), procfs=tmp_path, sysfs=tmp_path)
    first = collector.read(0.0)
    assert column(first, "cpu_throttled_ratio") is None
    assert column(first, "pressure_memory_ratio") == 0.12
    assert column(first, "pressure_io_ratio") is None
    ratios = []
    for periods, throttled in ((110, 94), (110, 94), (5, 5)):
        fake_group(tmp_path, 7, periods=periods, throttled=throttled)
        ratios.append(column(collector.read(1.0), "cpu_throttled_ratio"))
    assert ratios == [0.4, 0.0, None]


def test_an_oom_kill_in_the_jobs_group_is_told_and_explains_its_end(tmp_path: Path) -> None:
    fake_process(tmp_path, 7)
    fake_group(tmp_path, 7, kills=3)
    collector = ProcessCollector((JobSource("train", pid=7),), procfs=tmp_path, sysfs=tmp_path)
    assert collector.read(0.0).facts == ()
    fake_group(tmp_path, 7, kills=5)
    (tmp_path / "7/stat").unlink()
    kill, end = collector.read(1.0).facts
    assert (kill.fault, kill.severity, kill.kind, kill.local) == ("oom_kill", Severity.ERROR, "process", "7")
    assert (kill.evidence["count"], kill.evidence["cgroup"], kill.evidence["limit_bytes"]) == (2, "/job", 4096.0)
    assert (end.fault, end.evidence["cause"]) == ("worker_killed", "oom")
    assert collector.read(2.0).facts == ()


def test_kills_in_a_group_that_was_made_anew_are_others(tmp_path: Path) -> None:
    keys = []
    for run in range(2):
        root = tmp_path / str(run)  # the same service started again: the same path in the hierarchy, counted from 0
        fake_process(root, 7)
        fake_group(root, 7)
        collector = ProcessCollector((JobSource("train", pid=7),), procfs=root, sysfs=root)
        collector.read(0.0)
        fake_group(root, 7, kills=1)
        (fact,) = collector.read(1.0).facts
        assert fact.evidence["cgroup"] == "/job"
        keys.append(fact.key)
    assert keys[0] != keys[1]


def test_a_pidfile_that_nobody_writes_into_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    collector = ProcessCollector((JobSource("train", pidfile=tmp_path / "pid"),), procfs=tmp_path, sysfs=tmp_path)
    assert "no pid in" in collector.read(0.0).absent["process.train"]


def test_a_kill_in_a_group_of_several_workers_is_told_once(tmp_path: Path) -> None:
    for pid in (7, 8):
        fake_process(tmp_path, pid)
        fake_group(tmp_path, pid)
    sources = (JobSource("train", pid=7), JobSource("train", pid=8))
    collector = ProcessCollector(sources, procfs=tmp_path, sysfs=tmp_path)
    collector.read(0.0)
    fake_group(tmp_path, 7, kills=1)
    (kill,) = collector.read(1.0).facts
    assert (kill.kind, kill.local, kill.evidence["job"]) == ("node", "", "train")


def test_groups_that_cannot_be_reached_are_said_and_the_container_is_known(tmp_path: Path) -> None:
    fake_process(tmp_path, 7)
    (tmp_path / "7/cgroup").write_text(f"0::/../../docker-{'ab' * 32}.scope\n")
    collector = ProcessCollector((JobSource("train", pid=7),), procfs=tmp_path, sysfs=tmp_path)
    reading = collector.read(0.0)
    assert "outside of this agent's cgroup namespace" in reading.absent["process.train.cgroup"]
    assert reading.info["train.container"] == "docker abababababab"


def ended(collector: ProcessCollector, since: float) -> tuple[list[Fact], float]:
    """Facts up to that of an end, as the agent waits for them, and how long it took."""
    facts: list[Fact] = []
    while not any(fact.fault.startswith("worker") for fact in facts) and time.monotonic() < since + 5.0:
        fd = collector.fileno()
        select.select([] if fd is None else [fd], [], [], 0.1)
        facts += collector.drain(time.time())
    return facts, time.monotonic() - since


def test_a_real_kill_is_told_within_two_seconds_and_a_restart_runs_again(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    pidfile = tmp_path / "pid"
    pidfile.write_text(f"{sleeper.pid}\n")
    collector = ProcessCollector((JobSource("train", pidfile=pidfile),), procfs=PROC, sysfs=SYS)
    assert running(collector) == 1.0
    began = time.monotonic()
    sleeper.send_signal(signal.SIGKILL)
    (fact,), took = ended(collector, began)
    assert took < 2.0
    assert (fact.fault, fact.severity, fact.local) == ("worker_killed", Severity.ERROR, str(sleeper.pid))
    assert (fact.evidence["exitcode"], fact.evidence["cause"]) == (-9, "SIGKILL")
    assert running(collector) == 0.0
    assert collector.read(3.0).facts == ()
    with subprocess.Popen(["sleep", "60"]) as again:
        pidfile.write_text(f"{again.pid}\n")
        assert running(collector) == 1.0
        again.kill()
        (fact,), _ = ended(collector, time.monotonic())
        assert fact.local == str(again.pid)
    collector.close()
    assert collector.fileno() is None


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="making a control group needs root")
def test_a_real_oom_kill_in_a_group_is_told_and_explains_the_end() -> None:
    root = Path("/sys/fs/cgroup")
    v2 = (root / "cgroup.controllers").exists()
    if v2:
        (root / "cgroup.subtree_control").write_text("+memory")
    at = (root if v2 else root / "memory") / f"gpuchaos-oom-{os.getpid()}"
    at.mkdir()
    greedy = subprocess.Popen(
        [sys.executable, "-c", "input(); hold = [b'x' * (1 << 20) for _ in range(512)]"], stdin=subprocess.PIPE
    )
    try:
        (at / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(32 << 20))
        (at / "cgroup.procs").write_text(str(greedy.pid))
        collector = ProcessCollector((JobSource("train", pid=greedy.pid),), procfs=PROC, sysfs=SYS)
        assert collector.read(time.time()).facts == ()
        assert greedy.stdin is not None
        began = time.monotonic()
        greedy.stdin.write(b"\n")
        greedy.stdin.close()
        facts, took = ended(collector, began)
        assert took < 2.0
        if len(facts) == 1:  # it ended between the look at the counter and the look at it
            facts = [*collector.drain(time.time()), *facts]
        assert [fact.fault for fact in facts] == ["oom_kill", "worker_killed"]
        assert facts[0].evidence["limit_bytes"] == float(32 << 20)
        assert (facts[1].evidence["cause"], facts[1].evidence["exitcode"]) == ("oom", -9)
        collector.close()
    finally:
        greedy.kill()
        greedy.wait()
        deadline = time.monotonic() + 5
        while at.exists() and time.monotonic() < deadline:
            try:
                at.rmdir()
            except OSError:
                os.sched_yield()
