"""What a cell measures at the moment, and which of its nodes are heard of, from the summaries of its detector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

#: Name on the map → the column of a summary, and what it is.
VALUES: Final[dict[str, tuple[str, str]]] = {
    "gpu": ("gpu.utilization_ratio.mean", "GPU utilisation, 0..1"),
    "temperature": ("gpu.temperature_celsius.max", "hottest GPU of a node, degrees Celsius"),
    "rdma": ("rdma.tx_bytes_rate.mean", "sent by an RDMA port, bytes per second"),
    "misaligned": ("process.numa_misaligned_ratio.max", "share of a process' CPUs away from its GPU, 0..1"),
}
#: Seconds after which the last summary of a cell says nothing any more. One comes each second.
UNHEARD_S: Final = 15.0


class CellWord(msgspec.Struct, frozen=True):
    """What a detector says of a cell: its nodes, those whose telemetry has stopped, and means over its nodes."""

    cluster: str
    cell: str
    nodes: frozenset[str]
    stale: frozenset[str]
    values: Mapping[str, float | None]


@dataclass(slots=True)
class CellValues:
    """The latest word of one cell, its silent nodes, and when it reached this process, epoch seconds."""

    word: CellWord
    stale: frozenset[str]
    heard: float


def mean(values: Iterable[float | None]) -> float | None:
    """Of what is known, to three digits, so that noise makes no change; None where nothing is."""
    known = [value for value in values if value is not None]
    return float(f"{sum(known) / len(known):.3g}") if known else None
