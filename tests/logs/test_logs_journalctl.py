from __future__ import annotations

import json
import os
import select
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from journald_kit import NOW, XID, Clock, Script, entry, journald, until

from gpuchaos_agent.collect.base import Fact
from gpuchaos_agent.collect.kernel_log import KernelLogCollector
from gpuchaos_agent.logs.journalctl import FIRST_AGAIN_S, LONGEST_AGAIN_S, JournalSource
from gpuchaos_agent.logs.kernel_source import Sourced
from gpuchaos_agent.logs.record import Writer


@pytest.fixture
def script(tmp_path: Path) -> Script:
    folder = tmp_path / "script"
    folder.mkdir()
    return Script(folder)


def test_records_of_the_journal_are_named_by_their_cursor(script: Script) -> None:
    script.says(entry(1, "one"), entry(2, "two", SYSLOG_FACILITY="1", SYSLOG_IDENTIFIER="tool"))
    source = script.source()
    assert source.open()
    one, two = until(source, 2)
    assert (one.record.text, one.record.writer, one.record.time) == ("one", Writer.KERNEL, NOW)
    assert one.key == f"journal/s=0a;i=1;b=0b;m=1;t={int(NOW * 1e6):x};x=1"
    assert (two.record.text, two.record.writer) == ("tool: two", Writer.INJECTED)
    source.close()


def test_the_first_start_ever_takes_the_last_entry_for_its_place_and_not_for_news(
    script: Script, tmp_path: Path
) -> None:
    state = tmp_path / "state/journal.json"
    script.says(entry(1, "of the past", at=NOW - 5), entry(2, "news", at=NOW + 5))
    source = script.source(state=state, wall=lambda: NOW)
    assert source.open()
    assert [one.record.text for one in until(source, 1)] == ["news"]
    source.save()
    source.close()
    again = script.source(state=state)
    assert again.open()
    until(again, 1)
    again.close()
    first, second = script.called()
    assert "--lines=1" in first
    assert "--no-tail" in second
    assert f"--after-cursor=s=0a;i=2;b=0b;m=1;t={int((NOW + 5) * 1e6):x};x=1" in second


def test_a_place_is_kept_even_where_there_was_no_news(script: Script, tmp_path: Path) -> None:
    state = tmp_path / "journal.json"
    script.says(entry(1, "of the past", at=NOW - 5), then="exit 0")
    source = script.source(state=state, wall=lambda: NOW, hints=("nothing",))
    assert source.open()
    assert until(source, 1) == []
    source.save()
    assert "i=1;" in json.loads(state.read_text())["cursor"]


def test_a_child_that_ends_is_begun_again_behind_the_last_entry_after_a_while(script: Script) -> None:
    clock = Clock()
    script.says(entry(1, "one"), then="exit 3")
    source = script.source(clock)
    assert source.open()
    assert [one.record.text for one in until(source, 9)] == ["one"]
    assert "ended" in source.problem
    assert source.fileno() is None
    assert not source.open()
    script.says(entry(2, "two"))
    clock.now += FIRST_AGAIN_S
    assert source.open()
    assert source.problem == ""
    assert [one.record.text for one in until(source, 1)] == ["two"]
    assert "--after-cursor=s=0a;i=1;" in script.called()[-1]
    source.close()


def test_a_child_that_ends_at_once_is_begun_less_and_less_often_and_its_words_are_kept(script: Script) -> None:
    clock = Clock()
    script.says(then="echo 'No permission.' >&2; exit 1")
    source = script.source(clock)
    waits = []
    for _ in range(9):
        began = clock.now
        while not source.open():
            clock.now += 1.0
        waits.append(clock.now - began)
        until(source, 1)
        assert "No permission." in source.problem
    assert waits[:5] == [0.0, 1.0, 2.0, 4.0, 8.0]
    assert max(waits) <= LONGEST_AGAIN_S


def test_a_cursor_that_the_journal_does_not_know_is_given_up_for_this_boot_again(
    script: Script, tmp_path: Path
) -> None:
    clock, state = Clock(), tmp_path / "journal.json"
    state.write_text('{"cursor": "s=gone"}')
    script.says(then="echo 'Failed to seek to cursor: Invalid argument' >&2; exit 1")
    source = script.source(clock, state=state)
    assert source.open()
    until(source, 1)
    clock.now += FIRST_AGAIN_S
    script.says(entry(1, "one"))
    assert source.open()
    until(source, 1)
    source.close()
    first, second = script.called()
    assert "--after-cursor=s=gone" in first
    assert "cursor" not in second
    assert "--boot" in second


def test_a_child_that_complains_without_end_is_read_and_does_not_stand_still(script: Script) -> None:
    script.says(entry(1, "one"), then=f"head -c 1000000 /dev/zero >&2\necho '{entry(2, 'two')}'\nexec sleep 60")
    source = script.source()
    assert source.open()
    found: list[Sourced] = []
    deadline = time.monotonic() + 20
    while len(found) < 2 and time.monotonic() < deadline:
        fd = source.fileno()
        assert fd is not None
        select.select([fd], [], [], 0.02)
        found += source.records(NOW)
    assert [one.record.text for one in found] == ["one", "two"]
    assert len(source._said) <= 400
    source.close()


def test_half_a_line_of_a_child_that_ended_is_no_record(script: Script) -> None:
    script.says(entry(1, "one"), then=f"printf '%s' '{entry(2, 'half')[:60]}'; exit 0")
    source = script.source()
    assert source.open()
    assert [one.record.text for one in until(source, 9)] == ["one"]


@pytest.mark.parametrize("missing", ["program", "journal"])
def test_what_is_missing_of_the_journal_is_said(script: Script, tmp_path: Path, missing: str) -> None:
    script.says()
    source = script.source()
    if missing == "program":
        script.path.unlink()
    else:
        source = JournalSource(command=(str(script.path),), folders=(tmp_path / "none",), monotonic=Clock())
    assert not source.open()
    assert "journal" in source.problem
    assert script.called() == []


def test_what_journald_missed_is_a_gap(script: Script) -> None:
    missed: dict[str, Any] = {"_TRANSPORT": "driver", "SYSLOG_IDENTIFIER": "systemd-journald"}
    script.says(entry(1, "Missed 17 kernel messages", **missed), entry(2, XID.format(bus=3)))
    follower = KernelLogCollector([script.source()])
    facts: list[Fact] = []
    while len(facts) < 2:
        fd = follower.fileno()
        assert fd is not None
        assert select.select([fd], [], [], 20)[0]
        facts += follower.drain(NOW)
    assert [(fact.fault, fact.evidence.get("count")) for fact in facts] == [("kernel_log_gap", 17), ("gpu_lost", None)]
    info = follower.read(NOW).info
    assert (info["way"], info["lost"], info["suppressed"]) == ("journal", 17, 0)
    follower.close()


def started(folder: Path, **fields: Any) -> JournalSource:
    source = JournalSource(command=("journalctl", f"--directory={folder}"), folders=(folder,), **fields)
    assert source.open()
    return source


def heard(source: JournalSource, mark: str) -> list[Sourced]:
    """What comes up to the record with `mark`."""
    found: list[Sourced] = []
    deadline = time.monotonic() + 20
    while not (found and mark in found[-1].record.text):
        fd = source.fileno()
        assert fd is not None, source.problem
        assert select.select([fd], [], [], deadline - time.monotonic())[0], "it never came"
        found += [one for one in source.records(time.time()) if "journal-test" in one.record.text]
    return found


def write(mark: str) -> str:
    """A process claims an Xid in the real kernel log; the text."""
    text = f"NVRM: Xid (PCI:0000:fd:00): 79, journal-test {mark} GPU has fallen off the bus."
    Path("/dev/kmsg").write_text(text + "\n")
    return text


@pytest.mark.root
def test_a_real_journal_is_followed_over_restarts_and_wakes_us_within_a_second(tmp_path: Path) -> None:
    one, two, three = (uuid.uuid4().hex for _ in range(3))
    state, hints = tmp_path / "journal.json", ("NVRM: Xid",)
    with journald(tmp_path / "run") as folder:
        source = started(folder, state=state, hints=hints)
        fd = source.fileno()
        assert fd is not None
        assert select.select([fd], [], [], 20)[0]
        assert source.records(time.time()) == [], "what was there before us is of the past"
        written = time.time()
        text = write(one)
        (found,) = heard(source, one)
        assert time.time() - written < 1.0
        assert (found.record.text, found.record.writer) == (text, Writer.INJECTED)
        assert abs((found.record.time or 0.0) - written) < 0.5
        source.save()
        write(two)
        (unsaved,) = heard(source, two)
        child = source._child
        assert child is not None
        child.kill()
        while not source.problem:
            source.records(time.time())
        write(three)
        again = started(folder, state=state, hints=hints)
        repeated, fresh = heard(again, three)
        assert (two in repeated.record.text, three in fresh.record.text) == (True, True)
        assert repeated.key == unsaved.key
        child = again._child
        again.close()
        assert child is not None
        assert child.returncode is not None


@pytest.mark.root
def test_the_kernels_own_records_of_a_real_journal_are_its_word(tmp_path: Path) -> None:
    with journald(tmp_path / "run") as folder:
        source = started(folder, from_start=True)
        kernel = [one.record for one in until(source, 20) if one.record.writer is Writer.KERNEL]
        source.close()
    assert kernel
    assert all(record.usec is not None for record in kernel)


@pytest.mark.root
def test_a_journalctl_ends_by_itself_when_nobody_reads_it_any_more(tmp_path: Path) -> None:
    with journald(tmp_path / "run") as folder:
        reader, writer = os.pipe()
        child = subprocess.Popen(("journalctl", f"--directory={folder}", "--follow", "--lines=1"), stdout=writer)
        os.close(writer)
        assert select.select([reader], [], [], 20)[0]
        os.close(reader)
        assert child.wait(20) is not None
