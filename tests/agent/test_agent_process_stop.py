"""`process-stop` on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent import clock
from gpuchaos_agent.inject.base import Env, InjectError
from gpuchaos_agent.inject.process_stop import ProcessStop, read_process
from gpuchaos_agent.journal import JournalEntry

NODE = "n1"


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def strategy(job_of: Callable[[int], str | None] = lambda _pid: "llama", **fields: object) -> ProcessStop:
    return ProcessStop(Env(node=NODE, boot_id=clock.boot_id(), job_of=job_of, **fields))  # type: ignore[arg-type]


def entry(of: ProcessStop, pid: int, **update: object) -> JournalEntry:
    target = f"process/{NODE}/{pid}"
    made = JournalEntry(
        fault_id="f1",
        experiment_id="e1",
        command_id="c1",
        fault="process-stop",
        entity=target,
        payload=of.plan(target, {}, "f1"),
        boot_id=clock.boot_id(),
        order=0,
        created=0,
        lease_s=10,
        lease_expires=10,
        lease_deadline=10,
    )
    return made.model_copy(update=update)


def state(pid: int) -> str | None:
    process = read_process(Path("/proc"), pid)
    return process.state if process else None


def test_a_process_is_stopped_and_continued_and_both_are_seen_in_proc(victim: subprocess.Popen[bytes]) -> None:
    stop = strategy()
    assert stop.check(f"process/{NODE}/{victim.pid}", {}) is None
    fault = entry(stop, victim.pid)
    stop.inject(fault)
    evidence = stop.evidence(fault)
    assert evidence.moved
    assert evidence.detail["state"] == state(victim.pid) == "T"
    assert not stop.verify(fault)
    stop.undo(fault)
    assert stop.verify(fault)
    assert state(victim.pid) != "T"


def test_undoing_twice_or_what_never_began_changes_nothing(victim: subprocess.Popen[bytes]) -> None:
    stop = strategy()
    fault = entry(stop, victim.pid)
    stop.undo(fault)
    stop.undo(fault)
    assert stop.verify(fault)
    assert victim.poll() is None


def test_a_pid_that_now_belongs_to_another_process_is_never_touched(victim: subprocess.Popen[bytes]) -> None:
    stop = strategy()
    fault = entry(stop, victim.pid)
    other = fault.model_copy(update={"payload": {**fault.payload, "start": int(fault.payload["start"] or 0) - 1}})
    with pytest.raises(InjectError):
        stop.inject(other)
    assert state(victim.pid) != "T"
    os.kill(victim.pid, signal.SIGSTOP)
    while state(victim.pid) != "T":
        time.sleep(0.001)
    stop.undo(other)
    assert stop.verify(other)
    assert state(victim.pid) == "T"


def test_an_entry_of_another_boot_touches_nobody(victim: subprocess.Popen[bytes]) -> None:
    stop = strategy()
    fault = entry(stop, victim.pid, boot_id="of another boot")
    with pytest.raises(InjectError):
        stop.inject(fault)
    assert stop.verify(fault)


def test_a_process_that_ended_meanwhile_is_undone_and_gone(victim: subprocess.Popen[bytes]) -> None:
    stop = strategy()
    fault = entry(stop, victim.pid)
    stop.inject(fault)
    victim.kill()
    victim.wait()
    stop.undo(fault)
    assert stop.verify(fault)
    assert not stop.evidence(fault).moved


def test_what_must_not_stop_is_refused(victim: subprocess.Popen[bytes]) -> None:
    stop = strategy()
    reasons = {
        "init": stop.check(f"process/{NODE}/1", {}),
        "agent": stop.check(f"process/{NODE}/{os.getpid()}", {}),
        "parent": stop.check(f"process/{NODE}/{os.getppid()}", {}),
        "nobody": stop.check(f"process/{NODE}/{2**22}", {}),
        "not a process": stop.check(f"gpu/{NODE}/0", {}),
        "another node": stop.check(f"process/n2/{victim.pid}", {}),
        "protected": strategy(protected=frozenset({"sleep"})).check(f"process/{NODE}/{victim.pid}", {}),
        "no job": strategy(job_of=lambda _pid: None).check(f"process/{NODE}/{victim.pid}", {}),
        "other job": stop.check(f"process/{NODE}/{victim.pid}", {"job": "bert"}),
    }
    assert [name for name, reason in reasons.items() if reason is None] == []


def test_a_kernel_thread_is_refused(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    fields = ["S", "2", "0", "0", "0", "-1", str(0x00200000 | 0x40), *["0"] * 12, "123", "0"]
    (tmp_path / "77" / "stat").write_text("77 (nvidia-modeset/) " + " ".join(fields))
    assert "kernel thread" in (strategy(procfs=tmp_path).check(f"process/{NODE}/77", {}) or "")


def test_a_process_that_somebody_else_stopped_is_refused(victim: subprocess.Popen[bytes]) -> None:
    os.kill(victim.pid, signal.SIGSTOP)
    while state(victim.pid) != "T":
        time.sleep(0.001)
    assert "stopped" in (strategy().check(f"process/{NODE}/{victim.pid}", {}) or "")


def test_a_child_of_a_jobs_process_belongs_to_the_job() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '300']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        rank = int(launcher.stdout.readline())
        stop = strategy(job_of=lambda pid: "llama" if pid == launcher.pid else None)
        assert stop.check(f"process/{NODE}/{rank}", {"job": "llama"}) is None
        os.kill(rank, signal.SIGKILL)


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\0"), min_size=1, max_size=15))
def test_any_command_name_is_read(tmp_path_factory: pytest.TempPathFactory, comm: str) -> None:
    root = tmp_path_factory.mktemp("proc")
    (root / "5").mkdir()
    fields = ["T", "1", "0", "0", "0", "-1", "0", *["0"] * 12, "4242", "0"]
    (root / "5" / "stat").write_bytes(f"5 ({comm}) ".encode() + " ".join(fields).encode())
    process = read_process(root, 5)
    assert process is not None
    assert (process.comm, process.state, process.start) == (comm, "T", 4242)


@given(st.binary(max_size=200))
def test_no_content_of_stat_raises(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    root = tmp_path_factory.mktemp("proc")
    (root / "5").mkdir()
    (root / "5" / "stat").write_bytes(content)
    read_process(root, 5)
