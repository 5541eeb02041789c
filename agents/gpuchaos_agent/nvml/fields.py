"""What is read of a GPU through NVML: one line a call. `pynvml` is passed in, so that nothing imports it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

#: nvml.h `nvmlClocksEventReason…`: HwSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown.
HW_THROTTLE: Final = 0x8 | 0x40 | 0x80
#: SwPowerCap, SwThermalSlowdown. Idle, application clocks and boost groups are wishes, not limits.
SW_THROTTLE: Final = 0x4 | 0x20
#: As a scope of a field: the sum of all NVLinks.
ALL_LINKS: Final = 0xFFFFFFFF

Numbers = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call that fills `metrics`. `most` is the largest value that can be, in the metrics' units: drivers give
    4294967295 and the like for "unknown". `slow` ones are asked every few seconds.
    """

    metrics: tuple[str, ...]
    read: Callable[[Any, Any], Numbers]
    most: float
    counter: bool = False
    slow: bool = False


@dataclass(frozen=True, slots=True)
class FieldValue:
    """One field of `nvmlDeviceGetFieldValues`: its number in nvml.h, and what to multiply it with."""

    metric: str
    field: int
    scope: int = 0
    scale: float = 1.0
    most: float = 2.0**63
    counter: bool = False


def _utilization(nvml: Any, handle: Any) -> Numbers:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu / 100.0, rates.memory / 100.0


def _memory(nvml: Any, handle: Any) -> Numbers:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return float(memory.used) if memory.used <= memory.total else None, float(memory.total)


def _throttle(nvml: Any, handle: Any) -> Numbers:
    # Renamed in driver 535.
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    ask = ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    reasons = ask(handle)
    return float(bool(reasons & HW_THROTTLE)), float(bool(reasons & SW_THROTTLE))


def _width(nvml: Any, handle: Any) -> Numbers:
    most = nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)
    return (nvml.nvmlDeviceGetCurrPcieLinkWidth(handle) / most if most else None,)


def _remapped(nvml: Any, handle: Any) -> Numbers:
    _, _, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return float(pending), float(failed)


def _ecc(kind: str) -> Callable[[Any, Any], Numbers]:
    def read(nvml: Any, handle: Any) -> Numbers:
        # Volatile counts: they go back to 0 when the driver loads, which a rate understands.
        name = f"NVML_MEMORY_ERROR_TYPE_{kind}"
        return (float(nvml.nvmlDeviceGetTotalEccErrors(handle, getattr(nvml, name), nvml.NVML_VOLATILE_ECC)),)

    return read


CALLS: Final = (
    Call(("utilization_ratio", "memory_busy_ratio"), _utilization, most=1.0),
    Call(("memory_used_bytes", "memory_total_bytes"), _memory, most=2.0**50),
    Call(
        ("temperature_celsius",),
        lambda nvml, h: (float(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),),
        most=200.0,
    ),
    Call(("power_watts",), lambda nvml, h: (nvml.nvmlDeviceGetPowerUsage(h) / 1000.0,), most=1e5),
    Call(
        ("power_limit_watts",), lambda nvml, h: (nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000.0,), most=1e5, slow=True
    ),
    Call(("sm_clock_hertz",), lambda nvml, h: (nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM) * 1e6,), most=1e11),
    Call(
        ("memory_clock_hertz",),
        lambda nvml, h: (nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM) * 1e6,),
        most=1e11,
    ),
    Call(("throttle_hw_ratio", "throttle_sw_ratio"), _throttle, most=1.0),
    Call(("ecc_corrected_rate",), _ecc("CORRECTED"), most=2.0**62, counter=True),
    Call(("ecc_uncorrected_rate",), _ecc("UNCORRECTED"), most=2.0**62, counter=True),
    Call(
        ("pcie_replay_rate",),
        lambda nvml, h: (float(nvml.nvmlDeviceGetPcieReplayCounter(h)),),
        most=2.0**32 - 2,
        counter=True,
    ),
    Call(
        ("pcie_generation",),
        lambda nvml, h: (float(nvml.nvmlDeviceGetCurrPcieLinkGeneration(h)),),
        most=16.0,
        slow=True,
    ),
    Call(("pcie_width_ratio",), _width, most=1.0, slow=True),
    Call(("remapped_rows_pending", "remapped_rows_failed"), _remapped, most=2.0**31),
)

#: nvml.h `NVML_FI_DEV_…`: MEMORY_TEMP, NVLINK_THROUGHPUT_DATA_TX and RX (KiB of payload), GET_GPU_RECOVERY_ACTION.
VALUES: Final = (
    FieldValue("memory_temperature_celsius", 82, most=200.0),
    FieldValue("nvlink_tx_bytes_rate", 138, ALL_LINKS, scale=1024.0, counter=True),
    FieldValue("nvlink_rx_bytes_rate", 139, ALL_LINKS, scale=1024.0, counter=True),
    FieldValue("recovery_action", 230, most=255.0),
)

#: RETIRED_SBE, RETIRED_DBE, RETIRED_PENDING: pages retired before Ampere; asked with the slow ones.
RETIRED_SBE: Final = 29
RETIRED_DBE: Final = 30
RETIRED_PENDING: Final = 31

#: The columns of the group `gpu`, in order; the last three are made by `reader.py`.
METRICS: Final = (
    *(metric for call in CALLS for metric in call.metrics),
    *(value.metric for value in VALUES),
    "retired_pages",
    "fabric_ready",
    "processes",
)
