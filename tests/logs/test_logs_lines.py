"""What holds for every framing of lines, whatever comes."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.logs import losses
from gpuchaos_agent.logs.dmesg import DmesgFramer
from gpuchaos_agent.logs.journal import JournalFramer
from gpuchaos_agent.logs.kmsg import KmsgFramer
from gpuchaos_agent.logs.lines import LineFramer
from gpuchaos_agent.logs.syslog import SyslogFramer

FRAMERS: dict[str, Callable[[], LineFramer]] = {
    "kmsg": KmsgFramer,
    "dmesg": DmesgFramer,
    "syslog": lambda: SyslogFramer(reference=1.77e9),
    "journal": JournalFramer,
}
every = pytest.mark.parametrize("name", FRAMERS)

#: Heads behind which a long rest is put, and what the rest is made of: where patterns could try for long.
HEADS = ("", "[", "[ 1.000000] ", "Feb  5 15:41:33 ", "<4>1 - h t p i ", "kern  :err   : ", "6,1,1,-;", '{"MESSAGE":"')
FILLS = (" ", "[", "a", "a ", "[1]", "a:", ": ", '"', "\\", '["', "[a b]", "0:", "1 ", "message repeated ", "#011")


@every
def test_no_line_of_16_kib_takes_longer_than_10_ms(name: str) -> None:
    framer = FRAMERS[name]()
    lines = [(head + fill * (16384 // len(fill))).encode() + b"\n" for head in HEADS for fill in FILLS]
    for line in lines:
        assert any(_seconds(framer, line) < 0.01 for _ in range(3)), line[:60]


def _seconds(framer: LineFramer, line: bytes) -> float:
    began = time.process_time()
    framer.feed(line)
    framer.flush()
    return time.process_time() - began


@every
def test_memory_is_bounded_where_no_line_ever_ends(name: str) -> None:
    framer = FRAMERS[name]()
    chunk = b"x" * (1 << 20)
    tracemalloc.start()
    try:
        for _ in range(100):
            framer.feed(chunk)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 << 20
    assert peak < 8 << 20


@every
def test_memory_is_bounded_where_a_record_never_ends(name: str) -> None:
    framer = FRAMERS[name]()
    framer.feed(b"6,1,1,-;kernel: x\n")
    for _ in range(10):
        framer.feed(b" more of it\n" * 10_000)
    assert sum(map(len, framer._group)) <= framer.LONGEST + 64


@every
@given(lines=st.lists(st.binary(max_size=60)), size=st.integers(1, 25))
def test_the_same_records_and_counts_come_however_any_bytes_are_cut(name: str, lines: list[bytes], size: int) -> None:
    data = b"\n".join(lines)
    whole, cut = FRAMERS[name](), FRAMERS[name]()
    whole.LONGEST = cut.LONGEST = 40  # type: ignore[misc]
    expected = [*whole.feed(data), *whole.flush()]
    found = [record for at in range(0, len(data), size) for record in cut.feed(data[at : at + size])]
    assert found + cut.flush() == expected
    assert (cut.bad, cut.lost, cut.skipped) == (whole.bad, whole.lost, whole.skipped)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("net_ratelimit: 41 callbacks suppressed", 41),
        ("mlx5_core 0000:05:00.0: cmd_work_handler: 7 callbacks suppressed", 7),
        ("printk: 12 messages suppressed.", 12),
        ("** 1196 printk messages dropped **", 1196),
        ("Missed 1427 kernel messages", 1427),
        ("imjournal: 84667 messages lost due to rate-limiting", 84667),
        ("callbacks suppressed", 0),
        ("no kernel messages", 0),
        ("x41 callbacks suppressed", 0),
        ("", 0),
    ],
)
def test_a_text_that_says_how_many_are_missing_is_counted(text: str, lost: int) -> None:
    assert losses.lost_in(text) == lost
