from __future__ import annotations

from gpuchaos_agent import catalogue
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.story.chains import CHAINS, MOST_CAUSES, Causes, When
from gpuchaos_agent.story.hear import hear
from gpuchaos_agent.story.story import Event, Story

LOST = "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
SWITCH = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 40 LTSSM Fault Up"
TORN = "NVRM: Xid (PCI:0000:92:00): 45, pid=1, name=train, Ch 00000001"
PEERMEM = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"


def events(*said: tuple[float | None, str], writer: Writer = Writer.KERNEL) -> dict[str, Event]:
    """By fault, what becomes of texts at their times; the key of each is its text."""
    story = Story()
    for time, text in said:
        heard = hear(LogRecord(text, writer=writer))
        assert heard is not None
        story.tell(heard.finding, key=text, time=time, writer=writer, injected_mark=heard.injected_mark)
    return {event.finding.fault: event for event in story.close()}


def follows(event: Event) -> tuple[object, object]:
    return event.finding.evidence.get("follows"), event.finding.evidence.get("follows_fault")


def test_what_comes_of_a_lost_gpu_names_it() -> None:
    found = events((100.0, LOST), (101.0, TORN), (112.0, SWITCH), (130.0, PEERMEM))
    assert follows(found["gpu_lost"]) == (None, None)
    for fault in ("gpu_channel_reset", "nvswitch_link_fatal", "gpu_peermem_invalid_context"):
        assert follows(found[fault]) == (LOST, "gpu_lost")


def test_what_follows_keeps_its_severity() -> None:
    assert events((100.0, LOST), (112.0, SWITCH))["nvswitch_link_fatal"].finding.severity == "critical"


def test_what_was_before_or_much_later_is_no_consequence() -> None:
    assert follows(events((99.0, SWITCH), (100.0, LOST))["nvswitch_link_fatal"]) == (None, None)
    assert follows(events((100.0, LOST), (161.0, SWITCH))["nvswitch_link_fatal"]) == (None, None)


def test_records_that_arrive_late_are_judged_by_their_time() -> None:
    assert follows(events((100.0, LOST), (98.0, SWITCH))["nvswitch_link_fatal"]) == (None, None)


def test_without_times_the_order_counts() -> None:
    assert follows(events((None, LOST), (None, SWITCH))["nvswitch_link_fatal"]) == (LOST, "gpu_lost")
    assert follows(events((None, SWITCH), (None, LOST))["nvswitch_link_fatal"]) == (None, None)


def test_with_the_same_stamp_the_order_counts() -> None:
    assert follows(events((5.0, LOST), (5.0, SWITCH))["nvswitch_link_fatal"]) == (LOST, "gpu_lost")
    assert follows(events((5.0, SWITCH), (5.0, LOST))["nvswitch_link_fatal"]) == (None, None)


def test_an_event_is_a_cause_from_when_it_is_known_as_one() -> None:
    harmless = LOST.replace(": 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", ": 13, x")
    found = events((1.0, harmless), (2.0, SWITCH), (3.0, LOST))
    assert follows(found["nvswitch_link_fatal"]) == (None, None)


def test_the_first_of_several_causes_is_named() -> None:
    first = LOST.replace("91:00", "43:00")
    found = events((90.0, first), (100.0, LOST), (112.0, SWITCH))
    assert follows(found["nvswitch_link_fatal"]) == (first, "gpu_lost")


def test_an_injected_record_is_no_cause_of_what_the_hardware_says() -> None:
    story = Story()
    for time, text, writer in ((1.0, LOST + " gpuchaos-injected=f1", Writer.INJECTED), (2.0, SWITCH, Writer.KERNEL)):
        heard = hear(LogRecord(text, writer=writer))
        assert heard is not None
        story.tell(heard.finding, key=text, time=time, writer=writer, injected_mark=heard.injected_mark)
    assert follows(story.close()[-1]) == (None, None)


def test_every_chain_is_of_known_faults_and_none_begins_with_itself_alone() -> None:
    names = set(catalogue.fault_names())
    for chain in CHAINS:
        assert chain.causes <= names
        assert chain.effects <= names
        assert chain.effects - chain.causes


def test_causes_are_bounded() -> None:
    causes = Causes()
    for n in range(10 * MOST_CAUSES):
        causes.note("gpu_lost", key=str(n), when=When(float(n), n), realm="")
    assert len(causes._told) == MOST_CAUSES
