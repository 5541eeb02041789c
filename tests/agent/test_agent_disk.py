"""What is on disk survives: the journal, the remembered commands, the outbox."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from agent_kit import WALL, Bench, command, signed
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_agent.journal import EntryState, Journal
from gpuchaos_agent.nonces import Seen
from gpuchaos_agent.outbox import Ring, Spool
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.envelope import Record
from gpuchaos_stream.events.fault import FaultPhase

P = FaultPhase


def record(number: int, size: int = 10) -> Record:
    return Record(topics.FAULTS, "c1", "c1", f"{number}:{'ä' * size}".encode(), [("ce_id", str(number).encode())])


# The journal


def test_a_restart_undoes_what_the_journal_holds_and_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.inject("f1")
    bench.inject("f2")
    bench.restart()
    assert not bench.node.broken
    assert [(e.fault_id, e.reason) for e in bench.said(P.UNDONE)] == [
        ("f2", "agent restarted"),
        ("f1", "agent restarted"),
    ]


def test_after_a_reboot_the_reason_is_the_reboot(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.inject()
    bench.boot_id = "boot-2"
    bench.restart()
    assert bench.said(P.UNDONE)[0].reason == "node rebooted"


@pytest.mark.parametrize(("writer", "kept"), [(os.getppid(), True), (2**22 + 1, False)])
def test_a_write_under_way_in_another_process_is_left_alone_and_a_dead_one_is_swept(
    tmp_path: Path, writer: int, kept: bool
) -> None:
    under_way = tmp_path / f".f1.json.{writer}.tmp"
    under_way.write_text("{")
    assert Journal(tmp_path).read() == ([], [])
    assert under_way.exists() is kept


def test_what_is_undone_is_not_undone_again_at_the_next_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.inject()
    bench.give(signed(command(CommandKind.UNDO, WALL, fault_id="f1")))
    bench.restart()
    assert bench.node.undos == ["f1"]
    assert len(bench.said(P.UNDONE)) == 1


def test_an_undo_that_was_not_told_before_the_kill_is_told_at_the_next_start(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.inject()
    journal = Journal(tmp_path / "journal")
    (entry,), _ = journal.read()
    journal.write(entry.model_copy(update={"state": EntryState.UNDONE, "undone_at": WALL + 3, "reason": "halt"}))
    bench.node.broken.clear()
    bench.restart()
    (undone,) = bench.said(P.UNDONE)
    assert (undone.time, undone.reason, undone.evidence) == (WALL + 3, "halt", {"held_s": 3.0})


def test_a_fault_of_a_strategy_that_is_gone_is_reported_and_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.inject()
    executor = bench.make(strategies={})
    executor.start(bench.now)
    assert "does not know" in bench.said(P.UNDO_FAILED)[0].reason
    assert len(executor.active) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"\x00\xff", b"[]", b'{"fault_id": "f1"}', b'{"fault_id": "other"}'])
def test_a_broken_journal_file_is_reported_and_kept_aside(tmp_path: Path, content: bytes) -> None:
    bench = Bench(tmp_path)
    bench.inject("f1")
    bench.inject("f2")
    (tmp_path / "journal" / "f1.json").write_bytes(content)
    bench.restart()
    (damage,) = bench.said(P.UNDO_FAILED)
    assert damage.fault_id == "f1"
    assert set(bench.node.broken) == {"f1"}
    assert [path.read_bytes() for path in (tmp_path / "journal" / "aside").iterdir()] == [content]
    bench.restart()
    assert len(bench.said(P.UNDO_FAILED)) == 1
    assert [item.fault_id for item in bench.executor.unread] == ["f1"]
    bench.inject("f3")
    assert "cannot read what it holds of f1" in bench.said(P.REFUSED)[-1].reason
    assert Journal(tmp_path / "journal").forget("f1")
    assert bench.executor.unread == []
    bench.inject("f4")
    assert "f4" in bench.node.broken


@settings(max_examples=50, deadline=None)
@given(cut=st.integers(0, 400))
def test_a_journal_file_cut_anywhere_never_stops_the_start(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    bench = Bench(tmp_path_factory.mktemp("cut"))
    bench.inject("f1")
    path = bench.folder / "journal" / "f1.json"
    path.write_bytes(path.read_bytes()[:cut])
    bench.restart()
    assert bench.said(P.UNDO_FAILED)


# Remembered commands


def test_what_was_seen_is_seen_after_a_restart_until_it_ends(tmp_path: Path) -> None:
    Seen(tmp_path / "s", now=0).add("a", until=10, now=0)
    assert "a" in Seen(tmp_path / "s", now=9)
    assert "a" not in Seen(tmp_path / "s", now=11)


def test_a_torn_last_line_loses_only_itself(tmp_path: Path) -> None:
    Seen(tmp_path / "s", now=0).add("a", "b", until=10, now=0)
    text = (tmp_path / "s").read_text()
    (tmp_path / "s").write_text(text[:-5])
    seen = Seen(tmp_path / "s", now=1)
    assert ("a" in seen, "b" in seen, seen.damaged) == (True, False, 1)


def test_the_file_of_seen_commands_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuchaos_agent.nonces._COMPACT_AT", 20)
    seen = Seen(tmp_path / "s", now=0)
    for now in range(200):
        seen.add(f"k{now}", until=now + 5, now=now)
    assert len((tmp_path / "s").read_text().splitlines()) < 50
    assert "k199" in seen


# The outbox


def test_the_ring_drops_the_oldest_and_counts_it() -> None:
    ring = Ring(3)
    for number in range(5):
        ring.put(record(number))
    assert ring.dropped == 2
    assert [ring.pop(), ring.pop(), ring.pop(), ring.pop()] == [record(2), record(3), record(4), None]


def test_what_was_not_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "o")
    for number in range(5):
        spool.put(record(number))
    spool.ack(len(spool.peek(2)))
    # No close: the process is gone. What was acknowledged may come again, what was not must.
    assert Spool(tmp_path / "o").peek(10)[-3:] == [record(2), record(3), record(4)]


def test_an_empty_spool_takes_no_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "o")
    spool.put(record(1))
    spool.ack(len(spool.peek(1)))
    assert (tmp_path / "o").stat().st_size == 0
    assert spool.pending_bytes == 0


def test_a_spool_that_is_never_empty_is_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuchaos_agent.outbox._COMPACT_BYTES", 1000)
    spool = Spool(tmp_path / "o", in_memory=3)
    spool.put(record(0))
    for number in range(1, 300):
        spool.put(record(number))
        assert spool.peek(1) == [record(number - 1)]
        spool.ack(1)
    assert spool.peek(5) == [record(299)]
    assert (tmp_path / "o").stat().st_size < 5000


def test_a_line_torn_by_a_kill_is_passed_over(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "o")
    spool.put(record(1))
    spool.put(record(2))
    data = (tmp_path / "o").read_bytes()
    (tmp_path / "o").write_bytes(data[:-7])
    again = Spool(tmp_path / "o")
    again.put(record(3))
    assert again.peek(10) == [record(1), record(3)]
    again.ack(2)
    assert again.pending_bytes == 0


def test_where_the_disk_refuses_events_are_kept_in_memory_and_it_shows(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spool = Spool(tmp_path / "file" / "o")
    spool.put(record(1))
    assert spool.degraded
    assert spool.peek(5) == [record(1)]
    spool.ack(1)
    assert not spool.degraded


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["put", "put", "take", "kill"]), max_size=60),
    in_memory=st.integers(1, 5),
    batch=st.integers(1, 7),
)
def test_no_event_is_lost_and_order_holds_whatever_is_killed(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], in_memory: int, batch: int
) -> None:
    path = tmp_path_factory.mktemp("spool") / "o"
    spool, put, got = Spool(path, in_memory=in_memory), 0, []
    for step in [*steps, *["take"] * 70]:
        if step == "put":
            spool.put(record(put, size=put % 50))
            put += 1
        elif step == "kill":
            spool = Spool(path, in_memory=in_memory)
        else:
            taken = spool.peek(batch)
            got += [int(r.value.split(b":")[0]) for r in taken]
            spool.ack(len(taken))
    assert sorted(set(got)) == list(range(put))
    firsts = list(dict.fromkeys(got))
    assert firsts == sorted(firsts)


def test_a_journal_entry_is_readable_json_for_whoever_must_undo_by_hand(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.inject("f1")
    entry = json.loads((tmp_path / "journal" / "f1.json").read_text())
    assert (entry["fault"], entry["entity"], entry["state"]) == ("fake", "process/n1/f1", "injected")
