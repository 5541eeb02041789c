"""The OOM killer: three lines, one victim; its own limit or the node's memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_words_kit import events, fault, one, said

from gpuchaos_stream.events.base import Severity

INVOKED = "dataloader_3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0"
MEMCG = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job-17,mems_allowed=0-3,"
    "oom_memcg=/jobs/17,task_memcg=/jobs/17/rank5,task=train.py,pid=70123,uid=1001"
)
KILLED = (
    "Memory cgroup out of memory: Killed process 70123 (train.py) total-vm:9000000kB, anon-rss:8000000kB, "
    "file-rss:0kB, shmem-rss:0kB, UID:1001 pgtables:17000kB oom_score_adj:0"
)
REAPED = "oom_reaper: reaped process 70123 (train.py), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"
GLOBAL = "Out of memory: Killed process 512 (a) b) total-vm:1024kB, anon-rss:12kB, file-rss:0kB, shmem-rss:0kB, UID:0"


def test_the_lines_of_a_kill_are_one_event_with_victim_and_limit() -> None:
    finding = one([(9.0, text) for text in (INVOKED, MEMCG, KILLED, REAPED)])
    assert (finding.fault, finding.severity) == ("oom_kill", Severity.ERROR)
    evidence = finding.evidence
    assert (evidence["victim"], evidence["pid"], evidence["comm"]) == ("train.py", 70123, "dataloader_3")
    assert (evidence["constraint"], evidence["scope"], evidence["path"]) == (
        "CONSTRAINT_MEMCG",
        "app",
        "/jobs/17/rank5",
    )
    assert evidence["action"] == "raise_memory_limit"


def test_the_last_line_alone_is_enough() -> None:
    finding = fault(KILLED)
    assert (finding.evidence["victim"], finding.evidence["pid"]) == ("train.py", 70123)
    assert finding.evidence["constraint"] == "CONSTRAINT_MEMCG"


def test_a_node_without_memory_is_not_the_programs_limit() -> None:
    finding = one([MEMCG.replace("MEMCG", "NONE").replace("70123", "512"), GLOBAL])
    assert (finding.evidence["scope"], finding.evidence["action"]) == ("node", "free_memory")
    assert fault(GLOBAL).evidence["victim"] == "a) b"


def test_the_wording_before_kernel_5_3_is_read() -> None:
    first = "Memory cgroup out of memory: Kill process 812 (worker) score 901 or sacrifice child"
    assert fault(first).evidence["pid"] == 812


def test_two_victims_are_two_events() -> None:
    other = KILLED.replace("70123", "70124")
    assert {event.finding.evidence["pid"] for event in events([(1.0, KILLED), (1.1, other)])} == {70123, 70124}


def test_a_node_that_finds_nobody_to_kill_is_lost() -> None:
    finding = fault("Kernel panic - not syncing: System is deadlocked on memory")
    assert finding.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    "text",
    [
        INVOKED,
        REAPED,
        "OOM killer enabled.",
        "Out of memory: the agent could not allocate",
        "CUDA: Out of memory: Killed process",
        "memory: usage 62914560kB, limit 62914560kB, failcnt 812",
        "app: " + KILLED,
    ],
)
def test_who_asked_and_who_only_mentions_it_conclude_nothing(text: str) -> None:
    assert events([text]) == []


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=15), st.integers(1, 2**22))
def test_any_name_a_process_can_have_keeps_its_pid(name: str, pid: int) -> None:
    finding = said(f"Out of memory: Killed process {pid} ({name}) total-vm:1kB, anon-rss:1kB, file-rss:0kB")
    assert finding is not None
    assert finding.evidence["pid"] == pid
