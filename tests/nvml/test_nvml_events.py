"""Events that the driver reports: at once, each card's own, counted where they storm, and silence told from health."""

from __future__ import annotations

from pathlib import Path

import pytest
from nvml_fake import Fake, Ticks, column, settled

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin

XID = 8


def test_an_xid_is_a_fact_with_what_the_table_says_of_it(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        assert ticks.heard(2)
        fake.world(f"event 1 1 {XID} 94 3 0")
        ticks.until(lambda _: ticks.facts, seconds=0.01)
        (fact,) = ticks.facts
        assert (fact.fault, fact.local, fact.origin) == ("gpu_ecc_contained", "1", Origin.DRIVER)
        evidence = fact.evidence
        assert (evidence["xid"], evidence["pci"], evidence["source"]) == (94, "0000:1b:00", "nvml")
        assert (evidence["gpu_instance"], evidence["compute_instance"]) == (3, 0)
        assert evidence["action"]


def test_an_xid_that_only_its_text_judges_is_an_error_and_an_unknown_one_is_told(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        assert ticks.heard(2)
        fake.world(f"event 1 0 {XID} 149", f"event 2 0 {XID} 9999")
        ticks.until(lambda _: len(ticks.facts) == 2)
        by_xid = {fact.evidence["xid"]: fact for fact in ticks.facts}
        assert by_xid[149].severity is Severity.ERROR
        assert by_xid[9999].fault == "gpu_unknown_xid"


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(0x200, "gpu_ecc_sbe_rate"), (0x800, "gpu_row_remap_failure"), (0x1000, "gpu_ecc_contained")],
)
def test_other_events_have_faults_of_their_own(fake: Fake, tmp_path: Path, kind: int, fault: str) -> None:
    with Ticks(tmp_path) as ticks:
        assert ticks.heard(2)
        fake.world(f"event 1 0 {kind} 0")
        ticks.until(lambda _: ticks.facts)
        assert ticks.told() == [fault]


def test_a_storm_of_one_xid_is_few_facts_that_count_it_and_holds_up_no_numbers(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        assert ticks.heard(2)
        fake.world("event 1 0 8 95 4294967295 4294967295 20000", "event 2 1 8 79")
        for _ in range(10):
            assert column(ticks.tick(0.1), "power_watts") == (655.0, 655.0)
        assert settled(lambda: fake.events_done >= 2)
        ticks.until(lambda _: sum(int(f.evidence.get("count") or 1) for f in ticks.facts) == 20001)
        assert len([fact for fact in ticks.facts if fact.evidence["xid"] == 95]) < 20
        assert [fact.local for fact in ticks.facts if fact.evidence["xid"] == 79] == ["1"]


def test_many_different_events_are_bounded(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        assert ticks.heard(2)
        fake.world(*(f"event {n} 0 8 {1000 + n}" for n in range(1, 251)))
        ticks.until(lambda _: fake.events_done == 250, seconds=0.01)
        ticks.tick()
        assert len({fact.key for fact in ticks.facts}) == len(ticks.facts) == 250


def test_only_what_a_card_supports_is_asked_for(fake: Fake, tmp_path: Path) -> None:
    # Registering for more is refused as a whole, by the driver and by the fake alike.
    masks = ("set 0 events 0x8", "set 1 events 0x0")
    fake.world(*masks)
    with Ticks(tmp_path) as ticks:
        assert ticks.heard(1)
        fake.world(*masks, "event 1 1 8 79", "event 2 0 8 79")
        ticks.until(lambda _: ticks.facts)
        assert [fact.local for fact in ticks.facts] == ["0"]
        assert fake.calls("nvmlDeviceRegisterEvents", 1) == 0


def test_cards_that_report_nothing_are_said_to_be_unheard(fake: Fake, tmp_path: Path) -> None:
    fake.world("set * events 0x0")
    with Ticks(tmp_path) as ticks:
        ticks.until(lambda r: "no card reports events" in r.absent.get("gpu.events", ""))
        assert ticks.facts == []


def test_a_wait_that_times_out_is_normal(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        assert ticks.heard(2)
        waited = fake.calls("nvmlEventSetWait_v2")
        assert settled(lambda: fake.calls("nvmlEventSetWait_v2") > waited + 20)
        assert "gpu.events" not in ticks.tick().absent
        assert fake.calls("nvmlEventSetCreate") <= 4


@pytest.mark.parametrize("code", [1, 15, 999])
def test_a_broken_stream_of_events_is_said_and_built_anew(fake: Fake, tmp_path: Path, code: int) -> None:
    with Ticks(tmp_path) as ticks:
        assert ticks.heard(2)
        fake.world(f"error - nvmlEventSetWait_v2 {code}")
        reading = ticks.until(lambda r: "gpu.events" in r.absent, seconds=0.01)
        assert f"({code})" in reading.absent["gpu.events"]
        assert "health unknown" in reading.absent["gpu.events"]
        assert column(reading, "power_watts") == (655.0, 655.0)
        fake.world(f"event 1 0 {XID} 31")
        ticks.until(lambda _: ticks.facts, seconds=0.01)
        assert ticks.facts[0].evidence["xid"] == 31


def test_events_are_heard_again_after_the_cards_were_reset(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        assert ticks.heard(2)
        fake.world("generation 1")
        ticks.until(lambda r: column(r, "power_watts") == (655.0, 655.0) and ticks.told(cleared=True))
        assert ticks.heard(2)
        fake.world("generation 1", f"event 1 1 {XID} 31")
        ticks.until(lambda _: any(fact.evidence.get("xid") == 31 for fact in ticks.facts), seconds=0.01)
