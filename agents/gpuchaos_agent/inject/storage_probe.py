"""Calls into filesystems that may hang, made by a child that may be given up: `storage_child` does the work.

A child that waits in the kernel for a frozen filesystem or a dead server cannot even be killed. It is left behind,
dies as soon as the kernel lets it go, and is collected by a later call.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject import storage_child
from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.kernelfs.processes import process_stat

#: A call that has not come back after this is hanging; a healthy disk takes a few milliseconds, seconds.
HANGS_S: Final = 0.4
#: How long the program may take to come to its call: it is not the filesystem's doing, seconds.
_START_S: Final = 10.0
#: A killed child that does not hang is gone in less, seconds.
_ENDS_S: Final = 0.05
_OK: Final = "ok"
#: Not yet collected; they end when the kernel lets them.
_left: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class Said:
    """What became of a call: `ok`, the name of an error, or `hangs`; how long it took, seconds; its words.

    `state` is the process state of a child that hangs (`D`: it waits in the kernel).
    """

    outcome: str
    seconds: float
    words: str = ""
    state: str | None = None

    @property
    def ok(self) -> bool:
        """The call was made."""
        return self.outcome == _OK

    @property
    def hangs(self) -> bool:
        """It did not come back in its time."""
        return self.outcome == "hangs"


def run(call: str, *arguments: str, limit_s: float = HANGS_S) -> Said:
    """Makes one call of `storage_child`; returns at the latest `limit_s` seconds after it was begun.

    Raises:
        InjectError: the program could not even begin.
    """
    _collect()
    command = [sys.executable, "-I", "-S", storage_child.__file__, call, *arguments]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None  # noqa: S101  (asked for above)
    output = child.stdout.fileno()
    try:
        lines = _lines(output, 1, _START_S)
        if not lines:
            _give_up(child)
            raise InjectError(f"the program that asks the filesystem did not start within {_START_S:g} s")
        began = time.monotonic()
        lines += _lines(output, 1, limit_s)
        seconds = time.monotonic() - began
        if len(lines) < 2:
            stat = process_stat(Path("/proc"), child.pid)
            _give_up(child)
            return Said("hangs", seconds, state=stat.state if stat is not None else None)
        outcome, _, words = lines[1].partition(" ")
        _give_up(child)
        return Said(outcome, seconds, words)
    finally:
        child.stdout.close()


def _lines(output: int, count: int, within_s: float) -> list[str]:
    """The next lines of a pipe, as many as came in time. The child writes each one whole."""
    deadline, data = time.monotonic() + within_s, b""
    while data.count(b"\n") < count:
        ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
        byte = os.read(output, 1) if ready else b""
        if not byte:
            break
        data += byte
    return data.decode("utf-8", "replace").splitlines()[:count] if b"\n" in data else []


def _give_up(child: subprocess.Popen[bytes]) -> None:
    """Ends it and hardly waits: what hangs in the kernel ends later."""
    child.kill()
    try:
        child.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        _left.append(child)


def settle(wait_s: float = 0.4) -> None:
    """Waits a moment for children that were given up to end, once nothing holds them any more."""
    deadline = time.monotonic() + wait_s
    while _left and time.monotonic() < deadline:
        _collect()
        time.sleep(0.005)


def _collect() -> None:
    _left[:] = [child for child in _left if child.poll() is None]
