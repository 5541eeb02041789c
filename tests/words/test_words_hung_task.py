"""Tasks that hang, with names as tasks have them, and whose fault it is that they hang."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_words_kit import events, fault, one, said

from gpuchaos_stream.events.base import Severity

HUNG = "INFO: task {}:{} blocked for more than 122 seconds."
FRAME = " nfs_wait_bit_killable+0x1f/0x80 [nfs]"


@pytest.mark.parametrize("task", ["python3", "kworker/u256:3", "dp worker: 4", "jbd2/nvme1n1p4-", "a:1:2"])
def test_a_task_keeps_its_whole_name(task: str) -> None:
    finding = fault(HUNG.format(task, 4821))
    assert (finding.fault, finding.severity) == ("hung_task", Severity.ERROR)
    assert (finding.evidence["task"], finding.evidence["pid"], finding.evidence["seconds"]) == (task, 4821, 122)


def test_tasks_that_hang_together_are_one_event_of_the_first() -> None:
    finding = one([(0.0, HUNG.format("first", 1)), (0.1, HUNG.format("second", 2)), (123.0, HUNG.format("first", 1))])
    assert (finding.evidence["task"], finding.evidence["count"]) == ("first", 3)


def test_a_stack_in_nfs_makes_it_the_servers_fault() -> None:
    stack = ["Call Trace:", " <TASK>", " __schedule+0x2d0/0x860", " ? __wait_on_bit+0x4b/0x140", FRAME]
    finding = one([(0.0, HUNG.format("cp", 77)), *((0.001, text) for text in stack)])
    assert (finding.fault, finding.evidence["cause"]) == ("nfs_unresponsive", "hung_task")
    assert finding.evidence["frame"] == "nfs_wait_bit_killable"
    assert finding.evidence["action"] == "check_nfs_server"


def test_a_stack_within_the_same_record_is_seen_as_well() -> None:
    finding = one([HUNG.format("cp", 77) + "\nCall Trace:\n ? rpc_wait_bit_killable+0x1e/0xa0 [sunrpc]"])
    assert finding.fault == "nfs_unresponsive"


def test_a_stack_elsewhere_does_not_make_it_the_servers_fault() -> None:
    finding = one([(0.0, HUNG.format("cp", 77)), (0.001, " xfs_buf_lock+0x32/0xf0 [xfs]")])
    assert finding.fault == "hung_task"


@pytest.mark.parametrize(
    "text",
    [
        FRAME,
        "task:cp              state:D stack:    0 pid:   77 ppid:     1 flags:0x00000004",
        '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
        "hung_task: blocked for more than 120 seconds is the limit",
        "nfs_mount: started",
    ],
)
def test_a_frame_or_a_hint_alone_concludes_nothing(text: str) -> None:
    assert events([text]) == []


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=40), st.integers(1, 2**22))
def test_any_name_a_task_can_have_is_kept(name: str, pid: int) -> None:
    finding = said(HUNG.format(name, pid))
    assert finding is not None
    assert (finding.evidence["task"], finding.evidence["pid"]) == (name, pid)
