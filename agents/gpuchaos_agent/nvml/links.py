"""NVLinks of one card: state and errors of each, by whichever of NVML's ways this card and driver know.

Ways differ between generations (nvml.h, its change log for 570): per-link fields since R515, error counters by call
before; Blackwell dropped the DL error fields and the call for counts of recoveries and errors after correction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from gpuchaos_agent.nvml import codes, values
from gpuchaos_agent.nvml.asking import Asking

METRICS: Final = ("link_active", "replay_rate", "recovery_rate", "crc_error_rate")

#: nvml.h: NVLINK_LINK_COUNT, and how many links there can be; 18 and up are INVALID_ARGUMENT on most cards.
_LINK_COUNT: Final = 91
_MOST: Final = 36
#: NVML_NVLINK_STATE_ACTIVE and SLEEP: a link that saves power is up. ACTIVE_TRAFFIC_DISABLED is not.
_UP: Final = frozenset({1.0, 2.0})
#: Metric → fields that say it, best first. State: NVLINK_GET_STATE. Then NVLINK_ERROR_DL_REPLAY; DL_RECOVERY, or
#: COUNT_LINK_RECOVERY_EVENTS; DL_CRC, or COUNT_EFFECTIVE_ERRORS (what is left after forward correction).
_FIELDS: Final[dict[str, tuple[int, ...]]] = {
    "link_active": (165,),
    "replay_rate": (161,),
    "recovery_rate": (162, 215),
    "crc_error_rate": (163, 219),
}
#: Metric → counters of `nvmlDeviceGetNvLinkErrorCounter`, added up: REPLAY; RECOVERY; CRC_FLIT and CRC_DATA.
_COUNTERS: Final[dict[str, tuple[int, ...]]] = {"replay_rate": (0,), "recovery_rate": (1,), "crc_error_rate": (2, 3)}


@dataclass(frozen=True, slots=True)
class Link:
    """One link's readings in this tick: `active` 1 or 0, the others counts; None where it could not be read."""

    number: int
    active: float | None
    counts: tuple[float | None, ...]


class Links:
    """Finds the links once, then reads them all by one call where it can."""

    def __init__(self) -> None:
        self._numbers: tuple[int, ...] | None = None
        self._fields: dict[str, int] = {}

    def forget(self) -> None:
        """Looks for the links again at the next reading."""
        self._numbers = None

    def read(self, nvml: Any, handle: Any, asking: Asking) -> tuple[Link, ...]:
        """All links; none where the card has no NVLink. Raises as `Asking.ask` does."""
        numbers = self._numbers if self._numbers is not None else self._find(nvml, handle, asking)
        keys = [(number, metric) for number in numbers for metric in self._fields]
        found = dict(zip(keys, self._ask(nvml, handle, asking, keys), strict=True))
        return tuple(self._link(nvml, handle, asking, number, found) for number in numbers)

    def _ask(self, nvml: Any, handle: Any, asking: Asking, keys: list[tuple[int, str]]) -> list[float | None]:
        """One value a link and metric. A link that is down may lack what its neighbours have."""
        if not keys:
            return []
        wanted = [(self._fields[metric], number) for number, metric in keys]
        answers = asking.ask("nvlink", lambda: values.ask(nvml, handle, wanted)) or [(0, None)] * len(wanted)
        for (number, metric), (code, _) in zip(keys, answers, strict=True):
            if code and code not in codes.UNSUPPORTED:
                asking.failed(f"nvlink.{number}.{metric}", code)
        return [value for _, value in answers]

    def _find(self, nvml: Any, handle: Any, asking: Asking) -> tuple[int, ...]:
        """The links there are, and which fields any of them knows."""
        numbers = self._present(nvml, handle, asking)
        wanted = [(m, field, n) for n in numbers for m, fields in _FIELDS.items() for field in fields]
        answers = asking.ask("nvlink", lambda: values.ask(nvml, handle, [(f, n) for _, f, n in wanted])) or []
        known = {field for (_, field, _), (code, _) in zip(wanted, answers, strict=False) if code == 0}
        best = {metric: next((f for f in fields if f in known), None) for metric, fields in _FIELDS.items()}
        self._fields = {metric: field for metric, field in best.items() if field is not None}
        self._numbers = numbers
        return numbers

    def _present(self, nvml: Any, handle: Any, asking: Asking) -> tuple[int, ...]:
        counted = asking.ask("nvlink.count", lambda: values.ask(nvml, handle, [(_LINK_COUNT, 0)]))
        if counted and counted[0][0] == 0 and counted[0][1] is not None:
            return tuple(range(min(int(counted[0][1]), _MOST)))
        present = []
        for number in range(_MOST):
            state, beyond = self._state(nvml, handle, asking, number)
            if beyond:
                break
            if state is not None:
                present.append(number)
        return tuple(present)

    @staticmethod
    def _state(nvml: Any, handle: Any, asking: Asking, number: int) -> tuple[float | None, bool]:
        """The state by the old call, and whether there is no such link nor a later one."""
        beyond = False

        def ask() -> float | None:
            nonlocal beyond
            try:
                return float(nvml.nvmlDeviceGetNvLinkState(handle, number))
            except nvml.NVMLError as error:
                code = codes.code_of(error)
                beyond = code in {codes.INVALID_ARGUMENT, codes.FUNCTION_NOT_FOUND}
                beyond = beyond or (number == 0 and code == codes.NOT_SUPPORTED)
                if beyond or code == codes.NOT_SUPPORTED:
                    return None
                raise

        return asking.ask(f"nvlink.{number}.state", ask), beyond

    def _link(
        self, nvml: Any, handle: Any, asking: Asking, number: int, found: dict[tuple[int, str], float | None]
    ) -> Link:
        if "link_active" in self._fields:
            state = found.get((number, "link_active"))
        else:
            state, _ = self._state(nvml, handle, asking, number)
        counts = []
        for metric in METRICS[1:]:
            if metric in self._fields:
                counts.append(found.get((number, metric)))
                continue
            parts = [
                asking.ask(
                    f"nvlink.{number}.{metric}.{counter}",
                    lambda counter=counter: float(nvml.nvmlDeviceGetNvLinkErrorCounter(handle, number, counter)),  # type: ignore[misc]
                )
                for counter in _COUNTERS[metric]
            ]
            known = [part for part in parts if part is not None]
            counts.append(sum(known) if known else None)
        return Link(number, None if state is None else float(state in _UP), tuple(counts))
