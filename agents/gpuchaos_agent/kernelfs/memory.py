"""Memory of the whole node and how long tasks waited: `/proc/meminfo`, and the pressure files of PSI."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gpuchaos_agent.kernelfs import files

_MEMORY: Final = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB", re.MULTILINE)
_SOME: Final = re.compile(r"^some avg10=(\d{1,3}\.\d{1,4})", re.MULTILINE)


def available_ratio(procfs: Path) -> float | None:
    """MemAvailable / MemTotal (proc_meminfo(5), MemAvailable since Linux 3.14)."""
    found = dict(_MEMORY.findall(files.text(procfs / "meminfo") or ""))
    total = float(found.get("MemTotal", 0))
    return float(found["MemAvailable"]) / total if total > 0 and "MemAvailable" in found else None


def pressure(path: Path) -> float | None:
    """Share of the last ten seconds in which some task waited: `some avg10` of a pressure file, 0 to 1.

    None where the file is absent (no PSI in the kernel, `psi=0`, `cgroup.pressure` 0) or says something else.
    """
    some = _SOME.search(files.text(path) or "")
    return float(some[1]) / 100.0 if some else None
