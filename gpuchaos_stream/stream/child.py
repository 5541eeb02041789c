"""A child process that ends with its parent, logs to a file, and is awaited by what it says."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gpuchaos_stream.errors import UserError

#: Seconds between two looks at a log that is waited for.
_LOOK_S: Final = 0.05
#: Lines of the log that an error quotes.
_TAIL_LINES: Final = 15

# Sets PR_SET_PDEATHSIG (1) and becomes the program. In the child and not by preexec_fn, which may deadlock in a
# parent with threads; the parent may have died before the call, hence the check.
LAUNCHER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Child:
    """One process in a group of its own. Start it from the main thread: it dies with the thread that did."""

    def __init__(self, name: str, argv: Sequence[str], *, log_file: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.log_file = log_file
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._seen = 0

    @property
    def pid(self) -> int:
        """Process id; raises where it was never started."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it lives (a paused one does)."""
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> Child:
        """Starts it; what it says is appended to `log_file`."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._seen = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )
        return self

    def wait_for(self, text: str, timeout_s: float = 60.0) -> Child:
        """Returns when it has said `text` since its start.

        Raises:
            UserError: it ended first, or did not say it in time; with the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        while text not in self.said():
            if not self.running:
                raise UserError(self.name, f"ended with status {self.status}", self.tail())
            if time.monotonic() > deadline:
                raise UserError(self.name, f"did not say {text!r} in {timeout_s:.0f} s", self.tail())
            time.sleep(_LOOK_S)
        return self

    def said(self) -> str:
        """What it has said since its last start."""
        with self.log_file.open("rb") as log:
            log.seek(self._seen)
            return log.read().decode("utf-8", "replace")

    def tail(self) -> str:
        """The last lines that it said, for an error."""
        return "it said:\n" + "\n".join(self.said().splitlines()[-_TAIL_LINES:] or ["nothing"])

    def kill(self) -> None:
        """Ends it as a power cut would (SIGKILL)."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def pause(self) -> None:
        """Stops it where it stands (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it run again after `pause`."""
        self._signal(signal.SIGCONT)

    def stop(self, timeout_s: float = 10.0) -> int | None:
        """Ends it in order (SIGTERM), by force after `timeout_s`. Returns its exit status."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.status

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
