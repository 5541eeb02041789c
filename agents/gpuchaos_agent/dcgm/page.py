"""The text of a DCGM exporter page as cards with numbers, in our names and base units.

Traps (field names and units: dcgm_fields.h and the exporter's default counters, DCGM 3.3 to 4.5):

- A blank is a number: fields of 32 and 64 bits, floats and strings each have four (blank, not found, not supported,
  not permitted), and as float64 the four of 64 bits are all 2**63. They are left out before anything is scaled.
- From DCGM 4.5 on a value that was never set has no series at all, where 0 stood before: a series that is missing
  says nothing, not "fault" and not "well".
- DCGM_FI_DEV_XID_ERRORS is the last Xid ever, never cleared, and a later 45 hides the 62 that caused it.
- DCGM_EXP_XID_ERRORS_COUNT counts in a window that slides, so that it falls; releases of 2023 print it as
  DCGM_FI_DEV_XID_ERRORS_ACTIVE.
- CLOCK_THROTTLE_REASONS became CLOCKS_EVENT_REASONS with driver 535.
- A card that is divided (MIG) has no GPU_UTIL; values of the card are repeated in each instance's series.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpuchaos_agent.kernelfs import pci

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

#: dcgm_fields.h: DCGM_INT32_BLANK, DCGM_INT64_BLANK, DCGM_FP64_BLANK and the three above each.
_BLANK32: Final = range(0x7FFFFFF0, 0x7FFFFFF4)
_BLANK64: Final = 0x7FFFFFFFFFFFFFF0
_BLANK_FLOAT: Final = 2.0**47

#: nvml.h `nvmlClocksEventReason…`: bit → name.
REASONS: Final[dict[int, str]] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
#: The hardware's own: slowdown, heat, power brake.
HARDWARE: Final = 0x8 | 0x40 | 0x80


def _share(percent: float) -> float | None:
    """Percent as a share. Points of 2e3 to 4e9 occur between good ones; they say nothing."""
    return percent / 100.0 if 0.0 <= percent <= 100.0 else None


def _flag(bits: float) -> float | None:
    return float(bool(int(bits) & HARDWARE)) if bits >= 0 else None


@dataclass(frozen=True, slots=True)
class Named:
    """One series of the page: our metric, and how its number becomes base units. `counter` makes it a rate."""

    metric: str
    convert: Callable[[float], float | None]
    counter: bool = False


def _times(factor: float) -> Callable[[float], float | None]:
    return lambda value: value * factor


SERIES: Final[dict[str, Named]] = {
    "DCGM_FI_DEV_GPU_UTIL": Named("utilization_ratio", _share),
    "DCGM_FI_DEV_MEM_COPY_UTIL": Named("memory_busy_ratio", _share),
    "DCGM_FI_DEV_FB_USED": Named("memory_used_bytes", _times(2.0**20)),
    "DCGM_FI_DEV_GPU_TEMP": Named("temperature_celsius", _times(1.0)),
    "DCGM_FI_DEV_MEMORY_TEMP": Named("memory_temperature_celsius", _times(1.0)),
    "DCGM_FI_DEV_POWER_USAGE": Named("power_watts", _times(1.0)),
    "DCGM_FI_DEV_SM_CLOCK": Named("sm_clock_hertz", _times(1e6)),
    "DCGM_FI_DEV_MEM_CLOCK": Named("memory_clock_hertz", _times(1e6)),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": Named("pcie_replay_rate", _times(1.0), counter=True),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": Named("ecc_corrected_rate", _times(1.0), counter=True),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": Named("ecc_uncorrected_rate", _times(1.0), counter=True),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": Named("remapped_rows_pending", _times(1.0)),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": Named("remapped_rows_failed", _times(1.0)),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": Named("throttle_hw_ratio", _flag),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": Named("throttle_hw_ratio", _flag),
}
#: Series whose number is a bit mask of `REASONS`.
REASON_SERIES: Final = ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
#: The last Xid, and how often one came within the window, under its names of all releases.
LAST_XID: Final = "DCGM_FI_DEV_XID_ERRORS"
XID_COUNTS: Final = ("DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_XID_ERRORS_COUNT", "DCGM_FI_DEV_XID_ERRORS_ACTIVE")


@dataclass(slots=True)
class Card:
    """What the page says of one card, or of one instance of it. `values` are in base units, counters as they are."""

    gpu: str
    uuid: str = ""
    pci: str = ""
    instance: str = ""
    profile: str = ""
    values: dict[str, float] = field(default_factory=dict)
    last_xid: int | None = None
    #: Xid → count within `window_ms`.
    xids: dict[int, int] = field(default_factory=dict)
    window_ms: int | None = None
    reasons: tuple[str, ...] = ()
    dropped: int = 0


def blank(value: float) -> bool:
    """Whether a number stands for "no value"."""
    if not math.isfinite(value) or value >= _BLANK64:
        return True
    return (float(value).is_integer() and int(value) in _BLANK32) or _BLANK_FLOAT <= value < _BLANK_FLOAT + 4


def parse(text: str) -> tuple[Card, ...]:
    """The cards of a page, in its order. A series that belongs to no card belongs to the one named "".

    Raises:
        ValueError: it is no page of Prometheus' text format.
    """
    # Imported here: it brings a web server along, which `read` of anything else has no need of.
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    cards: dict[tuple[str, str], Card] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("DCGM_"):
                _take(cards, sample)
    return tuple(cards.values())


def names(mask: int) -> tuple[str, ...]:
    """The reasons in a mask of clock event reasons."""
    return tuple(name for bit, name in REASONS.items() if mask & bit)


def _take(cards: dict[tuple[str, str], Card], sample: Sample) -> None:
    labels = sample.labels
    key = (labels.get("gpu", ""), labels.get("GPU_I_ID", ""))
    card = cards.get(key)
    if card is None:
        card = cards[key] = Card(
            gpu=key[0],
            uuid=labels.get("UUID", ""),
            pci=pci.normal(labels["pci_bus_id"]) if labels.get("pci_bus_id") else "",
            instance=key[1],
            profile=labels.get("GPU_I_PROFILE", ""),
        )
    if blank(sample.value):
        return
    if sample.name in REASON_SERIES:
        card.reasons = names(int(sample.value)) if 0 <= sample.value < 1 << 32 else ()
    if sample.name == LAST_XID:
        card.last_xid = int(sample.value)
    elif sample.name in XID_COUNTS:
        _count(card, sample)
    elif (named := SERIES.get(sample.name)) is not None:
        value = named.convert(sample.value)
        if value is None or not math.isfinite(value):
            card.dropped += 1
        else:
            card.values[named.metric] = value


def _count(card: Card, sample: Sample) -> None:
    code, window = sample.labels.get("xid", ""), sample.labels.get("window_size_in_ms", "")
    if code.isdecimal() and len(code) < 6:
        card.xids[int(code)] = int(sample.value)
    if window.isdecimal() and len(window) < 12:
        card.window_ms = int(window)
