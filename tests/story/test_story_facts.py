from __future__ import annotations

from gpuchaos_agent import catalogue
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.story.facts import fact_of
from gpuchaos_agent.story.hear import hear
from gpuchaos_agent.story.story import Event, Story
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin

XID = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def told(text: str, story: Story, *, key: str, time: float, writer: Writer = Writer.KERNEL) -> Event:
    heard = hear(LogRecord(text, writer=writer))
    assert heard is not None
    event = story.tell(heard.finding, key=key, time=time, writer=writer, injected_mark=heard.injected_mark)
    assert event is not None
    return event


def test_a_fact_says_what_where_whose_and_what_to_do() -> None:
    fact = fact_of(told(XID, Story(), key="k1", time=5.0), key="k1", time=5.0)
    assert (fact.fault, fact.severity, fact.kind, fact.local) == ("gpu_lost", Severity.CRITICAL, "gpu", "0000:01:00")
    assert (fact.key, fact.time, fact.origin, fact.injected_mark) == ("k1", 5.0, Origin.KERNEL, False)
    assert fact.evidence["advice"] == catalogue.advice("reboot_node") != ""
    assert fact.evidence["device"] == "0000:01:00"
    assert "opened" not in fact.evidence


def test_a_later_telling_names_the_record_that_opened_its_event() -> None:
    story = Story()
    told("NVRM: Xid (PCI:0000:01:00): 13, Graphics Exception: ESR 0x4041b0=0x0", story, key="k1", time=5.0)
    fact = fact_of(told(XID, story, key="k2", time=6.5), key="k2", time=6.5)
    assert (fact.key, fact.evidence["opened"], fact.evidence["since"]) == ("k2", "k1", 5.0)


def test_a_marked_record_of_a_process_is_a_test_and_never_the_kernels() -> None:
    event = told(XID + " gpuchaos-injected=f1", Story(), key="k", time=0.0, writer=Writer.INJECTED)
    fact = fact_of(event, key="k", time=0.0)
    assert (fact.origin, fact.injected_mark, fact.evidence["fault_id"]) == (Origin.PROCESS, True, "f1")


def test_what_was_cleared_has_no_advice() -> None:
    story = Story()
    told(
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (PF FLR)",
        story,
        key="k1",
        time=0.0,
    )
    event = told(
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)",
        story,
        key="k2",
        time=9.0,
    )
    fact = fact_of(event, key="k2", time=9.0)
    assert (fact.fault, fact.severity, fact.evidence["cleared"]) == ("gpu_recovery_action", Severity.INFO, True)
    assert "advice" not in fact.evidence


def test_more_evidence_of_the_source_is_added() -> None:
    fact = fact_of(told(XID, Story(), key="k1", time=5.0), key="k1", time=5.0, more={"seq": 7})
    assert fact.evidence["seq"] == 7


def test_every_action_has_one_sentence() -> None:
    assert all(sentence and sentence.endswith(".") for sentence in catalogue.actions().values())
