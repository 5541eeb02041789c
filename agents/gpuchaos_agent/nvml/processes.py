"""Processes that compute on a card. What the driver says of them is checked before it is believed.

Driver 535 changed the structure behind `…RunningProcesses_v3` without another version: from the second process on,
pid and memory are in each other's place. A pid cannot be that large, nor memory larger than the card's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent.kernelfs import cgroups
from gpuchaos_agent.nvml import codes

#: PID_MAX_LIMIT of 64-bit kernels (include/linux/threads.h).
_PIDS: Final = 1 << 22
#: How many are named at most; all are counted.
MOST: Final = 64


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """One process. `seen` is false where procfs does not show it: it is in another pid namespace than the agent."""

    pid: int
    memory: int | None
    seen: bool
    container: str


@dataclass(frozen=True, slots=True)
class GpuProcesses:
    """`garbled` counts the entries that cannot be true."""

    found: tuple[GpuProcess, ...]
    garbled: int


def read(nvml: Any, handle: Any, procfs: Path, memory_total: float | None) -> GpuProcesses:
    """The card's compute processes. Raises NVMLError, or what the binding raises for an old driver."""
    found: list[GpuProcess] = []
    garbled = 0
    for entry in _listed(nvml, handle):
        pid, memory = int(entry.pid), entry.usedGpuMemory
        if not 0 < pid < _PIDS or (memory is not None and memory_total is not None and memory > memory_total):
            garbled += 1
            continue
        container = cgroups.membership(procfs, pid).container.id if len(found) < MOST else ""
        found.append(GpuProcess(pid, memory, (procfs / str(pid)).is_dir(), container))
    return GpuProcesses(tuple(found), garbled)


def _listed(nvml: Any, handle: Any) -> list[Any]:
    try:
        return list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except codes.failures(nvml) as error:
        older = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v2", None)
        if codes.code_of(error) != codes.FUNCTION_NOT_FOUND or older is None:
            raise
        return list(older(handle))
