from __future__ import annotations

import subprocess
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.logs.dmesg import DmesgFramer
from gpuchaos_agent.logs.record import LogRecord, Writer

XID = "NVRM: Xid (PCI:0000:c1:00): 31, pid=411, name=train.py, Ch 00000008"


def framed(text: str) -> list[LogRecord]:
    framer = DmesgFramer()
    found = [*framer.feed(text.encode()), *framer.flush()]
    assert framer.bad == 0
    return found


def at(year: int, month: int, day: int, hour: int, minute: int, second: float) -> float:
    whole = int(second)
    return datetime(year, month, day, hour, minute, whole, tzinfo=UTC).timestamp() + second - whole


@pytest.mark.parametrize(
    ("head", "time", "usec"),
    [
        ("[ 8123.617543] ", None, 8_123_617_543),
        ("[11859608.510084] ", None, 11_859_608_510_084),
        ("[    0.000004 <    0.000001>] ", None, 4),
        ("[  130.456250] [   T1946] ", None, 130_456_250),
        ("[  130.456250][    C3] ", None, 130_456_250),
        ("[Sat Mar  7 06:05:04 2026] ", at(2026, 3, 7, 6, 5, 4), None),
        ("2026-03-07T06:05:04,500000+00:00 ", at(2026, 3, 7, 6, 5, 4.5), None),
        ("2026-03-07T07:05:04,500000+01:00 [  T12] ", at(2026, 3, 7, 6, 5, 4.5), None),
        ("[Mar07 06:05] ", None, None),
        ("[  +0.000012] ", None, None),
        ("[sam. mars  7 06:05:04 2026] ", None, None),
        ("", None, None),
        ("kernel: ", None, None),
        ("gpu-7 kernel: ", None, None),
        ("[Sat Mar  7 06:05:04 2026] gpu-7 kernel: ", at(2026, 3, 7, 6, 5, 4), None),
    ],
)
def test_every_way_of_stamping_leaves_the_same_text(head: str, time: float | None, usec: int | None) -> None:
    (record,) = framed(head + XID + "\n")
    assert (record.text, record.writer) == (XID, Writer.KERNEL)
    assert (record.time, record.usec) == (time, usec)


@pytest.mark.parametrize(
    ("head", "facility", "level", "writer"),
    [
        ("kern  :warn  : [    1.000000] ", 0, 4, Writer.KERNEL),
        ("kern  :err   : 2026-03-07T06:05:04,500000+00:00 ", 0, 3, Writer.KERNEL),
        ("user  :notice: [    1.000000] ", 1, 5, Writer.INJECTED),
        ("local3:info  : [    1.000000] ", 19, 6, Writer.INJECTED),
        ("<4>[    1.000000] ", 0, 4, Writer.KERNEL),
        ("<12>[    1.000000] ", 1, 4, Writer.INJECTED),
        ("kern  :warn  : ", 0, 4, Writer.KERNEL),
    ],
)
def test_only_a_printed_priority_tells_a_process_from_the_kernel(
    head: str, facility: int, level: int, writer: Writer
) -> None:
    (record,) = framed(head + XID + "\n")
    assert (record.text, record.facility, record.level, record.writer) == (XID, facility, level, writer)


def test_a_printk_of_several_lines_is_one_record_without_its_padding() -> None:
    found = framed(
        "[  12.000001] first\n[ 1843.308145] NVRM: The GPU\n"
        "               NVRM: (PCI ID: 10de:2330) has\n                 fallen\n[ 1843.308146]   indented\n"
    )
    assert [record.text for record in found] == [
        "first",
        "NVRM: The GPU\nNVRM: (PCI ID: 10de:2330) has\n  fallen",
        "  indented",
    ]


def test_a_paste_that_is_indented_as_a_whole_is_as_many_records_as_lines() -> None:
    found = framed("    [    1.000000] one\n    [    2.000000] two\n    three\n")
    assert [record.text for record in found] == ["one", "two", "three"]


def test_lines_of_a_blank_are_nothing() -> None:
    assert [record.text for record in framed("\n  \none\r\n\t\n")] == ["one"]


def test_a_program_in_a_monotonic_journal_is_no_kernel() -> None:
    (record,) = framed("[ 8123.617543] gpu-7 mcelog[2226]: MCE 0\n")
    assert (record.writer, record.tag, record.pid, record.host, record.text) == (
        Writer.PROGRAM,
        "mcelog",
        2226,
        "gpu-7",
        "MCE 0",
    )


@pytest.mark.parametrize(
    "text",
    [
        "python3[4242]: segfault at 0 ip 00007f0000000000 sp 00007ffd00000000 error 4 in libc.so.6[7f0000000000+1000]",
        "nfs: server 198.51.100.7 not responding, still trying",
        "INFO: task kworker/u203:1:4711 blocked for more than 120 seconds.",
        "[drm:nv_drm_load [nvidia_drm]] *ERROR* failed",
        "[Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400",
        "raid:fail: md0 is no priority",
    ],
)
def test_what_only_looks_like_a_head_stays_in_the_text(text: str) -> None:
    for head in ("", "[   12.000000] "):
        (record,) = framed(head + text + "\n")
        assert (record.text, record.writer) == (text, Writer.KERNEL)


def test_a_repeat_is_unwrapped_and_counted() -> None:
    (record,) = framed(f"kernel: message repeated 9 times: [ {XID}]\n")
    assert (record.text, record.repeated) == (XID, 9)


def test_the_real_dmesg_is_read_alike_however_it_is_asked() -> None:
    outputs = []
    for options in ((), ("--decode",), ("--raw",), ("--time-format=iso",), ("--ctime",), ("--show-delta",)):
        done = subprocess.run(("dmesg", *options), capture_output=True, check=False)
        if done.returncode:
            pytest.skip("dmesg is not to be read here")
        framer = DmesgFramer()
        outputs.append([record.text for record in (*framer.feed(done.stdout), *framer.flush())][:200])
    assert outputs[0]
    assert all(output == outputs[0] for output in outputs[1:])


@given(st.lists(st.binary(max_size=200), max_size=12))
def test_random_bytes_are_cut_without_an_error(chunks: list[bytes]) -> None:
    framer = DmesgFramer()
    for chunk in chunks:
        framer.feed(chunk)
    framer.flush()


@given(
    st.lists(st.sampled_from(["[    1.000000] a", "    b", "kern  :err   : [ 2.000000] c", "", "\t", "d"])), st.data()
)
def test_the_same_records_come_however_the_bytes_are_cut(lines: list[str], data: st.DataObject) -> None:
    whole = "\n".join(lines).encode()
    framer = DmesgFramer()
    found, at_byte = [], 0
    while at_byte < len(whole):
        size = data.draw(st.integers(1, 30))
        found += framer.feed(whole[at_byte : at_byte + size])
        at_byte += size
    assert found + framer.flush() == framed(whole.decode())


@given(st.text(max_size=200))
def test_any_text_behind_a_stamp_is_the_text(text: str) -> None:
    kept = " ".join(text.split())
    (record,) = framed(f"<4>[    1.000000] kernel: {kept}\n".replace("\0", ""))
    assert record.repeated > 1 or record.text == kept.replace("\0", "")
