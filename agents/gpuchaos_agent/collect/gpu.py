"""GPUs by NVML, in a thread of their own: a call that hangs cannot be cancelled, but must hold up nobody else."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent.collect.base import JobSource, Reading, Sources
from gpuchaos_agent.collect.nvml import NvmlReader
from gpuchaos_stream.events.frame import Kind

#: A reading older than this is not given out any more, seconds: unknown is better than old.
STALE_AFTER_S: Final = 2.5
#: How long the very first `read` waits for the first reading (NVML's start takes some tenths), seconds.
FIRST_WAIT_S: Final = 2.0


def _import_nvml() -> Any:
    return importlib.import_module("pynvml")


class GpuCollector:
    """Asks the thread for a reading and gives out the last one; a thread that hangs is said, not waited for.

    `load` returns the `pynvml` module. `monotonic` is the clock of staleness, seconds.
    """

    name = "gpu"
    kinds: tuple[Kind, ...] = ("gpu",)

    def __init__(
        self,
        sysfs: Path,
        jobs: tuple[JobSource, ...] = (),
        *,
        load: Callable[[], Any] = _import_nvml,
        monotonic: Callable[[], float] = time.monotonic,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        owners = {source.gpu: source.job for source in jobs if source.gpu is not None}
        self._reader = NvmlReader(sysfs, owners, load)
        self._monotonic = monotonic
        self._first_wait = first_wait_s
        self._lock = threading.Lock()
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._closed = False
        self._now = 0.0
        self._asked_at: float | None = None
        self._latest: tuple[float, Reading] | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def from_sources(cls, sources: Sources) -> GpuCollector:
        """The collector of these roots and jobs."""
        return cls(sources.sysfs, sources.jobs)

    def read(self, now: float) -> Reading:
        """The last reading, each handed out once; asks for the next. Waits only the first time, and briefly."""
        first = self._thread is None
        self._ask(now)
        if first:
            self._answered.wait(self._first_wait)
        with self._lock:
            latest, asked_at = self._latest, self._asked_at
            if latest is not None:
                # Facts are said once; the numbers may be given again while they are fresh.
                self._latest = (latest[0], _without_facts(latest[1]))
        if latest is not None and self._monotonic() - latest[0] <= STALE_AFTER_S:
            return latest[1]
        waited = 0.0 if asked_at is None else self._monotonic() - asked_at
        facts = latest[1].facts if latest is not None else ()
        return Reading(absent={"gpu": f"NVML has not answered for {waited:.0f} s"}, facts=facts)

    def close(self) -> None:
        """Tells the thread to end. It is not waited for: it may hang in the driver, and is a daemon."""
        self._closed = True
        self._asked.set()

    def _ask(self, now: float) -> None:
        with self._lock:
            self._now = now
            if self._asked_at is None:
                self._asked_at = self._monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="nvml", daemon=True)
            self._thread.start()
        self._asked.set()

    def _work(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._closed:
                self._reader.close()
                return
            try:
                reading = self._reader.read(self._now)
            except Exception as error:  # noqa: BLE001  (a thread that dies would read as a hang)
                reading = Reading(absent={"gpu": f"NVML reader failed: {type(error).__name__}: {error}"})
            with self._lock:
                kept = self._latest[1].facts if self._latest is not None else ()
                reading = Reading(reading.groups, reading.absent, (*kept, *reading.facts), reading.places, reading.info)
                self._latest = (self._monotonic(), reading)
                self._asked_at = None
            self._answered.set()


def _without_facts(reading: Reading) -> Reading:
    return Reading(reading.groups, reading.absent, (), reading.places, reading.info)
