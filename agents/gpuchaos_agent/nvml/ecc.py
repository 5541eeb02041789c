"""Where uncorrectable and corrected memory errors happened: asked when a total moves, because it costs many calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from gpuchaos_agent.nvml.asking import Asking

#: nvml.h `nvmlMemoryLocation_t`; DRAM is DEVICE_MEMORY under its old name.
PLACES: Final = {
    0: "l1_cache",
    1: "l2_cache",
    2: "dram",
    3: "register_file",
    4: "texture_memory",
    5: "texture_shared_memory",
    6: "cbu",
    7: "sram",
}
#: nvml.h `nvmlMemoryErrorType_t` and `nvmlEccCounterType_t`.
CORRECTED: Final = 0
UNCORRECTED: Final = 1
VOLATILE: Final = 0
AGGREGATE: Final = 1


@dataclass(frozen=True, slots=True)
class Moved:
    """What one look found: the places that counted up and by how much together, and the count over all boots."""

    places: tuple[str, ...]
    count: int
    aggregate: int | None


class EccPlaces:
    """Volatile counts of one kind of error by place, of one card."""

    def __init__(self, kind: int) -> None:
        self._kind = kind
        self._last: dict[int, int] = {}
        self._total: int | None = None

    def look(self, nvml: Any, handle: Any, asking: Asking, total: float | None) -> Moved | None:
        """Where errors came since the last look, by the volatile `total`; None while it has not grown.

        The first look finds all since the driver was loaded. A total that became smaller is a reload of the
        driver: what is there then counts from 0. Raises as `Asking.ask` does.
        """
        if total is None:
            return None
        before, self._total = self._total, int(total)
        if before is not None and total < before:
            before, self._last = 0, {}
        if int(total) <= (before or 0):
            if before is None:
                self._last = {}
            return None
        moved = []
        for place, name in PLACES.items():
            value = asking.ask(f"ecc.{self._kind}.{name}", lambda place=place: self._ask(nvml, handle, VOLATILE, place))  # type: ignore[misc]
            if value is None:
                continue
            if value > self._last.get(place, 0):
                moved.append(name)
            self._last[place] = value
        aggregate = asking.ask(f"ecc.{self._kind}.aggregate", lambda: self._all(nvml, handle))
        return Moved(tuple(moved), int(total) - (before or 0), aggregate)

    def _ask(self, nvml: Any, handle: Any, counter: int, place: int) -> int:
        return int(nvml.nvmlDeviceGetMemoryErrorCounter(handle, self._kind, counter, place))

    def _all(self, nvml: Any, handle: Any) -> int:
        return int(nvml.nvmlDeviceGetTotalEccErrors(handle, self._kind, AGGREGATE))
