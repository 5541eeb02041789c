"""The kernel in trouble with itself."""

from __future__ import annotations

import pytest
from kernel_words_kit import events, fault, one, without_example

from gpuchaos_agent.words import panic
from gpuchaos_stream.events.base import Severity

WHERE = "CPU: 21 UID: 0 PID: 30551 Comm: nv_queue Tainted: P           OE      6.12.0 #1"
OOPSES = [
    "BUG: unable to handle page fault for address: ffffa0c1deadbeef",
    "BUG: unable to handle kernel paging request at ffffa0c1deadbeef",
    "BUG: kernel NULL pointer dereference, address: 0000000000000018",
    "kernel BUG at mm/slub.c:4391!",
    "Unable to handle kernel NULL pointer dereference at virtual address 0000000000000018",
    "Oops: 0002 [#1] PREEMPT SMP NOPTI",
    "Internal error: Oops: 0000000096000004 [#1] SMP",
    "general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#1] SMP PTI",
    "Oops: general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#1] SMP",
]
PANIC = "Kernel panic - not syncing: Fatal exception in interrupt"


@pytest.mark.parametrize("text", OOPSES)
def test_an_oops_is_critical_in_all_wordings(text: str) -> None:
    finding = fault(text)
    assert (finding.fault, finding.severity) == ("kernel_oops", Severity.CRITICAL)


def test_an_oops_with_its_lines_is_one_event_with_who_ran() -> None:
    finding = one([OOPSES[2], "#PF: supervisor read access in kernel mode", OOPSES[5], WHERE])
    assert (finding.evidence["cpu"], finding.evidence["comm"], finding.evidence["pid"]) == (21, "nv_queue", 30551)
    assert finding.evidence["cause"] == "kernel NULL pointer dereference"


def test_a_panic_says_why() -> None:
    assert fault(PANIC).fault == "kernel_panic"
    assert fault(PANIC).evidence["cause"] == "Fatal exception in interrupt"


@pytest.mark.parametrize(
    "text",
    [
        WHERE,
        "Kernel command line: console=ttyS0 panic=1 oops=panic",
        "traps: python3[77] general protection fault ip:7f00 sp:7ffe error:0",
        "BUG: Bad page state in process python3  pfn:1f00",
        "kdump: Kernel panic - not syncing: quoted",
    ],
)
def test_a_command_line_a_program_and_a_quotation_are_no_oops(text: str) -> None:
    assert [event.finding.fault for event in events([text]) if event.finding.fault.startswith("kernel")] == []


def test_every_wording_of_the_kernels_own_trouble_has_an_example() -> None:
    assert without_example(panic.RULES, [PANIC, *OOPSES, WHERE]) == []
