"""The fake NVML library: built from `fake_nvml.c`, scripted by a file, loaded by the real binding.

For a benchmark or a demonstration: `build(folder)` makes `libnvidia-ml.so.1`, `write(script, healthy(8))` a world of
eight healthy cards; a process with `LD_LIBRARY_PATH=folder`, `FAKE_NVML_SCRIPT=script` (and
`FAKE_NVML_RECHECK_MS=1000`,
so that the file is not looked at in every call) then has eight GPUs.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from gpuchaos_agent.collect.base import Fact, Reading
from gpuchaos_agent.collect.gpu import GpuCollector

SOURCE = Path(__file__).with_name("fake_nvml.c")
SONAME = "libnvidia-ml.so.1"
#: No test waits for longer than this for what a thread does, seconds.
DEADLINE_S = 20.0


def build(folder: Path) -> Path:
    """Compiles the library into `folder`; its path. Needs gcc."""
    library = folder / SONAME
    compiler = shutil.which("gcc") or "gcc"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-Wl,-soname,{SONAME}"]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE), "-lpthread"], check=True, capture_output=True)
    return library


def uuid(card: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{card:012d}"


def healthy(cards: int = 8, links: int = 18) -> list[str]:
    """A node of healthy cards of the Hopper kind, busy, with NVLinks through switches and a fabric."""
    lines = ["driver ok", f"cards {cards}"]
    for card in range(cards):
        lines += [
            f"set {card} uuid {uuid(card)}",
            f"set {card} name NVIDIA Pretend 80GB",
            f"set {card} pci 00000000:{0x1A + card:02X}:00.0",
        ]
    values = {
        "utilization": 97,
        "utilization.memory": 41,
        "memory.total": 80 << 30,
        "memory.used": 61 << 30,
        "temperature": 52,
        "power": 655_000,
        "limit": 700_000,
        "clock.sm": 1755,
        "clock.memory": 2619,
        "reasons": "0x0",
        "ecc.0.0": 0,
        "ecc.0.1": 0,
        "ecc.1.0": 0,
        "ecc.1.1": 0,
        "replay": 0,
        "pcie.gen": 5,
        "pcie.width": 16,
        "pcie.most": 16,
        "remapped": "0 0 0 0",
        "links": links,
        "mig": 0,
        "events": "0xfe0b",
        "fabric.state": 3,
        "fabric.summary": 1,
    }
    lines += [f"set * {key} {value}" for key, value in values.items()]
    lines += ["field * 82 - 60", "field * 138 - 1000", "field * 139 - 2000", "field * 230 - 0", f"field * 91 - {links}"]
    for number in (165, 161, 162, 163):
        lines.append(f"field * {number} - {1 if number == 165 else 0}")
    return lines


def write(script: Path, lines: list[str]) -> None:
    """Puts the world in place at once: a reader sees the old one or the new one."""
    fresh = script.with_suffix(".new")
    fresh.write_text("\n".join(lines) + "\n")
    fresh.replace(script)


class Fake:
    """A scripted world, and what the library saw of its callers."""

    def __init__(self, library: ctypes.CDLL, script: Path) -> None:
        self._lib = library
        library.fake_nvml_calls.restype = ctypes.c_ulonglong
        library.fake_nvml_events_done.restype = ctypes.c_ulonglong
        self.script = script
        self.base = healthy(2)
        self.world()

    def world(self, *more: str) -> None:
        """The base world with these lines after it; later lines win."""
        write(self.script, [*self.base, *more])

    def calls(self, name: str, card: int = -1) -> int:
        return int(self._lib.fake_nvml_calls(name.encode(), card))

    @property
    def open(self) -> int:
        """How often the library was started and not yet shut down."""
        return int(self._lib.fake_nvml_open())

    @property
    def inits(self) -> int:
        return int(self._lib.fake_nvml_inits())

    @property
    def events_done(self) -> int:
        return int(self._lib.fake_nvml_events_done())


class Ticks:
    """Drives a collector through ticks of a second that take no second: the clock is ours, the threads are real."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.now = 1000.0
        options.setdefault("procfs", Path("/proc"))
        self.collector = GpuCollector(
            root, load=_binding, monotonic=lambda: self.now, first_wait_s=1.0, wait_s=0.3, **options
        )
        self.collector._fleet.events.retry_s = 0.02
        self.collector._fleet.events.wait_ms = 20
        self.facts: list[Fact] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.collector.close()

    def tick(self, seconds: float = 1.0) -> Reading:
        self.now += seconds
        reading = self.collector.read(self.now)
        self.facts += reading.facts
        return reading

    def until(self, true: Callable[[Reading], Any], seconds: float = 1.0) -> Reading:
        """Ticks until it is true of a reading."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            reading = self.tick(seconds)
            if true(reading):
                return reading
        raise AssertionError(f"not within {DEADLINE_S} s: {reading.absent} {[fact.fault for fact in self.facts]}")

    def heard(self, cards: int) -> bool:
        """Waits until the events of so many cards are listened to."""
        self.tick()
        return settled(lambda: len(self.collector._fleet.events.listening) == cards)

    def told(self, *, cleared: bool = False) -> list[str]:
        return [fact.fault for fact in self.facts if bool(fact.evidence.get("cleared")) == cleared]


def column(reading: Reading, metric: str, kind: str = "gpu") -> tuple[float | None, ...]:
    (group,) = (group for group in reading.groups if group.layout.kind == kind)
    return group.columns[group.layout.metrics.index(metric)]


def _binding() -> Any:
    import pynvml

    return pynvml


def settled(work: Callable[[], Any]) -> bool:
    """Waits for a thread's effect, bounded."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if work():
            return True
        os.sched_yield()
    return False
