"""NVML in this process: started and shut down as often, and never shut down while a thread is inside a call.

In real drivers some calls take a lock of the whole driver: a card that hangs in one of those holds up the others in
the driver itself, and no thread of ours can help that. It is said of each card then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from gpuchaos_agent.nvml import codes

#: How long a restart waits for the calls under way, seconds. The event wait comes back within half a second.
PATIENCE_S: Final = 2.0


class Session:
    """Holds the binding. `generation` counts the starts: handles of another one are stale.

    While `closing`, whoever is inside for long must leave.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self.nvml: Any = None
        self.generation = 0
        self.running = False
        self.reason = "NVML was not started yet"
        self._load = load
        self._opened = 0
        self._inside = 0
        self.closing = False
        self._changed = threading.Condition()

    def start(self) -> int | None:
        """Starts the library: None, or NVML's error (0 where there is no binding); `reason` says it in words."""
        try:
            self.nvml = self.nvml or self._load()
        except ImportError:
            self.reason = "the Python package nvidia-ml-py is not installed"
            return 0
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError as error:
            code = codes.code_of(error)
            self.reason = codes.NO_START.get(code, f"NVML did not start: {_words(error)} ({code})")
            return code
        self._opened += 1
        self.generation += 1
        self.running = True
        self.reason = ""
        return None

    @contextmanager
    def use(self, generation: int) -> Iterator[Any]:
        """The binding for some calls.

        Raises:
            NotRunningError: it does not run, or was started anew since `generation`.
        """
        with self._changed:
            if not self.running or self.closing or generation != self.generation:
                raise codes.NotRunningError
            self._inside += 1
        try:
            yield self.nvml
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def stop(self, patience_s: float = PATIENCE_S) -> bool:
        """Shuts down, as often as it was started. False if a call is still under way: then nothing is done."""
        until = time.monotonic() + patience_s
        with self._changed:
            self.closing = True
            while self._inside and time.monotonic() < until:
                self._changed.wait(max(0.0, until - time.monotonic()))
            self.closing = False
            if self._inside:
                return False
            self.running = False
        while self._opened:
            self._opened -= 1
            try:
                self.nvml.nvmlShutdown()
            except self.nvml.NVMLError:  # it is down already
                continue
        return True

    def abandon(self, reason: str) -> None:
        """Gives the library up without shutting it down, because a call hangs in it."""
        with self._changed:
            self.running = False
            self.reason = reason


def _words(error: Exception) -> str:
    try:
        return str(error)
    except (UnicodeDecodeError, AttributeError):
        return type(error).__name__
