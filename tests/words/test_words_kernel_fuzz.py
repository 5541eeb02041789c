"""Hostile and broken texts: no exception, no slow pattern, no fault out of random characters."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_agent import catalogue
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import (
    aer,
    disk,
    edac,
    efa,
    filesystem,
    hung_task,
    lockup,
    mce,
    memory_failure,
    mlx5,
    netdev_watchdog,
    nfs,
    nic_link,
    nvme,
    oom,
    panic,
    pciehp,
    raid,
    remote_fs,
    segfault,
    thermal,
)
from gpuchaos_agent.words.base import NONE, TEXT_KEPT, Finding, Part

SPEAKERS: Final[tuple[ModuleType, ...]] = (
    *(aer, disk, edac, efa, filesystem, hung_task, lockup, mce, memory_failure, mlx5, netdev_watchdog, nfs),
    *(nic_link, nvme, oom, panic, pciehp, raid, remote_fs, segfault, thermal),
)
#: Longest that a text may take one speaker, seconds of this thread's own time.
BOUND_S: Final = 0.010
LONGEST: Final = 16 * 1024

#: Beginnings that get a pattern past its anchor, before what may make it work hard.
HEADS: Final = (
    *("", "mlx5_core 0000:01:00.0: ", "mlx5_core 0000:01:00.0 eth0: ", "pcieport 0000:01:00.0: AER: "),
    *(
        "nvme nvme0: I/O ",
        "EDAC MC0: 1 CE ",
        "EDAC MC0: 1 CE a on ",
        "INFO: task ",
        "watchdog: BUG: soft lockup - CPU#1 ",
    ),
    *(
        "oom-kill:constraint=CONSTRAINT_NONE,",
        "Out of memory: Killed process 1 (",
        "a[1]: segfault at 0 ip 0 sp 0 error 4",
    ),
    *("Memory failure: 0x1: Sending SIGBUS to ", "XFS (sda): Corruption of in-memory ", "nfs: server "),
    *("EXT4-fs (sda): Delayed block allocation failed for ", "general protection fault", "CPU: 1 PID: 1 Comm: "),
    *(
        "Lustre: ",
        "traps: a[1] general protection fault ip:0 sp:0 error:0",
        "[Hardware Error]: ",
        "NFS: state manager: ",
    ),
    *("nvme0n1: ", "a 0000:01:00.0:    [ 1] ", "igb: ", "watchdog: BUG: soft lockup - CPU#1 stuck for 9s! ["),
)
FILLINGS: Final = (
    *("a", " ", "0", ":", "[", "(", ")", "/", "-", "\n", "a ", "a: ", "a:1 ", "(a) ", "[1]: ", " on ", ",task="),
    *(",task=a,pid=1", " in ", "a[1]", "link ", "0x0 ", "A a", "\n nfs_", "::", " (page:0x", "?", " error ", "nfs_a"),
)


def cost(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def reads(speaker: ModuleType, record: LogRecord) -> Finding | None:
    finding: Finding | None = speaker.read(record)
    return finding


def shape(finding: Finding | None) -> None:
    if finding is None:
        return
    assert finding.fault == NONE or finding.fault in catalogue.fault_names()
    assert len(str(finding.evidence.get("text") or "")) <= TEXT_KEPT
    assert all(isinstance(value, str | int | float | bool) for value in finding.evidence.values())
    assert finding.part is not Part.FAULT or finding.fault == NONE or finding.evidence["action"]


@pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_no_text_of_one_repeated_piece_is_slow(speaker: ModuleType) -> None:
    slow = []
    for head in (*HEADS, *speaker.HINTS):
        for filling in FILLINGS:
            record = LogRecord(text=(head + filling * LONGEST)[:LONGEST])
            taken = min(cost(lambda record=record: speaker.read(record)) for _ in range(2))  # type: ignore[misc]
            if taken > BOUND_S:
                slow.append((head, filling, round(taken * 1000, 1)))
    assert slow == []


PIECES: Final = st.one_of(
    st.sampled_from([*HEADS, *FILLINGS, *(hint for speaker in SPEAKERS for hint in speaker.HINTS)]),
    st.text(max_size=20),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=60).map("".join), st.sampled_from(Writer))
def test_texts_of_familiar_pieces_never_raise_and_are_never_slow(text: str, writer: Writer) -> None:
    record = LogRecord(text=text, writer=writer, tag="mcelog")
    for speaker in SPEAKERS:
        shape(reads(speaker, record))
        assert min(cost(lambda speaker=speaker: speaker.read(record)) for _ in range(2)) <= BOUND_S  # type: ignore[misc]


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=400))
def test_random_text_is_no_fault(text: str) -> None:
    record = LogRecord(text=text)
    for speaker in SPEAKERS:
        assert reads(speaker, record) is None


def test_every_fault_action_and_family_of_the_tables_is_known() -> None:
    rules = [rule for speaker in SPEAKERS for rule in getattr(speaker, "RULES", ())]
    families = {family.name for speaker in SPEAKERS for family in speaker.FAMILIES}
    assert len(rules) > 100
    assert {rule.fault for rule in rules} - set(catalogue.fault_names()) == set()
    assert {rule.action for rule in rules if rule.action} - set(catalogue.actions()) == set()
    assert {rule.family for rule in rules if rule.family} - families == set()
    assert [
        rule.text.pattern for rule in rules if rule.part is Part.FAULT and rule.fault != NONE and not rule.action
    ] == []


def test_every_pattern_of_the_tables_says_since_when_it_is_written_so() -> None:
    named = [rule for speaker in SPEAKERS for rule in getattr(speaker, "RULES", ())]
    assert [rule.text.pattern for rule in named if not rule.since] == []
