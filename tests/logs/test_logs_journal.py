from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journald_kit import journalctl, journald

from gpuchaos_agent.logs.journal import ExportFramer, JournalFramer
from gpuchaos_agent.logs.kmsg import KmsgFramer
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.logs.syslog import SyslogFramer

REAL, READ, SAID = 1_770_000_100_000_000, 900_000_000, 899_250_000
KERNEL = {
    "__CURSOR": "s=0a;i=1f;b=0b;m=35a4e900;t=649c1234;x=1",
    "__REALTIME_TIMESTAMP": str(REAL),
    "__MONOTONIC_TIMESTAMP": str(READ),
    "_SOURCE_MONOTONIC_TIMESTAMP": str(SAID),
    "_BOOT_ID": "0b",
    "_HOSTNAME": "gpu-7",
    "_TRANSPORT": "kernel",
    "_KERNEL_DEVICE": "+pci:0000:c1:00.0",
    "_KERNEL_SUBSYSTEM": "pci",
    "PRIORITY": "4",
    "SYSLOG_FACILITY": "0",
    "SYSLOG_IDENTIFIER": "kernel",
    "MESSAGE": 'NVRM: Xid (PCI:0000:c1:00): 79, pid="x"',
}


def exported(entry: dict[str, Any]) -> bytes:
    """One entry as `-o export` has it: a value with a line feed, or bytes, with its length."""
    out = b""
    for name, value in entry.items():
        data = bytes(value) if isinstance(value, list) else str(value).encode()
        if b"\n" in data or isinstance(value, list):
            out += name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
        else:
            out += name.encode() + b"=" + data + b"\n"
    return out + b"\n"


def both(*entries: dict[str, Any], hints: tuple[str, ...] | None = None) -> list[LogRecord]:
    """The records of the entries, which must be the same from JSON and from the export format."""
    plain, export = JournalFramer(hints), ExportFramer(hints)
    data = b"".join(json.dumps(entry, ensure_ascii=False).encode() + b"\n" for entry in entries)
    found = [*plain.feed(data), *plain.flush()]
    assert [*export.feed(b"".join(map(exported, entries))), *export.flush()] == found
    assert (plain.bad, export.bad) == (0, 0)
    assert (plain.suppressed, plain.lost) == (export.suppressed, export.lost)
    return found


def test_a_kernel_record_has_the_time_at_which_it_was_said_not_read() -> None:
    (record,) = both(KERNEL)
    assert (record.writer, record.facility, record.level, record.tag) == (Writer.KERNEL, 0, 4, "kernel")
    assert (record.text, record.host, record.usec) == (KERNEL["MESSAGE"], "gpu-7", SAID)
    assert record.time == pytest.approx((REAL - (READ - SAID)) / 1e6)
    assert record.tags["DEVICE"] == "+pci:0000:c1:00.0"


def test_a_process_that_wrote_to_the_kernel_log_is_known_by_its_facility() -> None:
    said = KERNEL | {"SYSLOG_FACILITY": "1"}
    as_kernel, untagged = both(said, {name: said[name] for name in said if name != "SYSLOG_IDENTIFIER"})
    assert (as_kernel.writer, as_kernel.facility) == (Writer.INJECTED, 1)
    assert (untagged.writer, untagged.text) == (Writer.INJECTED, KERNEL["MESSAGE"])


def test_the_drivers_first_word_that_journald_took_for_a_tag_is_put_back_and_its_hint_found() -> None:
    said = KERNEL | {"SYSLOG_FACILITY": "1", "SYSLOG_IDENTIFIER": "NVRM", "MESSAGE": "Xid (PCI:0000:c1:00): 79"}
    plain, signed = both(said, said | {"SYSLOG_PID": "12", "SYSLOG_IDENTIFIER": "tool"}, hints=("NVRM: Xid",))
    assert plain.text == "NVRM: Xid (PCI:0000:c1:00): 79"
    assert signed.text == "tool[12]: Xid (PCI:0000:c1:00): 79"


def test_an_old_journal_without_facilities_is_told_by_the_tag() -> None:
    old = {name: value for name, value in KERNEL.items() if name != "SYSLOG_FACILITY"}
    kernel, process = both(old, old | {"SYSLOG_IDENTIFIER": "tool"})
    assert (kernel.writer, process.writer) == (Writer.KERNEL, Writer.INJECTED)


def test_a_program_that_calls_itself_kernel_is_a_program() -> None:
    (record,) = both(KERNEL | {"_TRANSPORT": "syslog", "SYSLOG_PID": "77"})
    assert (record.writer, record.tag, record.pid) == (Writer.PROGRAM, "kernel", 77)
    assert (record.usec, record.time) == (None, REAL / 1e6)


def test_a_text_of_bytes_or_of_several_lines_is_put_back() -> None:
    raw, lines = both(KERNEL | {"MESSAGE": list(b"NVRM: \xff\x00x")}, KERNEL | {"MESSAGE": "a\nb\tü"})
    assert (raw.text, lines.text) == ("NVRM: \ufffd\x00x", "a\nb\tü")


def test_of_several_values_the_first_counts() -> None:
    framer = JournalFramer()
    (record,) = framer.feed(b'{"MESSAGE":["one","two"],"_PID":["3","4"]}\n') + framer.flush()
    assert (record.text, record.pid) == ("one", 3)


@pytest.mark.parametrize("message", [None, "", [], {}, [[[1]]], [{}], [300], 5])
def test_an_entry_without_a_text_is_no_record_and_not_bad(message: Any) -> None:
    framer = JournalFramer()
    assert framer.feed(json.dumps(KERNEL | {"MESSAGE": message}).encode() + b"\n") + framer.flush() == []
    assert framer.bad == 0


@pytest.mark.parametrize("line", [b"[]", b"x", b"{", b"[" * 200_000, b'{"a":' * 50_000, b"7" * 9000, b"null"])
def test_a_line_that_is_no_entry_is_bad(line: bytes) -> None:
    framer = JournalFramer()
    assert framer.feed(line + b"\n") + framer.flush() == []
    assert framer.bad == 1


def test_records_without_a_hint_are_skipped_and_the_cursor_moves_on() -> None:
    framer = JournalFramer(hints=('pid="x"',))
    last = KERNEL | {"MESSAGE": "noise", "__CURSOR": "s=0a;i=20"}
    data = json.dumps(KERNEL).encode() + b"\n" + json.dumps(last).encode() + b"\n"
    assert len(framer.feed(data) + framer.settle()) == 1
    assert (framer.skipped, framer.cursor) == (1, "s=0a;i=20")
    assert len(both(KERNEL, last, KERNEL | {"MESSAGE": list(b'\xffpid="x"')}, hints=('pid="x"',))) == 2


def test_what_journald_missed_and_the_kernel_suppressed_is_lost() -> None:
    framer = JournalFramer()
    missed = {"_TRANSPORT": "driver", "SYSLOG_IDENTIFIER": "systemd-journald", "MESSAGE": "Missed 1427 kernel messages"}
    entries = (missed, KERNEL | {"MESSAGE": "nfs_open: 3 callbacks suppressed"})
    assert len(framer.feed(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)) + framer.flush()) == 2
    assert framer.lost == 1430
    assert len(both(*entries)) == 2


def test_a_field_that_is_too_long_is_left_out_and_memory_is_bounded() -> None:
    framer = ExportFramer()
    found = framer.feed(b"COREDUMP\n" + (200 << 20).to_bytes(8, "little"))
    for _ in range(200):
        found += framer.feed(b"MESSAGE=no\n" + bytes((1 << 20) - 11))
        assert len(framer._rest) <= framer.LONGEST
    found += framer.feed(b"\nMESSAGE=after\n\n")
    assert [record.text for record in found] == ["after"]
    for _ in range(20):
        found = framer.feed(b"x" * (1 << 20))
        assert len(framer._rest) <= framer.LONGEST
    assert [record.text for record in framer.feed(b"\nMESSAGE=again\n\n")] == ["again"]
    assert framer.bad == 2


@given(st.lists(st.binary(max_size=200), max_size=12))
def test_random_bytes_are_cut_without_an_error(chunks: list[bytes]) -> None:
    for framer in (JournalFramer(), ExportFramer()):
        for chunk in chunks:
            framer.feed(chunk)
        framer.flush()


@given(
    st.lists(st.text(min_size=1, max_size=40).filter(lambda text: text.encode("utf-8", "ignore").decode() == text)),
    st.integers(1, 60),
)
def test_the_same_records_come_however_the_bytes_are_cut(texts: list[str], size: int) -> None:
    entries = [KERNEL | {"MESSAGE": text} for text in texts]
    export = ExportFramer()
    whole = b"".join(map(exported, entries))
    found = [r for at in range(0, len(whole), size) for r in export.feed(whole[at : at + size])] + export.flush()
    assert [record.text for record in found] == texts
    assert both(*entries) == found
    plain = JournalFramer()
    whole = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
    assert [r for at in range(0, len(whole), size) for r in plain.feed(whole[at : at + size])] + plain.flush() == found


@pytest.mark.root
def test_a_real_journal_says_the_same_in_every_format_as_the_kernel_log_itself(tmp_path: Path) -> None:
    with journald(tmp_path) as folder:
        kernel = ("--boot", "_TRANSPORT=kernel", "--lines=150")
        outputs = {
            output: journalctl(folder, *kernel, f"--output={output}")
            for output in ("json", "export", "short", "short-iso", "short-full", "short-precise", "short-unix")
        }
    plain, export = JournalFramer(), ExportFramer()
    found = [*plain.feed(outputs["json"]), *plain.flush()]
    assert len(found) > 20
    assert [*export.feed(outputs["export"]), *export.flush()] == found
    assert (plain.bad, export.bad) == (0, 0)
    assert {record.facility for record in found if record.writer is Writer.KERNEL} <= {0}
    reference = max(record.time or 0.0 for record in found) + 3600
    said = [record.text for record in found if record.writer is Writer.KERNEL and "\n" not in record.text]
    for output in ("short", "short-iso", "short-full", "short-precise", "short-unix"):
        framer = SyslogFramer(reference=reference, zone=None)
        lines = [*framer.feed(outputs[output]), *framer.flush()]
        texts = {record.text.rstrip() for record in lines if record.writer is Writer.KERNEL}
        assert {text.rstrip() for text in said} <= texts, output
        assert all(abs((record.time or 0.0) - reference) < 10 * 86400 for record in lines), output
    device = {(record.usec, record.facility, record.text.strip()) for record in _ring(KmsgFramer())}
    said_at = {usec for usec, _, _ in device}
    same = {(record.usec, record.facility, record.text.strip()) for record in found if record.usec in said_at}
    assert same
    assert same <= device


def _ring(framer: KmsgFramer) -> list[LogRecord]:
    """What the kernel log holds now."""
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    found: list[LogRecord] = []
    try:
        while True:
            try:
                record = framer.whole(os.read(fd, 16384))
            except BlockingIOError:
                return found
            if record is not None:
                found.append(record)
    finally:
        os.close(fd)
