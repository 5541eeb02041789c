"""What is known to go wrong with NVML, one test a case.

The cases of events (a wait that times out, a broken stream) are in `test_nvml_events.py`, the memory-only NUMA node in
`test_nvml_reader.py`, the end by a signal in `test_nvml_process.py`.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvml_fake import Fake, Ticks, column

from gpuchaos_agent.nvml import codes, processes, values
from gpuchaos_agent.nvml.asking import Asking


def test_strings_may_be_bytes_or_text_and_bytes_need_not_be_utf8() -> None:
    assert codes.text(b"GPU-1") == codes.text("GPU-1") == "GPU-1"
    assert codes.text(b"\xf8x") == "�x"


def test_a_string_that_the_binding_cannot_decode_is_asked_once(fake: Fake) -> None:
    import pynvml

    def decode() -> str:
        return b"\xf8".decode()

    asking = Asking()
    asking.begin(pynvml)
    assert asking.ask("name", decode) is None
    assert "name" in asking.unsupported


def test_a_call_that_the_driver_lacks_is_asked_once(fake: Fake) -> None:
    import pynvml

    asking = Asking()
    asking.begin(pynvml)

    def old_driver() -> None:
        pynvml._nvmlGetFunctionPointer("nvmlDeviceFromTheFuture")

    def old_binding() -> None:
        pynvml.nvmlDeviceFromTheFuture()

    def mismatch() -> None:
        raise pynvml.NVMLLibraryMismatchError("unversioned function")

    for name, call in (("a", old_driver), ("b", old_binding), ("c", mismatch)):
        assert asking.ask(name, call) is None
    assert asking.unsupported == {"a", "b", "c"}


def test_an_ordinary_getter_that_says_reset_required_is_the_fault(fake: Fake, tmp_path: Path) -> None:
    fake.world("error 0 nvmlDeviceGetUtilizationRates 16")
    with Ticks(tmp_path) as ticks:
        reading = ticks.tick()
        (fact,) = ticks.facts
        assert (fact.fault, fact.severity.value, fact.evidence["nvml"]) == ("gpu_reset_required", "critical", "16")
        # Its counters would read 0: none is given out.
        assert [values[0] for values in reading.groups[0].columns] == [None] * len(reading.groups[0].columns)


def test_one_start_a_process_whatever_is_read_and_never_another_while_all_is_well(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        for _ in range(50):
            ticks.tick()
        assert (fake.inits, fake.open) == (1, 1)
    assert fake.open == 0


def test_a_garbled_list_of_processes_is_not_believed(fake: Fake, tmp_path: Path) -> None:
    # Driver 535: from the second process on, pid and memory are in each other's place.
    for pid in (9980, 10121):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
    fake.world("process 0 9980 6498025472 0 0", "process 0 2226126848 10121 0 0")
    with Ticks(tmp_path, procfs=tmp_path / "proc") as ticks:
        reading = ticks.tick()
    assert column(reading, "processes") == (None, 0.0)
    assert "garbled" in str(reading.info["gpu.0.processes"])


@pytest.mark.parametrize(
    ("pid", "memory", "believed"),
    [
        (1, 10, True),
        ((1 << 22) - 1, None, True),
        (1 << 22, 10, False),
        (0, 10, False),
        (4, 101, False),
        (4, 100, True),
    ],
)
def test_a_process_needs_a_possible_pid_and_no_more_memory_than_the_card_has(
    tmp_path: Path, pid: int, memory: int | None, believed: bool
) -> None:
    entry = SimpleNamespace(pid=pid, usedGpuMemory=memory)
    nvml: Any = SimpleNamespace(nvmlDeviceGetComputeRunningProcesses=lambda _: [entry], NVMLError=OSError)
    found = processes.read(nvml, None, tmp_path, 100.0)
    assert (len(found.found), found.garbled) == ((1, 0) if believed else (0, 1))


def test_a_driver_without_the_third_list_of_processes_is_asked_for_the_second(fake: Fake, tmp_path: Path) -> None:
    fake.world("error 0 nvmlDeviceGetComputeRunningProcesses_v3 13", f"process 0 {1} 5 0 0")
    with Ticks(tmp_path) as ticks:
        assert column(ticks.tick(), "processes") == (1.0, 0.0)


def test_a_field_of_each_type_is_decoded_and_blanks_are_unknown(fake: Fake) -> None:
    import ctypes

    import pynvml

    def made(kind: int, **value: float) -> Any:
        field = pynvml.c_nvmlFieldValue_t()
        field.valueType = kind
        for name, content in value.items():
            setattr(field.value, name, content)
        return field

    entries = [
        made(0, dVal=1.5),
        made(1, uiVal=7),
        made(2, ulVal=8),
        made(3, ullVal=1 << 40),
        made(4, sllVal=-3),
        made(5, siVal=-4),
        made(6, usVal=18),
        made(1, uiVal=0xFFFFFFFF),
        made(3, ullVal=0xFFFFFFFFFFFFFFFF),
        made(0, dVal=float("nan")),
        made(77, ullVal=5),
    ]
    array = (pynvml.c_nvmlFieldValue_t * len(entries))(*entries)
    assert ctypes.sizeof(pynvml.c_nvmlFieldValue_t) == 40
    nvml: Any = SimpleNamespace(nvmlDeviceGetFieldValues=lambda *_: array)
    got = [value for _, value in values.ask(nvml, None, [(1, 0)] * len(entries))]
    assert got == [1.5, 7.0, 8.0, 2.0**40, -3.0, -4.0, 18.0, None, None, None, None]
