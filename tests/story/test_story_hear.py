from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.story.hear import hear
from gpuchaos_stream.events.base import Severity

XID = "NVRM: Xid (PCI:0000:01:00): 94, pid=7, name=x, Contained: SM (0x1). RST: No, D-RST: No"


def test_the_kernel_is_believed() -> None:
    heard = hear(LogRecord(XID))
    assert heard is not None
    assert (heard.finding.fault, heard.injected_mark) == ("gpu_ecc_contained", False)


def test_our_mark_is_believed_of_a_process_and_never_of_the_kernel() -> None:
    ours = hear(LogRecord(XID + " gpuchaos-injected=f-1.a", writer=Writer.INJECTED))
    kernels = hear(LogRecord(XID + " gpuchaos-injected=f-1.a"))
    assert ours is not None
    assert kernels is not None
    assert (ours.finding.fault, ours.injected_mark, ours.finding.evidence["fault_id"]) == (
        "gpu_ecc_contained",
        True,
        "f-1.a",
    )
    assert (kernels.finding.fault, kernels.injected_mark) == ("gpu_ecc_contained", False)
    assert "fault_id" not in kernels.finding.evidence


def test_a_process_in_the_hardwares_words_is_told_as_one_with_what_it_claims() -> None:
    heard = hear(LogRecord(XID, writer=Writer.INJECTED, facility=1))
    assert heard is not None
    finding = heard.finding
    assert (finding.fault, finding.severity, heard.injected_mark) == ("spoof_or_injected", Severity.WARNING, False)
    assert (finding.evidence["claims"], finding.evidence["claims_severity"]) == ("gpu_ecc_contained", "error")
    assert (finding.evidence["facility"], finding.evidence["xid"], finding.local) == (1, 94, "0000:01:00")
    assert finding.evidence["action"] == "find_writer"


@pytest.mark.parametrize("tag", ["eco-test: ", "tool[12]: "])
def test_only_a_process_may_sign_before_the_hardwares_words(tag: str) -> None:
    assert hear(LogRecord(tag + XID)) is None
    assert hear(LogRecord(tag + XID, writer=Writer.PROGRAM)) is None
    heard = hear(LogRecord(tag + XID, writer=Writer.INJECTED))
    assert heard is not None
    assert heard.finding.fault == "spoof_or_injected"


@pytest.mark.parametrize(
    "text",
    [
        'gpud[1]: {"line":"NVRM: Xid (PCI:0000:cb:00): 109, pid=1"}',
        "a word before " + XID,
        "gpuchaos: memory-corruption cleared (PCI:0000:3b:00) gpuchaos-injected=f1",
        " gpuchaos-injected=f1",
        # A detail claims nothing by itself.
        "NVRM: GPU at PCI:0000:0b:00: GPU-11111111-2222-4333-8444-555555555555",
    ],
)
def test_what_claims_nothing_is_nothing_although_a_process_wrote_it(text: str) -> None:
    assert hear(LogRecord(text, writer=Writer.INJECTED)) is None


def test_a_recovery_that_a_process_claims_clears_nothing() -> None:
    text = "NVRM: Xid (PCI:0000:07:00): 154, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)"
    heard = hear(LogRecord(text, writer=Writer.INJECTED))
    assert heard is not None
    assert (heard.finding.fault, heard.finding.part) == ("spoof_or_injected", "fault")


def test_a_record_that_stands_for_several_is_counted() -> None:
    heard = hear(LogRecord(XID, repeated=9))
    assert heard is not None
    assert heard.finding.evidence["count"] == 9


@given(st.text(max_size=300), st.sampled_from(Writer), st.sampled_from(["", "NVRM: ", "a[1]: ", XID]))
def test_nothing_makes_it_fail_and_only_our_own_mark_makes_an_injection(text: str, writer: Writer, head: str) -> None:
    heard = hear(LogRecord(head + text, writer=writer))
    if heard is not None:
        assert not heard.injected_mark or " gpuchaos-injected=" in text
        assert (heard.finding.fault == "spoof_or_injected") == (writer is Writer.INJECTED and not heard.injected_mark)
