from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.logs import stamps
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.logs.syslog import SyslogFramer

NOW = datetime(2026, 2, 10, tzinfo=UTC).timestamp()
TEXT = "mlx5_core 0000:ca:00.1 eth3: Link down"


def framed(text: str, *, bad: int = 0, reference: float = NOW) -> list[LogRecord]:
    framer = SyslogFramer(reference=reference)
    found = [*framer.feed(text.encode()), *framer.flush()]
    assert framer.bad == bad
    return found


FIFTH = datetime(2026, 2, 5, 15, 41, 33, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("head", "host", "time", "usec"),
    [
        ("Feb  5 15:41:33 gpu-7 kernel: [21584690.529862] ", "gpu-7", FIFTH, 21_584_690_529_862),
        ("Feb  5 15:41:33 gpu-7 kernel: [    4.529862] [  T17] ", "gpu-7", FIFTH, 4_529_862),
        ("Feb  5 15:41:33 gpu-7 kernel: ", "gpu-7", FIFTH, None),
        ("Feb  5 15:41:33 kernel: ", "", FIFTH, None),
        ("Feb 05 15:41:33.250000 gpu-7 kernel: ", "gpu-7", FIFTH + 0.25, None),
        ("<4>Feb  5 15:41:33 gpu-7 kernel: ", "gpu-7", FIFTH, None),
        ("2026-02-05T16:41:33.500000+01:00 gpu-7 kernel: [ 12.000001] ", "gpu-7", FIFTH + 0.5, 12_000_001),
        ("2026-02-05T15:41:33Z gpu-7 kernel: ", "gpu-7", FIFTH, None),
        ("2026-02-05T15:41:33+0000 gpu-7 kernel: ", "gpu-7", FIFTH, None),
        ("Thu 2026-02-05 15:41:33 UTC gpu-7 kernel: ", "gpu-7", FIFTH, None),
        (f"{int(FIFTH)}.250000 gpu-7 kernel: ", "gpu-7", FIFTH + 0.25, None),
        ("[ 8123.617543] gpu-7 kernel: ", "gpu-7", None, 8_123_617_543),
        ("<4>1 2026-02-05T15:41:33.500Z gpu-7 kernel - - - ", "gpu-7", FIFTH + 0.5, None),
        ('<4>1 2026-02-05T15:41:33Z gpu-7 kernel - ID1 [a@1 x="\\]\\"y"][b z="[q]"] \ufeff', "gpu-7", FIFTH, None),
        ("kernel: ", "", None, None),
        ("gpu-7 kernel: ", "gpu-7", None, None),
    ],
)
def test_every_form_of_a_kernel_line_leaves_the_same_text(
    head: str, host: str, time: float | None, usec: int | None
) -> None:
    (record,) = framed(head + TEXT + "\n")
    assert (record.text, record.writer, record.tag) == (TEXT, Writer.KERNEL, "kernel")
    assert (record.host, record.time, record.usec) == (host, time, usec)


@pytest.mark.parametrize(
    ("line", "tag", "pid", "text"),
    [
        ("Feb  5 15:41:33 gpu-7 gpud[1441796]: NVRM: Xid (PCI:0000:01:00): 79", "gpud", 1441796, None),
        ("Feb  5 15:41:33 gpu-7 CRON[9]: (root) CMD (true)", "CRON", 9, "(root) CMD (true)"),
        ("Feb  5 15:41:33 gpu-7 systemd: started", "systemd", None, "started"),
        ("gpu-7 mcelog[2226]: MCE 0", "mcelog", 2226, "MCE 0"),
        ("mcelog[2226]: MCE 0", "mcelog", 2226, "MCE 0"),
        ("<30>1 2026-02-05T15:41:33Z gpu-7 app 77 - - hello", "app", 77, "hello"),
        ("<30>1 2026-02-05T15:41:33Z - - - - - hello", "", None, "hello"),
        ("Feb  5 15:41:33 gpu-7 words without a tag", "", None, "words without a tag"),
    ],
)
def test_every_other_tag_is_a_program(line: str, tag: str, pid: int | None, text: str | None) -> None:
    (record,) = framed(line + "\n")
    assert (record.writer, record.tag, record.pid) == (Writer.PROGRAM, tag, pid)
    assert text is None or record.text == text


def test_a_kernel_tag_with_a_users_priority_is_a_process() -> None:
    (record,) = framed(f"<12>Feb  5 15:41:33 gpu-7 kernel: {TEXT}\n")
    assert (record.writer, record.facility, record.level) == (Writer.INJECTED, 1, 4)


def test_repeats_are_unwrapped_and_counted() -> None:
    first, many, again = framed(
        f"Feb  5 15:41:33 gpu-7 kernel: {TEXT}\n"
        f"Feb  5 15:41:34 gpu-7 kernel: message repeated 9 times: [ {TEXT}]\n"
        "Feb  5 15:41:35 gpu-7 last message repeated 3 times\n"
    )
    assert [record.text for record in (first, many, again)] == [TEXT] * 3
    assert [record.repeated for record in (first, many, again)] == [1, 9, 3]
    assert again.time == FIFTH + 2


def test_a_repeat_of_a_line_that_was_skipped_is_not_the_one_before_it() -> None:
    framer = SyslogFramer(hints=("Link down",), reference=NOW)
    lines = f"kernel: {TEXT}\nkernel: noise\nFeb  5 15:41:35 gpu-7 last message repeated 3 times\n"
    found = [*framer.feed(lines.encode()), *framer.flush()]
    assert [record.repeated for record in found] == [1]


def test_control_characters_and_lines_that_go_on_are_put_back() -> None:
    found = framed("kernel: NVRM: one#012NVRM: two#011x CPU#18\nkernel: three\n\tfour\n")
    assert [record.text for record in found] == ["NVRM: one\nNVRM: two\tx CPU#18", "three\n\tfour"]


def test_rules_of_journalctl_are_no_records_and_not_bad() -> None:
    assert framed("-- Boot 0123 --\n-- Logs begin at Thu --\n-- No entries --\n") == []


def test_a_line_with_neither_stamp_nor_tag_is_bad() -> None:
    assert framed("I0723 08:00:00.000000 1 health.go:126] Xid=999\nwords\n", bad=2) == []


def test_a_year_is_the_latest_that_is_not_in_the_future() -> None:
    def year(stamp: str, reference: datetime) -> int:
        found = stamps.bsd(stamp, reference.timestamp())
        assert found is not None
        return datetime.fromtimestamp(found, UTC).year

    assert year("Dec 31 23:59:59", datetime(2026, 1, 1, tzinfo=UTC)) == 2025
    assert year("Jan  1 00:00:30", datetime(2025, 12, 31, 23, 59, tzinfo=UTC)) == 2026
    assert year("Feb 29 12:00:00", datetime(2026, 5, 1, tzinfo=UTC)) == 2024


def test_stamps_without_a_zone_are_in_the_one_that_was_given() -> None:
    east = timezone(timedelta(hours=2))
    framer = SyslogFramer(reference=NOW, zone=east)
    (record,) = [*framer.feed(b"Feb  5 15:41:33 gpu-7 kernel: x\n"), *framer.flush()]
    assert record.time == FIFTH - 7200


@pytest.mark.parametrize("text", ["Feb 31 10:00:00", "Xyz  1 10:00:00", "Feb  1 25:00:00", "", "Feb  1"])
def test_a_time_that_there_is_not_is_none(text: str) -> None:
    assert stamps.bsd(text, NOW) is None
    assert stamps.human(f"Fri {text} 2025") is None
    assert stamps.iso(text) is None


@given(st.lists(st.binary(max_size=200), max_size=12), st.floats(allow_nan=False))
def test_random_bytes_are_cut_without_an_error(chunks: list[bytes], reference: float) -> None:
    framer = SyslogFramer(reference=reference)
    for chunk in chunks:
        framer.feed(chunk)
    framer.flush()


@given(
    st.text('<>1[]()"\\:-. Feb5:4TZ#01kernel', max_size=120),
    st.sampled_from(["", "Feb  5 15:41:33 ", "<4>1 - a b c d "]),
)
def test_almost_lines_never_raise_and_give_at_most_one_record(text: str, head: str) -> None:
    framer = SyslogFramer(reference=NOW)
    assert len([*framer.feed(f"{head}{text}\n".encode()), *framer.flush()]) <= 1


@given(st.integers(1, 40))
def test_the_same_records_come_however_the_bytes_are_cut(size: int) -> None:
    whole = (
        f"Feb  5 15:41:33 gpu-7 kernel: {TEXT}\nFeb  5 15:41:35 gpu-7 last message repeated 3 times\n"
        "gpu-7 mcelog[2226]: MCE 0\n\tmore\n<4>1 2026-02-05T15:41:33Z gpu-7 kernel - - - no end"
    ).encode()
    framer = SyslogFramer(reference=NOW)
    found = [r for at in range(0, len(whole), size) for r in framer.feed(whole[at : at + size])]
    assert found + framer.flush() == framed(whole.decode())
