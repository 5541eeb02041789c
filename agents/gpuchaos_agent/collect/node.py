"""The node as a whole, from procfs: CPU, memory, load, pressure."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuchaos_agent.collect.base import Group, Reading, Sources
from gpuchaos_agent.kernelfs import files, memory
from gpuchaos_stream.events.frame import GroupLayout, Kind

METRICS: Final = (
    "cpu_busy_ratio",
    "memory_available_ratio",
    "load1",
    "pressure_cpu_ratio",
    "pressure_memory_ratio",
    "pressure_io_ratio",
)
_LAYOUT: Final = GroupLayout(kind="node", ids=("0",), metrics=METRICS)


class NodeCollector:
    """Reads `<procfs>/{stat,meminfo,loadavg,pressure/*}`."""

    name = "node"
    kinds: tuple[Kind, ...] = ("node",)
    ORDER = 0

    def __init__(self, procfs: Path) -> None:
        self._root = procfs
        self._cpu: tuple[float, float] | None = None

    @classmethod
    def from_sources(cls, sources: Sources) -> NodeCollector:
        """The collector of these roots."""
        return cls(sources.procfs)

    def read(self, now: float) -> Reading:  # noqa: ARG002  (CPU time is its own clock)
        """One row, id `0`. Pressure is absent where the kernel was built or started without PSI."""
        pressures = [memory.pressure(self._root / "pressure" / what) for what in ("cpu", "memory", "io")]
        row = (self._busy(), memory.available_ratio(self._root), files.number(self._root / "loadavg"), *pressures)
        if all(value is None for value in row):
            return Reading(absent={"node": f"nothing can be read in {self._root}"})
        absent = {} if any(value is not None for value in pressures) else {"node.pressure": "the kernel has no PSI"}
        return Reading(groups=(Group(_LAYOUT, tuple((value,) for value in row)),), absent=absent)

    def close(self) -> None:
        """Nothing is held open."""

    def _busy(self) -> float | None:
        """Share of CPU time that was not idle since the last read (proc(5): fields 4 and 5 are idle, iowait)."""
        line = (files.text(self._root / "stat") or "").partition("\n")[0].split()
        if len(line) < 6 or line[0] != "cpu" or not all(field.isdecimal() for field in line[1:]):
            return None
        times = [float(field) for field in line[1:9]]  # guest time is in user time already
        total, idle = sum(times), times[3] + times[4]
        last, self._cpu = self._cpu, (total, idle)
        if last is None or total <= last[0]:
            return None
        # iowait may go backwards (proc(5)), which must not make more than all or less than nothing.
        return min(1.0, max(0.0, 1.0 - (idle - last[1]) / (total - last[0])))


COLLECTOR = NodeCollector
