"""The NVLink fabric that a card belongs to: registered or not, healthy or not, and which cluster and clique.

nvml.h `nvmlGpuFabricInfo_v2_t` and `_v3_t` (drivers 545 and 570); older drivers know the first form alone.
"""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from typing import Any, Final

from gpuchaos_agent.nvml import codes

#: NVML_GPU_FABRIC_STATE_…
_NOT_SUPPORTED: Final = 0
_STATES: Final = {1: "not started", 2: "in progress", 3: "completed"}
_COMPLETED: Final = 3
#: NVML_GPU_FABRIC_HEALTH_SUMMARY_…
_SUMMARIES: Final = {2: "unhealthy", 3: "limited capacity"}
#: Shift in `healthMask` → what it says when its two bits are 1 (true).
_TROUBLES: Final = {0: "degraded bandwidth", 2: "route recovery", 4: "route unhealthy", 6: "access timeout recovery"}
#: Four bits: 0 is not supported, 1 none, all else a wrong configuration.
_CONFIGURATION_SHIFT: Final = 8
#: The binding's structures, newest first; None is the call without a version.
_FORMS: Final = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t", None)


@dataclass(frozen=True, slots=True)
class Fabric:
    """`domain` is `cluster UUID.clique`, None where the card is in no fabric that spans nodes."""

    ready: bool
    words: str
    domain: str | None


def read(nvml: Any, handle: Any) -> Fabric | None:
    """The card's fabric, None where it has none.

    Raises:
        NVMLError: the driver knows no form of the call, or refuses.
    """
    info = _ask(nvml, handle)
    state = int(info.state) & 0xFF  # one byte of three that are padding, in the header; four in the binding
    if state == _NOT_SUPPORTED:
        return None
    cluster = bytes(info.clusterUuid)
    domain = f"{uuid.UUID(bytes=cluster)}.{info.cliqueId}" if any(cluster) and state == _COMPLETED else None
    troubles = _troubles(info)
    if state != _COMPLETED:
        troubles.insert(0, _STATES.get(state, f"state {state}"))
    elif info.status:
        troubles.insert(0, f"registration failed ({info.status})")
    return Fabric(not troubles, ", ".join(troubles) or "healthy", domain)


def _troubles(info: Any) -> list[str]:
    mask = int(getattr(info, "healthMask", 0))
    found = [words for shift, words in _TROUBLES.items() if (mask >> shift) & 0x3 == 1]
    configuration = (mask >> _CONFIGURATION_SHIFT) & 0xF
    if configuration > 1:
        found.append(f"wrong configuration ({configuration})")
    summary = _SUMMARIES.get(int(getattr(info, "healthSummary", 0)))
    if summary is not None:
        found.append(summary)
    return found


def _ask(nvml: Any, handle: Any) -> Any:
    for form in _FORMS:
        made = getattr(nvml, form or "c_nvmlGpuFabricInfo_t", None)
        call = getattr(nvml, "nvmlDeviceGetGpuFabricInfoV" if form else "nvmlDeviceGetGpuFabricInfo", None)
        if made is None or call is None:
            continue
        info = made()
        try:
            call(handle, ctypes.byref(info))
        except nvml.NVMLError as error:
            # An older driver knows neither the call nor the newer structure.
            if codes.code_of(error) in {codes.INVALID_ARGUMENT, codes.FUNCTION_NOT_FOUND, 25} and form:
                continue
            raise
        return info
    raise nvml.NVMLError(codes.FUNCTION_NOT_FOUND)
