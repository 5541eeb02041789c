"""The agent's container without Docker: root with the capabilities of the compose file, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compose_check import project
from lab.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


@pytest.fixture
def bounded() -> list[str]:
    """What starts a program as the container would."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    service = project()["services"]["agent"]
    assert service["cap_drop"] == ["ALL"]
    kept = ",".join(f"+{name.lower()}" for name in service["cap_add"])
    return ["setpriv", "--no-new-privs", f"--bounding-set=-all,{kept}", "--inh-caps=-all"]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process of another user."""
    with subprocess.Popen(["sleep", "300"], user=65534, group=65534, start_new_session=True) as running:
        yield running
        running.kill()


def agent(*words: str) -> list[str]:
    return [sys.executable, "-m", "gpuchaos_agent.agent", *words]


def state_of(process: subprocess.Popen[bytes]) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_another_users_process_is_stopped_and_goes_on(
    bounded: list[str], process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    job = ("--job", f"job=toy,pid={process.pid}", "--node", "n001", "--state-dir", str(tmp_path))
    words = agent("inject", "process-stop", f"process/n001/{process.pid}", "--seconds", "2", *job)
    with subprocess.Popen([*bounded, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        until(lambda: state_of(process) == "T" or running.poll() is not None, 30)
        assert state_of(process) == "T", running.communicate()[0]
        said = running.communicate(timeout=30)[0]
    assert running.returncode == 0, said
    until(lambda: state_of(process) == "S")


def test_where_its_memory_lies_and_the_kernels_log_can_be_read(
    bounded: list[str], process: subprocess.Popen[bytes]
) -> None:
    reading = f"import os; open('/proc/{process.pid}/maps').read(); os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK)"
    done = subprocess.run([*bounded, sys.executable, "-c", reading], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_takes_more_is_refused_in_words(bounded: list[str], tmp_path: Path) -> None:
    words = agent("faults", "--state-dir", str(tmp_path))
    done = subprocess.run([*bounded, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "this agent lacks CAP_NET_ADMIN" in done.stdout
