"""Processes that the kernel ends, with the library they were in."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_words_kit import agrees, events, fault, said, without_example

from gpuchaos_agent.words import segfault
from gpuchaos_stream.events.base import Severity

FAULTS: list[tuple[str, dict[str, Any]]] = [
    (
        "pt_main_thread[9931]: segfault at 18 ip 7fa1c2 sp 7ffe error 4 in libnccl.so.2.21.5[7fa1+e1c] likely on CPU 3",
        {"name": "pt_main_thread", "pid": 9931, "path": "libnccl.so.2.21.5", "cause": "segfault"},
    ),
    (
        "a[1] b[22]: segfault at 0 ip 0000000000000000 sp 00007ffe00112233 error 14",
        {"name": "a[1] b", "pid": 22, "path": None},
    ),
    (
        "traps: python3[77] general protection fault ip:7f0011 sp:7ffe22 error:0 in libcuda.so.550.54[7f0000+4000]",
        {"name": "python3", "pid": 77, "path": "libcuda.so.550.54"},
    ),
    ("traps: python3[77] trap invalid opcode ip:7f0011 sp:7ffe22 error:0", {"cause": "invalid opcode"}),
    (
        "python3[77]: unhandled level 2 translation fault (11) at 0x00000018, esr 0x92000006, in libnccl.so.2[ff0+1]",
        {"name": "python3", "pid": 77},
    ),
]


@pytest.mark.parametrize(("text", "wanted"), FAULTS)
def test_an_ended_process_is_named_with_its_host_pid(text: str, wanted: dict[str, Any]) -> None:
    finding = fault(text)
    assert (finding.fault, finding.severity) == ("app_segfault", Severity.ERROR)
    agrees(finding, wanted)
    assert finding.evidence["scope"] == "app"


@pytest.mark.parametrize(
    "text",
    [
        "python3[77]: segfault at nowhere in particular",
        "Code: 48 8b 47 18 <48> 8b 40 08",
        "traps: PANIC: double fault",
        'audit: type=1701 audit(1700000000.1:7): comm="python3" sig=11 res=1',
    ],
)
def test_what_only_looks_like_it_says_nothing(text: str) -> None:
    assert said(text) is None


def test_threads_of_one_process_are_one_event() -> None:
    assert len(events([(0.0, FAULTS[0][0]), (0.0, FAULTS[0][0])])) == 1


def test_every_wording_of_ended_processes_has_an_example() -> None:
    assert without_example(segfault.RULES, [text for text, _ in FAULTS]) == []
