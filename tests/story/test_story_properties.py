"""What holds of a story whatever it is told."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.story.hear import hear
from gpuchaos_agent.story.story import MOST_PARTS, Event, Story
from gpuchaos_agent.words.base import Finding, Part
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


TEXTS = (
    *(xid(code, "x", device) for code in (13, 31, 45, 79, 95, 109, 119) for device in (GPU, "0000:0c:00", "...")),
    xid(45, "pid=3, name=p, Ch 0000000c caused by previous Xid 145"),
    xid(45, "pid=3, name=p, Ch 0000000c caused by previous Xid 149", "0000:0c:00"),
    DBE,
    MARKED,
    CONTAINED,
    RESET,
    WELL,
    UUID,
    CRASHCAT,
    "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED]",
    "NVRM: fallen off the bus and is not responding to commands.",
    "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 40 LTSSM Fault Up",
    "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(TEXTS),
        st.sampled_from([0.0, 0.001, 0.5, 4.0, 11.0, 29.0, 31.0, 61.0, 400.0]),
        st.sampled_from([Writer.KERNEL, Writer.KERNEL, Writer.KERNEL, Writer.INJECTED]),
    ),
    max_size=60,
)


def fed(steps: list[tuple[str, float, Writer]], cuts: frozenset[int], story: Story) -> tuple[list[Event], list[Event]]:
    """What is told, and the events there were in the end; at each cut what ended by then is fetched."""
    told: list[Event] = []
    events: list[Event] = []
    now = 1000.0
    for n, (text, wait, writer) in enumerate(steps):
        now += wait
        if n in cuts:
            events += story.ended(now)
        heard = hear(LogRecord(text, writer=writer))
        if heard is None:
            continue
        event = story.tell(heard.finding, key=str(n), time=now, writer=writer, injected_mark=heard.injected_mark)
        told += [event] if event is not None else []
    return told, events + story.close()


@given(STEPS, st.frozensets(st.integers(0, 60)), st.sampled_from([3, 1024]))
@settings(max_examples=100, deadline=None)
def test_whenever_one_looks_the_events_are_the_same(
    steps: list[tuple[str, float, Writer]], cuts: frozenset[int], most_open: int
) -> None:
    told, events = fed(steps, frozenset(), Story(most_open=most_open))
    told_cut, events_cut = fed(steps, cuts, Story(most_open=most_open))
    if most_open < 1024:
        # Ended events that nobody fetches are forgotten where few are kept; those that were fetched are the same.
        events = [event for event in events if event in events_cut]
        events_cut = [event for event in events_cut if event in events]
    assert told == told_cut
    assert sorted(events, key=lambda event: (event.key, event.count)) == sorted(
        events_cut, key=lambda event: (event.key, event.count)
    )


@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_nothing_is_told_more_often_than_it_was_found_and_each_event_once_at_least(
    steps: list[tuple[str, float, Writer]],
) -> None:
    story = Story()
    told, events = fed(steps, frozenset(), story)
    heard = sum(hear(LogRecord(text, writer=writer)) is not None for text, _, writer in steps)
    assert len(told) + story.held_back == heard
    said = Counter(event.key for event in told if not event.finding.evidence.get("cleared"))
    for event in events:
        if event.finding.fault != "none":
            assert said[event.key] >= 1
            assert said[event.key] <= event.count + 1, "once more where a detail names the part"
    assert sum(event.count for event in events if event.finding.fault != "none") <= heard


@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_the_first_fault_of_an_event_is_told_at_once(steps: list[tuple[str, float, Writer]]) -> None:
    story = Story()
    now = 1000.0
    for n, (text, wait, writer) in enumerate(steps):
        now += wait
        heard = hear(LogRecord(text, writer=writer))
        if heard is None:
            continue
        event = story.tell(heard.finding, key=str(n), time=now, writer=writer, injected_mark=heard.injected_mark)
        opened = {open_.key for open_ in story._open.values() if open_.count}
        if heard.finding.part is Part.FAULT and str(n) in opened:
            assert event is not None
            assert event.said == 1


FINDINGS = st.builds(
    Finding,
    fault=st.sampled_from(["a", "b", "none"]),
    severity=st.sampled_from(Severity),
    evidence=st.dictionaries(
        st.sampled_from(["action", "count", "xid", "text", "pid"]), st.none() | st.integers(-1, 3) | st.text(max_size=3)
    ),
    device=st.sampled_from(["", "d1", "d2"]),
    family=st.sampled_from(["", "xid", "sxid", "xid_torn", "spoof", "peermem", "nobody's"]),
    part=st.sampled_from(Part),
)


@given(
    st.lists(st.tuples(FINDINGS, st.none() | st.floats(0, 1e3), st.sampled_from(Writer)), max_size=80),
    st.integers(1, 4),
)
@settings(max_examples=100, deadline=None)
def test_any_findings_at_any_times_are_told_without_an_error_in_bounded_memory(
    said: list[tuple[Finding, float | None, Writer]], most_open: int
) -> None:
    story = Story(most_open=most_open)
    told = 0
    for n, (finding, time, writer) in enumerate(said):
        told += story.tell(finding, key=str(n), time=time, writer=writer) is not None
        assert len(story._open) <= most_open
        assert len(story._done) <= most_open
        assert len(story._standing) <= most_open
        assert all(len(open_.parts) <= MOST_PARTS for open_ in story._open.values())
    assert told + story.held_back == len(said)
    story.close()
    assert not story._open
