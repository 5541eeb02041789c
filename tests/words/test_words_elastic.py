# ruff: noqa: E501  (what programs print is as long as it is)
from __future__ import annotations

import pytest
from app_words_kit import events, one, said

from gpuchaos_stream.events.base import Severity


def failed(code: int, local_rank: int, pid: int) -> str:
    return (
        f"E0301 09:00:00.000000 77 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) "
        f"local_rank: {local_rank} (pid: {pid}) of binary: /usr/bin/python3"
    )


def test_the_worker_that_failed_is_named_and_survivors_are_not() -> None:
    found = one(
        "W0301 09:00:00.000000 77 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 501 closing signal SIGTERM",
        failed(-9, 5, 506),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "  exitcode  : -9 (pid: 506)",
        "  exitcode  : -15 (pid: 501)",
    )
    assert found.fault == "worker_failed"
    assert {name: found.evidence[name] for name in ("exitcode", "local_rank", "pid", "cause", "action")} == {
        "exitcode": -9,
        "local_rank": 5,
        "pid": 506,
        "cause": "SIGKILL",
        "action": "look_for_oom_kill",
    }


@pytest.mark.parametrize(
    "text",
    [
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 501 closing signal SIGTERM",
        "W0301 09:00:00 77 torch/distributed/elastic/multiprocessing/api.py:766] Closing process 502 via signal SIGTERM",
        "W0301 09:00:00 77 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers",
        "  traceback : Signal 15 (SIGTERM) received by PID 501",
        "  exitcode  : 1 (pid: 506)",
        "srun: error: node7: tasks 0-7: Terminated",
    ],
)
def test_being_stopped_with_the_others_is_no_failure(text: str) -> None:
    assert events(text) == []


def test_a_worker_that_somebody_stopped_is_a_warning() -> None:
    assert one(failed(-15, 0, 9)).severity is Severity.WARNING
    assert one(failed(1, 0, 9)).severity is Severity.ERROR


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.",
            "oom_kill",
        ),
        ("slurmstepd: error: Detected 2 oom-kill event(s) in step 812.batch cgroup.", "oom_kill"),
        ("srun: error: node7: task 3: Killed", "worker_killed"),
        ("srun: error: node7: task 3: Out Of Memory", "oom_kill"),
        ("srun: error: node7: tasks 0-3,5: Exited with exit code 1", "worker_failed"),
        (
            "mpirun noticed that process rank 3 with PID 4711 on node node7 exited on signal 9 (Killed).",
            "worker_killed",
        ),
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ", "worker_killed"),
        ("RuntimeError: DataLoader worker (pid(s) 4711, 4712) exited unexpectedly", "worker_killed"),
        ("Fatal Python error: Segmentation fault", "app_segfault"),
        ("./run.sh: line 12:  4711 Segmentation fault      (core dumped) python train.py", "app_segfault"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "rendezvous_failed"),
        ("exitcode: 0, all is well", "none"),
        ("see how to debug a Segmentation fault in the manual", "none"),
    ],
)
def test_launchers_and_loaders_are_read(text: str, fault: str) -> None:
    assert said(text) == fault
