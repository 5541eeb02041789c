"""Stretches without a hint are passed over at once, and nothing is lost or counted otherwise by it."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_agent.logs import lines as lines_module
from gpuchaos_agent.logs.application import Application
from gpuchaos_agent.logs.dmesg import DmesgFramer
from gpuchaos_agent.logs.journal import JournalFramer
from gpuchaos_agent.logs.kmsg import KmsgFramer
from gpuchaos_agent.logs.lines import LineFramer
from gpuchaos_agent.logs.record import LogRecord
from gpuchaos_agent.logs.syslog import SyslogFramer

HINTS = ("NVRM: ", "link down")
FRAMERS: dict[str, Callable[[], LineFramer]] = {
    "kmsg": lambda: KmsgFramer(HINTS),
    "dmesg": lambda: DmesgFramer(HINTS),
    "syslog": lambda: SyslogFramer(HINTS, reference=1.77e9),
    "journal": lambda: JournalFramer(HINTS),
}
LINES = st.sampled_from(
    [
        *(b"6,1,1,-;boring", b"6,2,1,-;boring", b"6,4,1,-;NVRM: x", b"6,5,1,-;y link down", b"6,3,9,c;z", b"6,7;bad"),
        *(
            b" DEVICE=+pci:0000:3b:00.0",
            b" SUBSYSTEM=NVRM: x",
            b"\ttab",
            b"",
            b"\r",
            b" ",
            b"\0\0\0",
            b"\0\0 6,9,1,-;NVRM: ",
        ),
        *(
            b"[    1.000000] NVRM: a",
            b"             link down",
            b"[    1.000000] quiet",
            b"Feb  5 15:41:33 h kernel: NVRM: b",
        ),
        *(b"Feb  5 15:41:33 h kernel: quiet\r", b"last message repeated 3 times", b"x" * 90, b"NVRM: " + b"y" * 90),
        *(
            b'{"MESSAGE":"NVRM: c","__CURSOR":"s=1"}',
            b'{"MESSAGE":"quiet","__CURSOR":"s=2"}',
            b"net: 4 callbacks suppressed",
        ),
    ]
)


def outcome(
    make: Callable[[], LineFramer], data: bytes, size: int, few: int
) -> tuple[list[LogRecord], tuple[object, ...]]:
    framer = make()
    framer.LONGEST = 64  # type: ignore[misc]
    found: list[LogRecord] = []
    with patch.object(lines_module, "_FEW", few):
        for at in range(0, len(data), size):
            found += framer.feed(data[at : at + size])
        found += framer.flush()
    more = getattr(framer, "seq", None), getattr(framer, "cursor", None)
    return found, (framer.bad, framer.lost, framer.suppressed, framer.skipped, *more)


@pytest.mark.parametrize("name", FRAMERS)
@given(lines=st.lists(LINES, max_size=40), size=st.integers(1, 700))
@settings(deadline=None)
def test_what_is_passed_over_at_once_is_counted_as_if_it_had_been_read(
    name: str, lines: list[bytes], size: int
) -> None:
    data = b"\n".join(lines)
    assert outcome(FRAMERS[name], data, size, 0) == outcome(FRAMERS[name], data, size, 1 << 30)


def test_a_gap_and_a_repeat_in_one_stretch_do_not_cancel_out() -> None:
    numbers = [*range(100), 99, *range(101, 300)]
    data = b"".join(b"6,%d,1,-;boring and long enough to be passed over\n" % number for number in numbers)
    framer = KmsgFramer(HINTS)
    framer.feed(data)
    framer.flush()
    assert (framer.lost, framer.skipped, framer.seq) == (1, 300, 299)


APP_LINES = st.sampled_from(
    [
        *(b"step 1", b"NCCL WARN x", b"a\rNCCL WARN progress\rb", b'say "no"', b"", b"2026-01-02T03:04:05Z step"),
        *(
            b'{"log":"quiet\\n","stream":"stdout"}',
            b'{"log":"NCCL ","stream":"stdout"}',
            b'{"log":"WARN x\\n","stream":"stdout"}',
        ),
        *(
            b'{"log":"say \\"no\\" \\u003c7\\n","stream":"stderr"}',
            b'{"log":"ends in \\\\n","stream":"stdout"}',
            b'{"log":broken',
        ),
        *(
            b"2026-01-02T03:04:05.1Z stderr F NCCL WARN y",
            b"2026-01-02T03:04:05.1Z stderr P NCCL ",
            b"2026-01-02T03:04:05.1Z stderr F WARN",
        ),
        *(b"2026-01-02T03:04:05.1Z stdout F quiet",),
    ]
)
APP_HINTS = ("NCCL WARN", 'say "no"', "<7")


@given(lines=st.lists(APP_LINES, max_size=30), size=st.integers(1, 400))
@settings(deadline=None)
def test_every_line_of_a_program_that_holds_a_hint_is_a_record_however_it_is_wrapped(
    lines: list[bytes], size: int
) -> None:
    data = b"\n".join(lines)
    every, some = Application(), Application(hints=APP_HINTS)
    whole = [*every.feed(data), *every.flush()]
    found = [record for at in range(0, len(data), size) for record in some.feed(data[at : at + size])] + some.flush()
    wanted = [record for record in whole if any(hint in record.text for hint in APP_HINTS)]
    assert [record for record in found if any(hint in record.text for hint in APP_HINTS)] == wanted


def test_runs_of_nul_that_a_crash_left_do_not_hide_the_record_behind_them() -> None:
    framer = KmsgFramer(HINTS)
    found = framer.feed(b"6,1,1,-;boring\n" + b"\0" * 4000 + b"6,2,1,-;NVRM: x\n") + framer.flush()
    assert [record.text for record in found] == ["NVRM: x"]
    assert (framer.bad, framer.lost) == (0, 0)
