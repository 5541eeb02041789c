"""Kinds are guessed from what a recording looks like; where it looks like several, that is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from read_help import said, written

from gpuchaos_agent.read import guess
from gpuchaos_agent.read.kinds import names
from gpuchaos_agent.read.recording import opened

XID: Final = "NVRM: Xid (PCI:0000:4d:00): 79, pid=4321, name=train, GPU has fallen off the bus."
QUIET: Final = "usb 1-1: new high-speed USB device number 4 using xhci_hcd"


def journal(text: str) -> str:
    fields = {"__REALTIME_TIMESTAMP": "1760000000000000", "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0"}
    return json.dumps({**fields, "MESSAGE": text}) + "\n"


def export(text: str) -> str:
    return (
        f"__CURSOR=s={'0b' * 16};i=1\n__REALTIME_TIMESTAMP=1760000000000000\n_TRANSPORT=kernel\n"
        f"SYSLOG_FACILITY=0\nMESSAGE={text}\n\n"
    )


#: How the same words look in each framing: kind, and a line of it.
FRAMED: Final[dict[str, tuple[str, Callable[[str], str]]]] = {
    "kmsg": ("kmsg", lambda text: f"4,77,9000000,-;{text}\n DEVICE=+pci:0000:4d:00.0\n"),
    "raw": ("dmesg", lambda text: f"[    9.000000] {text}\n"),
    "caller": ("dmesg", lambda text: f"[    9.000000][  T812] {text}\n"),
    "decoded": ("dmesg", lambda text: f"kern  :warn  : [    9.000000] {text}\n"),
    "prefixed": ("dmesg", lambda text: f"<4>[    9.000000] {text}\n"),
    "human": ("dmesg", lambda text: f"[Mon Oct  6 09:00:00 2025] {text}\n"),
    "iso": ("dmesg", lambda text: f"2025-10-06T09:00:00,000000+00:00 {text}\n"),
    "bsd": ("syslog", lambda text: f"Oct  6 09:00:00 rack7-n3 kernel: [    9.000000] {text}\n"),
    "rsyslog": ("syslog", lambda text: f"2025-10-06T09:00:00.000000+00:00 rack7-n3 kernel: [    9.000000] {text}\n"),
    "rfc5424": ("syslog", lambda text: f"<4>1 2025-10-06T09:00:00.000000Z rack7-n3 kernel - - - {text}\n"),
    "journal": ("journal", journal),
    "export": ("journal-export", export),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMED)
def test_a_framing_is_known_by_its_looks_whatever_it_says(tmp_path: Path, name: str) -> None:
    kind, frame = FRAMED[name]
    quiet = said(written(tmp_path, frame(QUIET) * 30, "kern.log"))
    assert [(row["kind"], row["fault"]) for row in quiet] == [(kind, "none")]
    assert "doubt" not in quiet[0]
    loud = said(written(tmp_path, frame(QUIET) * 30 + frame(XID), "kern.log"))
    assert [(row["kind"], row["fault"], row["device"], row["pid"]) for row in loud] == [
        (kind, "gpu_lost", "0000:4d:00", 4321)
    ]


#: A program's own lines, plain and wrapped.
WRAPPED: Final[dict[str, Callable[[str], str]]] = {
    "plain": lambda text: f"{text}\n",
    "docker": lambda text: json.dumps({"log": text + "\n", "stream": "stderr", "time": "2025-10-06T09:00:00Z"}) + "\n",
    "cri": lambda text: f"2025-10-06T09:00:00.5Z stderr F {text}\n",
    "cri pieces": lambda text: (
        f"2025-10-06T09:00:00.5Z stderr P {text[:9]}\n2025-10-06T09:00:00.5Z stderr F {text[9:]}\n"
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_programs_log_is_read_through_what_a_container_put_round_it(tmp_path: Path, name: str) -> None:
    wrap = WRAPPED[name]
    text = wrap("step 12 loss 2.5") * 20 + wrap("could not connect to server: Connection refused")
    (row,) = [row for row in said(written(tmp_path, text)) if row["fault"] != "none"]
    assert row["kind"] == "app"
    assert (row.get("time") is not None) == (name != "plain")


@pytest.mark.parametrize(("first", "second"), [("kmsg", "raw"), ("kmsg", "journal"), ("raw", "bsd"), ("bsd", "kmsg")])
def test_of_two_logs_in_one_file_it_is_said_that_there_are_two(tmp_path: Path, first: str, second: str) -> None:
    one, other = FRAMED[first][1], FRAMED[second][1]
    path = written(tmp_path, (one(QUIET) + other(QUIET)) * 10)
    with opened(path) as recording:
        found = guess.guessed(recording)
    assert found.kind.NAME in {FRAMED[first][0], FRAMED[second][0]}
    assert found.doubt or found.kind.NAME == "syslog", "a daemon's file may hold what dmesg printed"


def test_a_text_of_nothing_known_is_read_as_a_programs_and_said_to_be_a_guess(tmp_path: Path) -> None:
    (row,) = said(written(tmp_path, "Dear all,\nthe meeting is at nine.\n"))
    assert (row["kind"], row["fault"]) == ("app", "none")
    assert "--kind" in row["doubt"]


def test_few_lines_of_another_kind_do_not_change_what_a_log_is(tmp_path: Path) -> None:
    frame = FRAMED["kmsg"][1]
    text = "cat /dev/kmsg\n" + frame(QUIET) * 40 + "^C\n"
    rows = said(written(tmp_path, text))
    assert {row["kind"] for row in rows} == {"kmsg"}
    assert rows[-1]["unreadable"] == 2


def test_every_kind_has_the_name_of_its_file_and_says_what_it_is() -> None:
    assert [kind.NAME for kind in guess.known().values()] == list(names())
    assert all(kind.SUMMARY for kind in guess.known().values())
