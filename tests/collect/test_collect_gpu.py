from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from gpuchaos_agent.collect.base import Fact, JobSource, Reading
from gpuchaos_agent.collect.gpu import GpuCollector
from gpuchaos_agent.collect.nvml import RETRY_S, NvmlReader
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin


class Driver:
    """Stands for the library where there is no GPU: the calls that the reader makes, with pynvml's own errors.

    `fails` maps a call to the error number that it gives, for one device or (None) for all.
    """

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.fails: dict[tuple[str, int | None], int] = {}
        self.asked: list[str] = []
        self.ecc = 0
        self.utilization = 50
        self.open = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return getattr(pynvml, name)
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda number: number,
            "nvmlDeviceGetUUID": lambda number: f"GPU-{number}".encode(),
            "nvmlDeviceGetPciInfo": lambda number: SimpleNamespace(busId=f"00000000:{number + 0x1A:02X}:00.0"),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=self.utilization),
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=5, total=10),
            "nvmlDeviceGetTemperature": lambda *_: 40,
            "nvmlDeviceGetPowerUsage": lambda _: 700_000,
            "nvmlDeviceGetClockInfo": lambda *_: 1980,
            "nvmlDeviceGetTotalEccErrors": lambda *_: self.ecc,
            "nvmlDeviceGetPcieReplayCounter": lambda _: 0,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x8,
            "nvmlDeviceGetRemappedRows": lambda _: (0, 0, 1, 0),
            "nvmlDeviceGetFieldValues": lambda *_: [SimpleNamespace(nvmlReturn=3)],
        }

        def call(*arguments: Any) -> Any:
            self.asked.append(name)
            number = arguments[0] if arguments else None
            code = self.fails.get((name, None), self.fails.get((name, number)))
            if code is not None:
                raise pynvml.NVMLError(code)
            if name in {"nvmlInit", "nvmlShutdown"}:
                self.open += 1 if name == "nvmlInit" else -1
                return None
            return answers[name](*arguments)

        return call


def values(reading: Reading) -> dict[str, tuple[float | None, ...]]:
    (group,) = reading.groups
    return dict(zip(group.layout.metrics, group.columns, strict=True))


def reader(driver: Any, root: Path, owners: dict[str, str] | None = None) -> NvmlReader:
    return NvmlReader(root, owners or {}, lambda: driver)


def test_units_are_base_units(tmp_path: Path) -> None:
    read = values(reader(Driver(), tmp_path).read(0.0))
    assert read["utilization_ratio"] == (0.5, 0.5)
    assert read["power_watts"] == (700.0, 700.0)
    assert read["sm_clock_hertz"] == (1.98e9, 1.98e9)
    assert read["throttle_hw_ratio"] == (1.0, 1.0)
    assert read["remapped_rows_pending"] == (1.0, 1.0)


def test_ecc_counts_become_rates_and_a_driver_reload_is_no_negative_one(tmp_path: Path) -> None:
    driver = Driver()
    nvml = reader(driver, tmp_path)
    got = []
    for now, driver.ecc in ((0.0, 4), (2.0, 8), (3.0, 0), (4.0, 1)):
        got.append(values(nvml.read(now))["ecc_uncorrected_rate"][0])
    assert got == [None, 2.0, None, 1.0]


def test_a_utilization_that_cannot_be_is_unknown(tmp_path: Path) -> None:
    driver = Driver()
    driver.utilization = 4_000_000_000
    assert values(reader(driver, tmp_path).read(0.0))["utilization_ratio"] == (None, None)


@pytest.mark.parametrize("code", [3, 13])
def test_what_is_not_supported_is_asked_once(tmp_path: Path, code: int) -> None:
    driver = Driver(count=1)
    driver.fails[("nvmlDeviceGetPowerUsage", None)] = code
    nvml = reader(driver, tmp_path)
    for now in range(3):
        assert values(nvml.read(float(now)))["power_watts"] == (None,)
    assert driver.asked.count("nvmlDeviceGetPowerUsage") == 1
    assert driver.asked.count("nvmlDeviceGetTemperature") == 3


def test_a_lost_gpu_is_a_fact_once_and_the_others_go_on(tmp_path: Path) -> None:
    driver = Driver()
    nvml = reader(driver, tmp_path)
    nvml.read(0.0)
    driver.fails[("nvmlDeviceGetTemperature", 1)] = 15
    reading = nvml.read(1.0)
    (fact,) = reading.facts
    assert (fact.fault, fact.local, fact.origin, fact.severity) == (
        "gpu_lost",
        "1",
        Origin.DRIVER,
        Severity.CRITICAL,
    )
    again = nvml.read(2.0)
    assert again.facts == ()
    assert values(again)["power_watts"] == (700.0, None)
    assert "gpu.1" in again.absent


def test_a_gpu_that_comes_back_after_a_reset_is_read_again(tmp_path: Path) -> None:
    driver = Driver()
    nvml = reader(driver, tmp_path)
    driver.fails[("nvmlDeviceGetTemperature", 1)] = 16
    assert [fact.fault for fact in nvml.read(0.0).facts] == ["gpu_reset_required"]
    driver.fails.clear()
    assert values(nvml.read(RETRY_S - 1.0))["temperature_celsius"] == (40.0, None)
    assert values(nvml.read(RETRY_S + 1.0))["temperature_celsius"] == (40.0, 40.0)
    assert driver.open == 1


def test_a_gpu_that_is_gone_from_the_bus_keeps_its_row_without_numbers(tmp_path: Path) -> None:
    driver = Driver()
    nvml = reader(driver, tmp_path)
    nvml.read(0.0)
    driver.fails[("nvmlDeviceGetTemperature", 1)] = 15
    nvml.read(1.0)
    driver.count = 1
    assert values(nvml.read(RETRY_S + 2.0))["power_watts"] == (700.0, None)


@pytest.mark.parametrize(
    ("code", "said"), [(12, "NVML library not found"), (9, "driver is not loaded"), (18, "different versions")]
)
def test_why_there_are_no_gpus_is_said_in_words_and_tried_again(tmp_path: Path, code: int, said: str) -> None:
    driver = Driver()
    driver.fails[("nvmlInit", None)] = code
    nvml = reader(driver, tmp_path)
    assert said in nvml.read(0.0).absent["gpu"]
    driver.fails.clear()
    assert nvml.read(1.0).groups == ()
    assert len(nvml.read(RETRY_S + 1.0).groups) == 1


def test_a_missing_binding_is_said(tmp_path: Path) -> None:
    def load() -> Any:
        raise ImportError("pynvml")

    assert "not installed" in NvmlReader(tmp_path, {}, load).read(0.0).absent["gpu"]


def test_places_tell_address_node_and_job(tmp_path: Path) -> None:
    nodes, device = tmp_path / "devices/system/node", tmp_path / "bus/pci/devices/0000:1b:00.0"
    for path in (nodes, device):
        path.mkdir(parents=True)
    (nodes / "online").write_text("0-1\n")
    (device / "numa_node").write_text("1\n")
    reading = reader(Driver(), tmp_path, {"0": "a", "0000:1B:00.0": "b"}).read(0.0)
    assert [(p.index, p.pci, p.numa_node, p.job) for p in reading.places.gpus] == [
        ("0", "0000:1a:00", None, "a"),
        ("1", "0000:1b:00", 1, "b"),
    ]
    assert reading.groups[0].layout.labels["job"] == ("a", "b")


def test_a_call_that_hangs_holds_up_nobody_and_is_said(tmp_path: Path) -> None:
    hangs = threading.Event()
    driver = Driver()
    clock = SimpleNamespace(now=0.0)

    class Hanging(Driver):
        def __getattr__(self, name: str) -> Any:
            if name == "nvmlDeviceGetTemperature":
                return lambda *_: hangs.wait(30.0)
            return getattr(driver, name)

    collector = GpuCollector(tmp_path, load=Hanging, monotonic=lambda: clock.now, first_wait_s=0.05)
    began = time.monotonic()
    assert "has not answered" in collector.read(0.0).absent["gpu"]
    clock.now = 7.0
    assert "for 7 s" in collector.read(7.0).absent["gpu"]
    assert time.monotonic() - began < 5.0
    hangs.set()
    collector.close()


def test_a_fact_that_the_thread_found_is_handed_out_exactly_once(tmp_path: Path) -> None:
    driver = Driver()
    driver.fails[("nvmlDeviceGetTemperature", 0)] = 15
    collector = GpuCollector(tmp_path, (JobSource("a", gpu="0"),), load=lambda: driver)
    facts: list[Fact] = []
    for now in range(20):
        facts += collector.read(float(now)).facts
    assert [fact.fault for fact in facts] == ["gpu_lost"]
    collector.close()


def test_this_machines_gpus_are_read_where_there_are_any() -> None:
    collector = GpuCollector(Path("/sys"))
    reading = collector.read(time.time())
    if not reading.groups:
        assert reading.absent["gpu"]
        collector.close()
        pytest.skip(f"no GPU: {reading.absent['gpu']}")
    read = values(reading)
    assert all((total or 0) > 1e9 for total in read["memory_total_bytes"])
    assert all(place.uuid.startswith("GPU-") for place in reading.places.gpus)
    collector.close()
