"""What may happen to a node's cards while an agent watches: the others' numbers keep coming."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from nvml_fake import DEADLINE_S, Fake, Ticks, column, healthy, settled, uuid

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin


def test_a_healthy_node_has_all_its_numbers_and_tells_no_fact(fake: Fake, tmp_path: Path) -> None:
    fake.base = healthy(8)
    fake.world()
    with Ticks(tmp_path) as ticks:
        ticks.tick()  # a rate takes two
        # "nobody listens yet" is true until the thread that listens has begun.
        reading = ticks.until(lambda reading: reading.absent == {})
        assert ticks.facts == []
        for group in reading.groups:
            for metric, values in zip(group.layout.metrics, group.columns, strict=True):
                # Page retirement is of cards before Ampere; these have row remapping.
                assert (None in values) == (metric == "retired_pages"), metric
        assert [len(group.layout.ids) for group in reading.groups] == [8, 8 * 18]
        assert [place.uuid for place in reading.places.gpus] == [uuid(card) for card in range(8)]


def test_a_lost_card_is_a_fact_once_and_the_others_go_on(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        fake.world("error 1 * 15")
        ticks.tick()
        (fact,) = ticks.facts
        assert (fact.fault, fact.local, fact.severity) == ("gpu_lost", "1", Severity.CRITICAL)
        assert fact.origin is Origin.DRIVER
        assert (fact.evidence["nvml"], fact.evidence["action"]) == ("15", "reboot_node")
        for _ in range(20):
            reading = ticks.tick()
            assert column(reading, "power_watts") == (655.0, None)
            assert "gpu_lost" in reading.absent["gpu.1"]
        assert ticks.told() == ["gpu_lost"]


def test_a_lost_card_stays_known_while_the_library_is_started_anew_for_it(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        fake.world("error 1 * 15")
        started = fake.inits
        reading = ticks.until(lambda _: fake.inits > started)
        for _ in range(5):
            reading = ticks.tick()
        assert column(reading, "power_watts") == (655.0, None)
        assert ticks.told() == ["gpu_lost"]
        # A second look comes later than the first: each costs the healthy cards a moment.
        again = ticks.now
        started = fake.inits
        ticks.until(lambda _: fake.inits > started)
        assert ticks.now - again > 40


def test_a_card_that_is_gone_from_the_bus_keeps_its_row_without_numbers(fake: Fake, tmp_path: Path) -> None:
    fake.base = healthy(3)
    fake.world()
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        # Card 0 is gone: NVML's numbers move up, uuids and addresses do not.
        gone = [line for line in healthy(2) if not line.startswith(("set 0 ", "set 1 "))]
        for card in (0, 1):
            gone += [f"set {card} uuid {uuid(card + 1)}", f"set {card} pci 00000000:{0x1B + card:02X}:00.0"]
        fake.base = gone
        fake.world("generation 1")
        reading = ticks.until(lambda r: column(r, "power_watts") == (None, 655.0, 655.0))
        assert [place.index for place in reading.places.gpus] == ["0", "1", "2"]
        assert [place.uuid for place in reading.places.gpus] == [uuid(0), uuid(1), uuid(2)]
        assert {fact.local for fact in ticks.facts if fact.fault == "gpu_lost"} >= {"0"}
        assert "gpu.0" in reading.absent


@pytest.mark.parametrize("call", ["nvmlDeviceGetTemperature", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode"])
def test_a_card_that_hangs_in_a_call_holds_up_no_other(fake: Fake, tmp_path: Path, call: str) -> None:
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        fake.world(f"hang 1 {call} 600")
        for _ in range(20):
            began = time.monotonic()
            reading = ticks.tick()
            assert time.monotonic() - began < 1.0
            assert column(reading, "power_watts")[0] == 655.0
        assert column(reading, "power_watts")[1] is None
        assert "has not returned for" in reading.absent["gpu.1"]
        (fact,) = ticks.facts
        assert (fact.fault, fact.local) == ("gpu_call_hang", "1")
        fake.world()
        reading = ticks.until(lambda r: column(r, "power_watts") == (655.0, 655.0))
        assert "gpu.1" not in reading.absent


def test_a_card_that_hangs_before_it_said_who_it_is_holds_up_no_other(fake: Fake, tmp_path: Path) -> None:
    fake.world("hang 1 nvmlDeviceGetUUID 600")
    with Ticks(tmp_path) as ticks:
        for _ in range(4):
            reading = ticks.tick()
        assert column(reading, "power_watts") == (655.0,)
        assert "which card" in reading.absent["gpu.1"]
        fake.world()
        ticks.until(lambda r: column(r, "power_watts") == (655.0, 655.0))


def test_the_library_is_started_anew_for_the_others_beside_a_call_that_hangs(fake: Fake, tmp_path: Path) -> None:
    hang = "hang 1 nvmlDeviceGetTemperature 600"
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        fake.world(hang)
        ticks.until(lambda r: "has not returned" in r.absent.get("gpu.1", ""))
        fake.world(hang, "driver gone")
        ticks.until(lambda r: column(r, "power_watts")[0] is None)
        fake.world(hang)
        reading = ticks.until(lambda r: column(r, "power_watts")[0] == 655.0)
        assert column(reading, "power_watts") == (655.0, None)
        fake.world()
        ticks.until(lambda r: column(r, "power_watts") == (655.0, 655.0))


def test_closing_does_not_wait_for_a_call_that_hangs(fake: Fake, tmp_path: Path) -> None:
    ticks = Ticks(tmp_path)
    ticks.tick()
    fake.world("hang 1 nvmlDeviceGetTemperature 600")
    ticks.tick()
    began = time.monotonic()
    ticks.collector.close()
    ticks.collector.close()
    assert time.monotonic() - began < 3.0


def test_closing_shuts_the_library_down_as_often_as_it_was_started(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        fake.world("driver gone")
        ticks.tick()
        fake.world()
        ticks.until(lambda r: r.groups and column(r, "power_watts")[0] == 655.0)
        assert fake.open == 1
    assert fake.open == 0


def test_a_card_that_must_be_reset_says_so_and_is_read_again_afterwards(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        fake.world("error 1 * 16")
        ticks.tick()
        fact = ticks.facts[-1]
        assert (fact.fault, fact.severity) == ("gpu_reset_required", Severity.CRITICAL)
        assert (fact.evidence["nvml"], fact.evidence["action"]) == ("16", "reset_gpu")
        # The reset makes all handles of before stale.
        fake.world("generation 1")
        reading = ticks.until(lambda r: column(r, "power_watts") == (655.0, 655.0))
        assert "gpu.1" not in reading.absent
        back = [fact.local for fact in ticks.facts if fact.evidence.get("cleared")]
        assert "1" in back
        assert {fact.severity for fact in ticks.facts if fact.evidence.get("cleared")} == {Severity.INFO}


@pytest.mark.parametrize(
    ("driver", "code", "said"),
    [("unloaded", "9", "driver is not loaded"), ("mismatch", "18", "different versions")],
)
def test_a_driver_that_goes_away_and_comes_back_is_told_twice(
    fake: Fake, tmp_path: Path, driver: str, code: str, said: str
) -> None:
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        fake.world(f"driver {driver}")
        reading = ticks.until(lambda r: said in r.absent.get("gpu", ""))
        assert column(reading, "power_watts") == (None, None)
        for _ in range(30):
            ticks.tick()
        assert ticks.told() == ["gpu_driver_gone"]
        assert ticks.facts[0].evidence["nvml"] == code
        fake.world("generation 1")
        reading = ticks.until(lambda r: column(r, "power_watts") == (655.0, 655.0))
        assert "gpu" not in reading.absent
        assert ticks.told(cleared=True) == ["gpu_driver_gone"]


def test_no_driver_from_the_beginning_is_an_absence_and_no_fault(fake: Fake, tmp_path: Path) -> None:
    fake.world("driver unloaded")
    with Ticks(tmp_path) as ticks:
        reading = ticks.until(lambda r: "driver is not loaded" in r.absent["gpu"])
        assert reading.groups == ()
        fake.world()
        ticks.until(lambda r: r.groups)
        assert ticks.facts == []


def test_a_start_that_hangs_is_said(fake: Fake, tmp_path: Path) -> None:
    fake.world("hang - nvmlDeviceGetCount_v2 600")
    with Ticks(tmp_path) as ticks:
        ticks.collector._next_wait = 0.05
        reading = ticks.tick()
        assert reading.groups == ()
        fake.world()
        ticks.until(lambda r: r.groups)


def test_a_missing_binding_is_said(tmp_path: Path) -> None:
    from gpuchaos_agent.collect.gpu import GpuCollector

    def load() -> None:
        raise ImportError("pynvml")

    collector = GpuCollector(tmp_path, load=load)
    assert "not installed" in collector.read(0.0).absent["gpu"]
    collector.close()


def test_cards_that_are_cut_into_instances_are_no_fault(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        reading = ticks.tick()
        assert reading.places.gpus[0].mig == ()
        parts = (
            "set 0 mig 1",
            "instance 0 2 0 NVIDIA Pretend 80GB MIG 3g.40gb",
            "instance 0 1 0 NVIDIA Pretend 80GB MIG 4g.40gb",
            "error 0 nvmlDeviceGetUtilizationRates 3",
        )
        fake.world(*parts)
        reading = ticks.until(lambda r: r.places.gpus[0].mig)
        assert reading.places.gpus[0].mig == ("1/0 4g.40gb", "2/0 3g.40gb")
        assert column(reading, "utilization_ratio") == (None, 0.97)
        assert column(reading, "power_watts") == (655.0, 655.0)
        # Back to a whole card: what MIG lacks is asked for again.
        fake.world()
        reading = ticks.until(lambda r: r.places.gpus[0].mig == ())
        reading = ticks.until(lambda r: column(r, "utilization_ratio") == (0.97, 0.97))
        assert ticks.facts == []


def test_no_card_says_who_it_is_and_the_reason_is_said(fake: Fake, tmp_path: Path) -> None:
    fake.world("error 1 * 15")
    with Ticks(tmp_path) as ticks:
        for _ in range(3):
            reading = ticks.tick()
        assert column(reading, "power_watts") == (655.0,)
        assert [(fact.fault, fact.local) for fact in ticks.facts] == [("gpu_lost", "1")]
        assert settled(lambda: fake.open == 1)


@pytest.mark.soak
def test_a_hang_of_thirty_seconds_leaves_the_other_cards_at_one_frame_a_second(fake: Fake, tmp_path: Path) -> None:
    import threading

    from gpuchaos_agent.collect.gpu import GpuCollector

    fake.base = healthy(8)
    fake.world()
    collector = GpuCollector(tmp_path)
    pace = threading.Event()
    end = time.monotonic() + DEADLINE_S
    while not collector.read(time.time()).groups and time.monotonic() < end:
        pace.wait(0.1)
    fake.world("hang 3 nvmlDeviceGetPowerUsage 30")
    began = time.monotonic()
    full = 0
    for second in range(34):
        pace.wait(max(0.0, began + second - time.monotonic()))
        values = column(collector.read(time.time()), "power_watts")
        full += all(value == 655.0 for card, value in enumerate(values) if card != 3)
        if second == 31:
            fake.world()
    assert full == 34
    assert column(collector.read(time.time()), "power_watts")[3] == 655.0
    collector.close()
