"""A run of the example workload: real processes, at a pace for tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import registry

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"
PACE: Final = ("--pause", "0.02", "--checkpoint-every", "10", "--relink-every", "15", "--watchdog", "3")
#: Longest that anything here may take, seconds.
PATIENCE: Final = 60.0


class Run:
    """One `python -m workload run` in a folder; `stop` ends it cleanly, `end` in any way."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workload", "run", "--folder", str(folder), *PACE, *words],
            env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
            stdout=subprocess.DEVNULL,
        )

    def status(self) -> dict[str, Any]:
        """What `status` says."""
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / "state.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        done = subprocess.run(
            [sys.executable, "-m", "workload", "status", str(self.folder), "-o", "json"],
            env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
            capture_output=True,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def state(self) -> dict[str, Any]:
        """What the launcher wrote of itself."""
        return read(self.folder / "state.json")

    def beat(self, rank: int) -> dict[str, Any]:
        """Heartbeat of a rank."""
        return read(self.folder / "heartbeat" / f"rank{rank}.json")

    def step(self) -> int:
        """Finished steps of rank 0 in this attempt."""
        return int(self.beat(0).get("step", 0))

    def pid(self, rank: int) -> int:
        """Process of a rank."""
        return int(self.state()["ranks"][rank]["pid"])

    def log(self) -> str:
        """All that was logged."""
        path = self.folder / "train.log"
        return path.read_text() if path.exists() else ""

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Waits until something holds."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"{what} did not happen; the log's end:\n{self.log()[-3000:]}"
            assert self.process.poll() is None, f"the launcher ended:\n{self.log()[-3000:]}"
            time.sleep(0.02)

    def until_step(self, step: int) -> None:
        """Waits for a step of rank 0."""
        self.until(lambda: self.step() >= step, f"step {step}")

    def until_more(self, steps: int = 20) -> None:
        """Waits until training goes on from here."""
        now = self.step()
        self.until(lambda: self.step() >= now + steps, f"{steps} more steps after {now}")

    def until_said(self, text: str) -> None:
        """Waits for words in the log."""
        self.until(lambda: text in self.log(), repr(text))

    def stop(self) -> int:
        """Ends it as an operator does; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        """Ends it whatever state it is in; the ranks end with their launcher."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


#: What the fixture `start` gives.
Start = Callable[..., Run]


def read(path: Path) -> dict[str, Any]:
    """A JSON file that is replaced whole; empty while it is not there."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def faults(log: str) -> set[str]:
    """The faults that the agent's words understand in a log."""
    found = (registry.read(LogRecord(line, writer=Writer.PROGRAM)) for line in log.splitlines())
    return {each.fault for each in found if each is not None}


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
