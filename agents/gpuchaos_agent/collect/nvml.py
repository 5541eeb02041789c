"""One reading of all GPUs through NVML: what is not supported is asked once, what is lost is said once.

Numbers of errors are those of nvml.h, `nvmlReturn_t`. Handles go stale after a reset: after any loss the
library is shut down and started anew after a while, and devices are known again by their UUID.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent.collect import files, numa, pci
from gpuchaos_agent.collect.base import Fact, Group, Places, Reading
from gpuchaos_agent.collect.counters import Rates
from gpuchaos_agent.collect.nvml_fields import FIELDS, Field
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.events.frame import GroupLayout
from gpuchaos_stream.events.node import GpuPlace

#: NVML_ERROR_NOT_SUPPORTED, FUNCTION_NOT_FOUND, and INVALID_ARGUMENT for fields this device does not have.
UNSUPPORTED: Final = frozenset({2, 3, 13})
#: The library must be started anew: UNINITIALIZED, LIB_RM_VERSION_MISMATCH.
RESTART: Final = frozenset({1, 18})
#: Error → fault name and first action: GPU_IS_LOST, RESET_REQUIRED.
LOSSES: Final[dict[int, tuple[str, str]]] = {
    15: ("gpu_lost", "reboot_node"),
    16: ("gpu_reset_required", "reset_gpu"),
}
#: Error of the start → why there are no GPUs, for a person: DRIVER_NOT_LOADED, NO_PERMISSION, LIBRARY_NOT_FOUND, …
NO_START: Final[dict[int, str]] = {
    9: "the NVIDIA driver is not loaded",
    4: "no permission to talk to the NVIDIA driver",
    12: "NVML library not found",
    18: "driver and NVML library are of different versions; the driver was replaced while it was loaded",
}
#: How long after a failed start, or a loss, the library is started again, seconds.
RETRY_S: Final = 30.0

METRICS: Final = tuple(field.metric for field in FIELDS)


@dataclass(slots=True)
class _Device:
    place: GpuPlace
    handle: Any
    unsupported: set[str] = field(default_factory=set)
    lost: str | None = None


class NvmlReader:
    """Holds the library and the devices. All of it runs in one thread; `owners` maps a GPU's index to its job."""

    def __init__(self, sysfs: Path, owners: dict[str, str], load: Callable[[], Any]) -> None:
        self._sysfs = sysfs
        self._owners = owners
        self._load = load
        self._nvml: Any = None
        self._devices: dict[str, _Device] = {}
        self._rates = Rates()
        self._retry_at = 0.0
        self._absent = ""
        self._started = False
        self._stale = False

    def read(self, now: float) -> Reading:
        """All devices once; a lost one keeps its row, without numbers. `now` is the node's clock, seconds."""
        if (self._stale or not self._started) and not now < self._retry_at <= now + RETRY_S:
            self.close()
            self._start(now)
        if not self._devices:
            return Reading(absent={"gpu": self._absent or "NVML finds no GPU"})
        facts: list[Fact] = []
        rows = [self._row(device, now, facts) for device in self._devices.values()]
        places = tuple(device.place for device in self._devices.values())
        layout = GroupLayout(
            kind="gpu",
            ids=tuple(place.index for place in places),
            metrics=METRICS,
            labels={"job": tuple(place.job or "" for place in places), "pci": tuple(place.pci for place in places)},
        )
        absent = {f"gpu.{d.place.index}": d.lost for d in self._devices.values() if d.lost}
        group = Group(layout, tuple(zip(*rows, strict=True)))
        return Reading(groups=(group,), absent=absent, facts=tuple(facts), places=Places(gpus=places))

    def close(self) -> None:
        """Shuts the library down, so that nothing of ours stays in the driver."""
        if self._started:
            self._started = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return

    def _start(self, now: float) -> None:
        self._retry_at = now + RETRY_S
        try:
            self._nvml = self._nvml or self._load()
        except ImportError:
            self._absent = "the Python package nvidia-ml-py is not installed"
            return
        try:
            self._nvml.nvmlInit()
            self._started = True
            self._stale = False
            self._enumerate()
        except self._nvml.NVMLError as error:
            code = _code(error)
            self._absent = NO_START.get(code, f"NVML did not start: {error} ({code})")
            self.close()

    def _enumerate(self) -> None:
        """Devices by UUID. One that is missing keeps its row, so that its absence is seen."""
        nvml, nodes = self._nvml, numa.online(self._sysfs / numa.NODES)
        for number in range(int(nvml.nvmlDeviceGetCount())):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                uuid = _text(nvml.nvmlDeviceGetUUID(handle))
                address = pci.normal(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
            except nvml.NVMLError:
                continue
            index = str(number)
            near = numa.device_node(files.number(pci.numa_file(self._sysfs, address)), nodes)
            # An owner may be given by index or by address.
            job = self._owners.get(index) or next(
                (job for gpu, job in self._owners.items() if ":" in gpu and pci.normal(gpu) == address), None
            )
            place = GpuPlace(index=index, uuid=uuid, pci=address, numa_node=near, job=job)
            for other in [key for key, d in self._devices.items() if d.place.index == index and key != uuid]:
                del self._devices[other]  # another card in this place
            known = self._devices.get(uuid)
            self._devices[uuid] = _Device(place, handle, known.unsupported if known else set())
        self._absent = "NVML finds no GPU"

    def _row(self, device: _Device, now: float, facts: list[Fact]) -> tuple[float | None, ...]:
        if not self._started or device.lost:
            return (None,) * len(FIELDS)
        row: list[float | None] = []
        for item in FIELDS:
            value = None if device.lost else self._value(device, item, now, facts)
            row.append(self._rates.rate((device.place.uuid, item.metric), value, now) if item.counter else value)
        return tuple(row)

    def _value(self, device: _Device, item: Field, now: float, facts: list[Fact]) -> float | None:
        if item.metric in device.unsupported:
            return None
        try:
            return item.read(self._nvml, device.handle)
        except self._nvml.NVMLError as error:
            self._failed(device, item, _code(error), now, facts)
        except (AttributeError, UnicodeDecodeError):
            # The binding lacks the call, or decodes what is no UTF-8: neither will be better next second.
            device.unsupported.add(item.metric)
        return None

    def _failed(self, device: _Device, item: Field, code: int, now: float, facts: list[Fact]) -> None:
        if code in UNSUPPORTED:
            device.unsupported.add(item.metric)
        elif code in LOSSES:
            fault, action = LOSSES[code]
            device.lost = f"NVML says {fault} ({code})"
            facts.append(
                Fact(
                    key=f"nvml/{device.place.uuid}/{fault}/{now:.0f}",
                    fault=fault,
                    severity=Severity.CRITICAL,
                    time=now,
                    kind="gpu",
                    local=device.place.index,
                    origin=Origin.DRIVER,
                    evidence={"nvml_error": code, "pci": device.place.pci, "uuid": device.place.uuid, "action": action},
                )
            )
            # The others' handles may be stale too, and this one may come back: look again after a while.
            self._stale, self._retry_at = True, now + RETRY_S
        elif code in RESTART:
            self._stale, self._retry_at = True, now


def _code(error: Exception) -> int:
    return int(getattr(error, "value", 999))


def _text(value: str | bytes) -> str:
    """Strings are bytes before nvidia-ml-py 11.525; some drivers (WSL) give what is no UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
