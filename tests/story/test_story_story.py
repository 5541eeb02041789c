from __future__ import annotations

from dataclasses import replace

import pytest

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.story.hear import hear
from gpuchaos_agent.story.story import LONGEST_AGAIN_S, MOST_PARTS, Event, Story
from gpuchaos_agent.words.base import Finding
from gpuchaos_stream.events.base import Severity

GPU = "0000:0b:00"


def xid(code: int, body: str = "x", device: str = GPU) -> str:
    return f"NVRM: Xid (PCI:{device}): {code}, {body}"


DBE = xid(48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 2")
MARKED = xid(63, "Row Remapper: New row (0x0000000000000040) marked for remapping, reset gpu to activate.")
CONTAINED = xid(94, "Contained: SM (0x1). RST: No, D-RST: No")
RESET = xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
WELL = xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
UUID = f"NVRM: GPU at PCI:{GPU}: GPU-11111111-2222-4333-8444-555555555555"
CRASHCAT = "NVRM: kgspHealthCheck_TU102: ***************** GSP-CrashCat Report *****************"


class Telling:
    """A story that is fed with texts; the key of each is its number."""

    def __init__(self, again_s: float = 5.0) -> None:
        self.story = Story(again_s)
        self.fed = 0

    def __call__(self, text: str, time: float | None = None, writer: Writer = Writer.KERNEL) -> Event | None:
        heard = hear(LogRecord(text, writer=writer))
        assert heard is not None
        self.fed += 1
        return self.story.tell(
            heard.finding, key=str(self.fed), time=time, writer=writer, injected_mark=heard.injected_mark
        )


@pytest.fixture
def tell() -> Telling:
    return Telling()


def short(event: Event | None) -> tuple[str, str, object] | None:
    if event is None:
        return None
    return event.finding.fault, event.finding.severity.value, event.finding.evidence.get("action")


def test_each_step_is_told_at_once_and_what_adds_nothing_is_held_back(tell: Telling) -> None:
    assert short(tell(DBE, 1.0)) == ("gpu_ecc_dbe", "critical", "drain_then_reset")
    assert tell(MARKED, 1.02) is None
    assert short(tell(CONTAINED, 1.03)) == ("gpu_ecc_dbe", "error", "drain_then_reset")
    assert tell.story.held_back == 1
    (event,) = tell.story.close()
    assert (event.count, event.first, event.last, event.key, event.said) == (3, 1.0, 1.03, "1", 2)
    assert event.finding.evidence["xids"] == "48,63,94"


def test_lines_of_one_exception_are_one_event(tell: Telling) -> None:
    said = [tell(xid(13, f"Graphics Exception: ESR 0x{n:x}=0x0"), n / 1000) for n in range(4)]
    said.append(tell(xid(32, "Channel ID 00000007 intr 02000000"), 0.005))
    assert [event is not None for event in said] == [True, False, False, False, False]
    (event,) = tell.story.close()
    assert (event.count, event.finding.evidence["xids"]) == (5, "13,32")


def test_two_gpus_are_two_events(tell: Telling) -> None:
    assert tell(xid(43), 1.0) is not None
    assert tell(xid(43, device="0000:0c:00"), 1.0) is not None
    assert len(tell.story.close()) == 2


def test_what_comes_after_the_gap_is_another_event(tell: Telling) -> None:
    assert tell(xid(31), 0.0) is not None
    assert tell(xid(31), 30.5) is not None
    assert [event.count for event in tell.story.close()] == [1, 1]


def test_a_record_that_is_late_still_joins(tell: Telling) -> None:
    tell(xid(31), 100.0)
    assert tell(xid(31), 80.0) is None
    (event,) = tell.story.close()
    assert (event.first, event.last) == (80.0, 100.0)


def test_without_times_the_same_device_is_one_event(tell: Telling) -> None:
    tell(xid(145, "RLW_RXPIPE Nonfatal XC0 i0 Link 11 (...)", "..."))
    tell(xid(137, "RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error", "..."))
    (event,) = tell.story.close()
    assert (event.finding.device, event.finding.evidence["xids"]) == ("", "145,137")
    assert (event.finding.evidence["gpu_index"], event.first, event.last) == (0, None, None)


def test_details_alone_say_nothing(tell: Telling) -> None:
    assert tell(UUID, 1.0) is None
    assert tell.story.close() == []


def test_details_before_their_fault_belong_to_it(tell: Telling) -> None:
    assert tell(UUID, 1.0) is None
    event = tell(xid(79, "GPU has fallen off the bus."), 1.001)
    assert event is not None
    assert event.key == "2"
    assert str(event.finding.evidence["uuid"]).startswith("GPU-1111")


def test_a_banner_without_a_name_goes_to_the_first_gpu_that_speaks(tell: Telling) -> None:
    tell(CRASHCAT, 1.0)
    first = tell(xid(120, "GSP task exception: load access page fault"), 1.001)
    second = tell(xid(120, "GSP task exception: load access page fault", "0000:0c:00"), 1.002)
    assert first is not None
    assert second is not None
    assert first.finding.evidence["dump"] == "GSP-CrashCat Report"
    assert "dump" not in second.finding.evidence


def test_a_line_that_names_the_gpu_gives_its_name_to_the_line_that_does_not(tell: Telling) -> None:
    tell("NVRM: The NVIDIA GPU 0000:c1:00.0", 1.0)
    tell("NVRM: (PCI ID: 10de:2330) installed in this system has", 1.0)
    event = tell("NVRM: fallen off the bus and is not responding to commands.", 1.0)
    assert event is not None
    assert (event.finding.fault, event.finding.device, event.finding.local) == ("gpu_lost", "0000:c1:00", "0000:c1:00")
    assert (event.finding.kind, event.finding.evidence["pci_id"]) == ("gpu", "10de:2330")


def test_details_after_their_fault_are_kept_without_a_word(tell: Telling) -> None:
    tell(xid(79, "GPU has fallen off the bus."), 1.0)
    assert tell(f"NVRM: GPU {GPU}.0: GPU serial number is 123.", 1.0) is None
    (event,) = tell.story.close()
    assert (event.count, event.finding.evidence["serial"]) == (1, "123")


def test_what_clears_is_told_with_severity_info_and_ends_the_event(tell: Telling) -> None:
    tell(xid(62, "0000(0000) 00000000 00000000"), 0.0)
    tell(RESET, 1.0)
    event = tell(WELL, 9.0)
    assert event is not None
    assert (event.finding.fault, event.finding.severity, event.finding.evidence["cleared"]) == (
        "gpu_pmu_halt",
        Severity.INFO,
        True,
    )
    assert event.finding.evidence["recovery_action"] == 0
    (ended,) = tell.story.ended(9.0)
    assert (ended.finding.severity, ended.finding.evidence["cleared"]) == (Severity.CRITICAL, True)
    assert tell(xid(62), 10.0) is not None


def test_what_clears_long_after_is_told_of_the_fault_that_stood(tell: Telling) -> None:
    tell(RESET, 0.0)
    assert [event.key for event in tell.story.ended(3600.0)] == ["1"]
    event = tell(WELL, 3601.0)
    assert event is not None
    assert (event.finding.fault, event.finding.severity) == ("gpu_recovery_action", Severity.INFO)
    assert (event.finding.evidence["clears"], event.finding.evidence["cleared"]) == ("1", True)
    assert tell(WELL, 3602.0) is None


def test_what_clears_one_gpu_leaves_what_was_said_of_nobody(tell: Telling) -> None:
    tell(xid(31, device="..."), 0.0)
    assert tell(WELL, 1.0) is None
    assert [event.finding.fault for event in tell.story.close()] == ["none", "gpu_mmu_fault"]


def test_what_clears_nothing_is_not_told_and_is_an_event_without_a_fault(tell: Telling) -> None:
    assert tell(WELL, 0.0) is None
    (event,) = tell.story.close()
    assert (event.finding.fault, event.finding.severity, event.finding.device) == ("none", Severity.INFO, GPU)
    assert event.finding.evidence["recovery_action"] == 0


def test_a_process_adds_nothing_to_what_the_kernel_said(tell: Telling) -> None:
    tell(xid(79, "GPU has fallen off the bus."), 1.0)
    spoof = tell(xid(13), 1.1, Writer.INJECTED)
    ours = tell(xid(13) + " gpuchaos-injected=f1", 1.2, Writer.INJECTED)
    other = tell(xid(13) + " gpuchaos-injected=f2", 1.3, Writer.INJECTED)
    assert [event.finding.fault for event in (spoof, ours, other) if event] == [
        "spoof_or_injected",
        "gpu_engine_exception",
        "gpu_engine_exception",
    ]
    assert ours is not None
    assert (ours.writer, ours.injected_mark, ours.count) == (Writer.INJECTED, True, 1)
    assert len(tell.story.close()) == 4


def test_a_process_cannot_clear_what_the_kernel_said(tell: Telling) -> None:
    tell(RESET, 1.0)
    tell(WELL + " gpuchaos-injected=f1", 2.0, Writer.INJECTED)
    tell(WELL, 2.0, Writer.INJECTED)
    standing = next(event for event in tell.story.close() if event.writer is Writer.KERNEL)
    assert "cleared" not in standing.finding.evidence


def test_findings_without_a_family_are_events_of_their_own_unless_they_are_the_same() -> None:
    story = Story()
    killed = Finding("oom_kill", Severity.ERROR, evidence={"pid": 1, "text": "a"})
    other = replace(killed, evidence={"pid": 2, "text": "b"})
    again = replace(killed, evidence={"pid": 1, "text": "c"})
    said = [
        story.tell(finding, key=str(n), time=1.0, writer=Writer.KERNEL)
        for n, finding in enumerate((killed, other, again))
    ]
    assert [event is not None for event in said] == [True, True, False]
    assert sorted(event.count for event in story.close()) == [1, 2]


def test_a_repeat_counted_by_the_log_counts_as_many() -> None:
    story = Story()
    finding = Finding("nvme_path_failure", Severity.CRITICAL, evidence={"count": 9}, device="nvme0n1")
    event = story.tell(finding, key="a", time=None, writer=Writer.KERNEL)
    assert event is not None
    assert (event.count, event.finding.evidence["count"]) == (9, 9)


def test_a_flood_is_told_rarely_with_its_count_and_keeps_little(tell: Telling) -> None:
    told = [
        event
        for n in range(20_000)
        if (event := tell(xid(95, f"pid={n % 29}, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No"), n / 100))
    ]
    assert [event.first for event in told] == [0.0] * len(told)
    assert told[0].count == 1
    assert told[1].count == 501  # after five seconds, 100 a second
    # 200 s: at 0, 5, 15, 35, 75, 135 and 195.
    assert len(told) == 7
    assert tell.story.held_back == 20_000 - 7
    (open_,) = tell.story._open.values()
    assert len(open_.parts) == MOST_PARTS
    (event,) = tell.story.close()
    assert event.count == 20_000


def test_a_flood_is_never_silent_for_longer_than_a_minute(tell: Telling) -> None:
    last = 0.0
    for n in range(1000):
        if tell(xid(95), float(n)) is not None:
            assert n - last <= LONGEST_AGAIN_S
            last = float(n)
    assert last > 900


def test_what_was_worst_is_not_forgotten_in_a_flood(tell: Telling) -> None:
    for n in range(100):
        tell(xid(13), n / 100)
    tell(xid(109, "pid=1, name=x, Ch 00000008, errorString CTX SWITCH TIMEOUT"), 1.0)
    for n in range(500):
        tell(xid(45), 1.0 + n / 100)
    (event,) = tell.story.close()
    assert (event.finding.fault, event.finding.severity) == ("gpu_ctxsw_timeout", Severity.CRITICAL)


def test_many_devices_at_once_are_bounded_and_the_oldest_is_ended_first() -> None:
    story = Story(most_open=8)
    for n in range(100):
        finding = Finding("mem_ce", Severity.WARNING, device=f"dimm{n}", evidence={"dimm": f"{n}"})
        story.tell(finding, key=str(n), time=n / 1000, writer=Writer.KERNEL)
    assert len(story._open) == 8
    assert [event.key for event in story.ended(0.1)] == [str(n) for n in range(84, 92)]
    assert story.forgotten == 84


def test_a_machine_check_is_told_again_when_a_later_line_names_its_cpu_and_bank(tell: Telling) -> None:
    first = tell("mce: [Hardware Error]: Machine check events logged", 1.0)
    assert short(first) == ("mce_corrected", "warning", "monitor")
    assert first is not None
    assert "cpu" not in first.finding.evidence
    named = tell("[Hardware Error]: CPU:3 (19:1:1) MC7_STATUS[Over|CE|MiscV]: 0xdc2040000000011b", 1.01)
    assert named is not None
    assert (named.key, named.said) == ("1", 2)
    assert (named.finding.evidence["cpu"], named.finding.evidence["bank"]) == (3, 7)


def test_an_event_is_told_again_for_a_name_once_and_not_for_what_it_had_a_name_of(tell: Telling) -> None:
    told = [
        tell(text, 1.0 + at / 100)
        for at, text in enumerate(
            (
                "mce: [Hardware Error]: Machine check events logged",
                "[Hardware Error]: CPU:3 (19:1:1) MC7_STATUS[Over|CE|MiscV]: 0xdc2040000000011b",
                "[Hardware Error]: CPU:4 (19:1:1) MC8_STATUS[Over|CE|MiscV]: 0xdc2040000000011b",
                "mce: [Hardware Error]: Machine check events logged",
            )
        )
    ]
    assert [event is not None for event in told] == [True, True, False, False]


def test_what_is_named_after_the_gap_is_another_event(tell: Telling) -> None:
    assert tell("mce: [Hardware Error]: Machine check events logged", 1.0) is not None
    assert tell("[Hardware Error]: CPU:3 (19:1:1) MC7_STATUS[Over|CE|MiscV]: 0xdc2040000000011b", 100.0) is None


def test_without_times_no_event_is_forgotten_where_ended_ones_are_fetched() -> None:
    story = Story(most_open=8)
    fetched = []
    for number in range(100):
        heard = hear(LogRecord(xid(79, device=f"0000:{number:02x}:00")))
        assert heard is not None
        story.tell(heard.finding, key=str(number), time=None, writer=Writer.KERNEL)
        fetched += story.ended(None)
    assert len(fetched) + len(story.close()) == 100
    assert story.forgotten == 0
