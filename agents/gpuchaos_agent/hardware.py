"""The node's devices under the names of OpenTelemetry's hardware conventions (`hw.*`), for an OTLP endpoint.

What the last frame says becomes an observable instrument; a rate is summed up frame by frame, for there the conventions
want a counter. Of a gap between frames nothing is known, so nothing is added for it. Source: OpenTelemetry semantic
conventions 1.44, hardware metrics, in development; they may change.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

from gpuchaos_agent.snapshot import Taken
from gpuchaos_stream.events.frame import Kind

#: Frames further apart than this, seconds, have a gap between them.
GAP_S: Final = 10.0

Instrument = Literal["gauge", "updowncounter", "counter"]
#: The numbers of one device by the frame's names; those that were read.
Read = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Row:
    """One series of each device of a kind: `value` makes it from the numbers, None where one of them is missing.

    Of a counter it is the increase a second. `sensor` names the part whose temperature it is, a component of its own.
    """

    name: str
    instrument: Instrument
    unit: str
    kind: Kind
    source: str
    value: Callable[[Read], float | None]
    attributes: Mapping[str, str] = field(default_factory=dict)
    sensor: str = ""


def _plain(
    name: str,
    instrument: Instrument,
    unit: str,
    kind: Kind,
    source: str,
    *,
    factor: float = 1.0,
    sensor: str = "",
    **a: str,
) -> Row:
    """One number of the frame, times `factor`."""

    def value(read: Read) -> float | None:
        return None if source not in read else read[source] * factor

    return Row(
        name, instrument, unit, kind, source, value, {key.replace("__", "."): each for key, each in a.items()}, sensor
    )


def _share(read: Read) -> float | None:
    total = read.get("memory_total_bytes")
    return read["memory_used_bytes"] / total if total and "memory_used_bytes" in read else None


#: States of a GPU besides `ok`, with the number that says so where it is not zero.
_GPU_STATES: Final = {
    "failed": "remapped_rows_failed",
    "predicted_failure": "remapped_rows_pending",
    "degraded": "throttle_hw_ratio",
}


def _is(state: str, read: Read) -> float | None:
    if state != "ok":
        return None if _GPU_STATES[state] not in read else float(read[_GPU_STATES[state]] > 0)
    known = [read[name] for name in _GPU_STATES.values() if name in read]
    return float(not any(known)) if known else None


def _status(state: str) -> Row:
    source = ", ".join(_GPU_STATES.values()) if state == "ok" else _GPU_STATES[state]
    return Row("hw.status", "updowncounter", "1", "gpu", source, partial(_is, state), {"hw.state": state})


ROWS: Final = (
    _plain("hw.gpu.utilization", "gauge", "1", "gpu", "utilization_ratio", hw__gpu__task="general"),
    _plain("hw.gpu.memory.usage", "updowncounter", "By", "gpu", "memory_used_bytes"),
    _plain("hw.gpu.memory.limit", "updowncounter", "By", "gpu", "memory_total_bytes"),
    Row("hw.gpu.memory.utilization", "gauge", "1", "gpu", "memory_used_bytes / memory_total_bytes", _share),
    _plain("hw.gpu.io", "counter", "By", "gpu", "nvlink_rx_bytes_rate", network__io__direction="receive"),
    _plain("hw.gpu.io", "counter", "By", "gpu", "nvlink_tx_bytes_rate", network__io__direction="transmit"),
    _plain("hw.temperature", "gauge", "Cel", "gpu", "temperature_celsius", sensor="gpu"),
    _plain("hw.temperature", "gauge", "Cel", "gpu", "memory_temperature_celsius", sensor="memory"),
    _plain("hw.power", "gauge", "W", "gpu", "power_watts"),
    _plain("hw.energy", "counter", "J", "gpu", "power_watts"),
    _plain("hw.errors", "counter", "{error}", "gpu", "ecc_corrected_rate", error__type="corrected"),
    _plain("hw.errors", "counter", "{error}", "gpu", "ecc_uncorrected_rate", error__type="uncorrected"),
    _plain("hw.errors", "counter", "{error}", "gpu", "pcie_replay_rate", error__type="pcie_replay"),
    _status("ok"),
    *map(_status, _GPU_STATES),
    _plain("hw.network.up", "updowncounter", "1", "rdma", "port_active"),
    _plain("hw.network.bandwidth.limit", "updowncounter", "By/s", "rdma", "rate_bits", factor=0.125),
    _plain("hw.network.io", "counter", "By", "rdma", "rx_bytes_rate", network__io__direction="receive"),
    _plain("hw.network.io", "counter", "By", "rdma", "tx_bytes_rate", network__io__direction="transmit"),
    _plain("hw.errors", "counter", "{error}", "rdma", "symbol_error_rate", error__type="symbol"),
    _plain("hw.errors", "counter", "{error}", "rdma", "rcv_errors_rate", error__type="receive"),
    _plain("hw.errors", "counter", "{error}", "rdma", "link_downed_rate", error__type="link_downed"),
)
#: What the conventions call a device of a kind.
_TYPE: Final[dict[Kind, str]] = {"gpu": "gpu", "rdma": "network"}


class Hardware:
    """The instruments of one node, once `add` was given a meter. `feed` it each tick; until then it holds nothing."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._taken: Taken | None = None
        self._totals: dict[tuple[int, str], float] = defaultdict(float)
        self._added = False

    def add(self, meter: Any) -> None:
        """Makes the instruments; they are asked in a thread of the SDK."""
        self._added = True
        make = {
            "gauge": meter.create_observable_gauge,
            "updowncounter": meter.create_observable_up_down_counter,
            "counter": meter.create_observable_counter,
        }
        for name in dict.fromkeys(row.name for row in ROWS):
            rows = [(number, row) for number, row in enumerate(ROWS) if row.name == name]
            first = rows[0][1]
            make[first.instrument](name, callbacks=[partial(self._observe, rows)], unit=first.unit)

    def feed(self, taken: Taken) -> None:
        """Takes a tick of the node."""
        if not self._added:
            return
        with self._lock:
            since = taken.time - self._taken.time if self._taken is not None else 0.0
            self._taken = taken
            if not 0.0 < since <= GAP_S:
                return
            for kind in _TYPE:
                devices = list(_devices(taken, kind))
                for number, row in enumerate(ROWS):
                    if row.kind == kind and row.instrument == "counter":
                        for device, read in devices:
                            value = row.value(read)
                            if value is not None:
                                self._totals[number, device] += value * since

    def _observe(self, rows: Iterable[tuple[int, Row]], _options: Any) -> Iterator[Any]:
        with self._lock:
            found = [each for number, row in rows for each in self._of(number, row)]
        yield from found

    def _of(self, number: int, row: Row) -> Iterator[Any]:
        from opentelemetry.metrics import Observation  # noqa: PLC0415  (only an agent that exports them needs it)

        taken = self._taken
        if taken is None:
            return
        uuids = {gpu.index: gpu.uuid for gpu in taken.places.gpus} if row.kind == "gpu" else {}
        jobs = _jobs(taken, row.kind)
        for device, read in _devices(taken, row.kind):
            value = row.value(read)
            if value is not None:
                if row.instrument == "counter":
                    value = self._totals[number, device]
                yield Observation(value, self._attributes(row, device, uuids.get(device, ""), jobs.get(device, "")))

    def _attributes(self, row: Row, device: str, uuid: str, job: str) -> dict[str, str]:
        """A GPU is known by its UUID; what has none by its node and name."""
        what = uuid or f"{self._node}/{row.kind}/{device}"
        name = f"GPU {device}" if row.kind == "gpu" else device
        common = {**row.attributes, **({"gpuchaos.job": job} if job else {}), "gpuchaos.node": self._node}
        if row.sensor:
            whose = {"hw.id": f"{what}/{row.sensor}", "hw.parent": what, "hw.sensor_location": row.sensor}
            return {**common, **whose, "hw.name": f"{name} {row.sensor}", "hw.type": "temperature"}
        return {**common, "hw.id": what, "hw.name": name, "hw.type": _TYPE[row.kind]}


def _devices(taken: Taken, kind: Kind) -> Iterator[tuple[str, Read]]:
    for group, columns in zip(taken.layout.groups, taken.values, strict=True):
        if group.kind == kind:
            for place, device in enumerate(group.ids):
                numbers = zip(group.metrics, (column[place] for column in columns), strict=True)
                yield device, {name: value for name, value in numbers if value is not None}


def _jobs(taken: Taken, kind: Kind) -> dict[str, str]:
    return {
        device: job
        for group in taken.layout.groups
        if group.kind == kind
        for device, job in zip(group.ids, group.labels.get("job", ("",) * len(group.ids)), strict=True)
    }
