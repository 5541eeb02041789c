"""What is read of a GPU through NVML: one line a metric. `pynvml` is passed in, so that nothing imports it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

#: nvml.h `nvmlClocksEventReason…`: HwSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown. Software limits
#: (power cap, idle) are normal and left out.
HW_THROTTLE: Final = 0x8 | 0x40 | 0x80

#: nvml.h NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KiB of payload; scope of all ones asks for the sum of all links.
NVLINK_TX: Final = 138
ALL_LINKS: Final = 0xFFFFFFFF

Read = Callable[[Any, Any], float | None]


@dataclass(frozen=True, slots=True)
class Field:
    """A metric: how it is read of a handle, and whether it is a counter to be made a rate."""

    metric: str
    read: Read
    counter: bool = False


def _utilization(nvml: Any, handle: Any) -> float | None:
    percent = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    # Spikes of 2e3 to 4e9 have been seen; they say nothing.
    return percent / 100.0 if 0 <= percent <= 100 else None


def _throttle(nvml: Any, handle: Any) -> float | None:
    # Renamed in driver 535.
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    ask = ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return float(bool(ask(handle) & HW_THROTTLE))


def _nvlink_tx(nvml: Any, handle: Any) -> float | None:
    value = nvml.nvmlDeviceGetFieldValues(handle, [(NVLINK_TX, ALL_LINKS)])[0]
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return float(value.value.ullVal) * 1024


FIELDS: Final = (
    Field("utilization_ratio", _utilization),
    Field("memory_used_bytes", lambda nvml, h: float(nvml.nvmlDeviceGetMemoryInfo(h).used)),
    Field("memory_total_bytes", lambda nvml, h: float(nvml.nvmlDeviceGetMemoryInfo(h).total)),
    Field("temperature_celsius", lambda nvml, h: float(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU))),
    Field("power_watts", lambda nvml, h: nvml.nvmlDeviceGetPowerUsage(h) / 1000.0),
    Field("sm_clock_hertz", lambda nvml, h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM) * 1e6),
    # Volatile counts: they go back to 0 when the driver loads, which a rate understands.
    Field(
        "ecc_corrected_rate",
        lambda nvml, h: float(
            nvml.nvmlDeviceGetTotalEccErrors(h, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC)
        ),
        counter=True,
    ),
    Field(
        "ecc_uncorrected_rate",
        lambda nvml, h: float(
            nvml.nvmlDeviceGetTotalEccErrors(h, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        ),
        counter=True,
    ),
    Field("pcie_replay_rate", lambda nvml, h: float(nvml.nvmlDeviceGetPcieReplayCounter(h)), counter=True),
    Field("throttle_hw_ratio", _throttle),
    Field("nvlink_tx_bytes_rate", _nvlink_tx, counter=True),
    # The third of corrected, uncorrected, pending, failed.
    Field("remapped_rows_pending", lambda nvml, h: float(nvml.nvmlDeviceGetRemappedRows(h)[2])),
)
