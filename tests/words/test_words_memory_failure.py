"""Pages poisoned by an uncorrected error, and whom the kernel told."""

from __future__ import annotations

import pytest
from kernel_words_kit import fault, one, said, without_example

from gpuchaos_agent.words import memory_failure
from gpuchaos_stream.events.base import Severity

SENT = "Memory failure: 0x5f3a21: Sending SIGBUS to trainer:x:8811 due to hardware memory corruption"
OLD = "MCE 0x5f3a21: Killing trainer:x:8811 due to hardware memory corruption fault at 7f0012"
TOUCHED = "MCE: Killing trainer:x:8811 due to hardware memory corruption fault at 7f0012"
ARM = "Memory error may not recovered: 0x5f3a21: Sending SIGBUS to trainer:x:8811 due to hardware memory corruption"
EARLY = "MCE 0x5f3a21: Killing trainer:x:8811 early due to hardware memory corruption"
DONE = "Memory failure: 0x5f3a21: recovery action for dirty LRU page: Recovered"


def test_the_lines_of_one_page_are_one_uncorrected_error_with_its_victim() -> None:
    finding = one([(1.0, SENT), (1.0, DONE)])
    assert (finding.fault, finding.severity, finding.device) == ("mem_ue", Severity.ERROR, "0x5f3a21")
    assert (finding.evidence["victim"], finding.evidence["pid"]) == ("trainer:x", 8811)


@pytest.mark.parametrize("text", [OLD, EARLY, ARM])
def test_older_and_other_wordings_say_the_same(text: str) -> None:
    finding = fault(text)
    assert (finding.fault, finding.evidence["pid"], finding.device) == ("mem_ue", 8811, "0x5f3a21")


def test_a_touched_poisoned_page_names_its_victim() -> None:
    assert fault(TOUCHED).evidence["victim"] == "trainer:x"


@pytest.mark.parametrize(
    "text",
    [
        "Soft offlining pfn 0x5f3a21 at process virtual address 0x7f0000000000",
        "soft offline: 0x5f3a21: page already poisoned",
        "Memory failure: 0x5f3a21: corrupted page was clean: dropped without side effects",
    ],
)
def test_pages_that_are_moved_in_time_say_nothing(text: str) -> None:
    assert said(text) is None


def test_every_wording_of_memory_failure_has_an_example() -> None:
    assert without_example(memory_failure.RULES, [SENT, DONE, TOUCHED]) == []
