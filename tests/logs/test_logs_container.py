from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.logs.application import LONGEST_LINE, Application, told
from gpuchaos_agent.logs.container import LONGEST, Unwrapper
from gpuchaos_agent.logs.record import Writer

NOON = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC).timestamp()


def docker(text: str, stream: str = "stdout") -> bytes:
    return json.dumps({"log": text, "stream": stream, "time": "2026-01-31T12:00:00.250000001Z"}).encode()


def test_docker_wrapping_is_taken_off() -> None:
    whole = Unwrapper().feed(docker('he said "hi" <b>\n'), "k")
    assert whole is not None
    assert (whole.text, whole.key, whole.stream) == ('he said "hi" <b>', "k", "stdout")
    assert whole.time == pytest.approx(NOON + 0.25)


def test_pieces_of_a_long_line_are_put_together_stream_by_stream() -> None:
    unwrapper = Unwrapper()
    assert unwrapper.feed(docker("a" * 16384), "1") is None
    other = unwrapper.feed(docker("other\n", "stderr"), "2")
    assert other is not None
    assert other.text == "other"
    whole = unwrapper.feed(docker("b\n"), "3")
    assert whole is not None
    assert (whole.text, whole.key) == ("a" * 16384 + "b", "1")


def test_cri_lines_and_their_pieces_are_read() -> None:
    unwrapper = Unwrapper()
    assert unwrapper.feed(b"2026-01-31T12:00:00.5Z stderr P first ", "1") is None
    whole = unwrapper.feed(b"2026-01-31T12:00:01.5Z stderr F second", "2")
    assert whole is not None
    assert (whole.text, whole.time, whole.key) == ("first second", NOON + 0.5, "1")
    empty = unwrapper.feed(b"2026-01-31T12:00:01.5+01:00 stdout F ", "3")
    assert empty is not None
    assert empty.text == ""


@pytest.mark.parametrize(
    "line", [b"plain", b'{"log": 3}', b'{"log": "cut', b'{"log":', b"2026-01-31T12:00:00Z stdout X hm"]
)
def test_what_is_no_wrapping_is_the_programs_own(line: bytes) -> None:
    whole = Unwrapper().feed(line)
    assert whole is not None
    assert whole.text == line.decode()


def test_pieces_without_end_are_passed_on_before_they_fill_the_memory() -> None:
    unwrapper = Unwrapper()
    passed = [unwrapper.feed(docker("a" * 16384)) for _ in range(100)]
    assert any(passed)
    assert all(len(one.text) <= LONGEST + 16384 for one in passed if one is not None)


def test_a_piece_that_stands_open_at_the_end_is_not_lost() -> None:
    unwrapper = Unwrapper()
    unwrapper.feed(docker("half"), "1")
    assert unwrapper.waiting
    (left,) = unwrapper.flush()
    assert left.text == "half"
    assert not unwrapper.waiting


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-31T12:00:00Z hello", NOON),
        ("[2026-01-31T13:00:00,500+01:00] hello", NOON + 0.5),
        ("2026-01-31 12:00:00.125 UTC [71] FATAL: no", NOON + 0.125),
        ('{"level":"warn","ts":"2026-01-31T12:00:00.000Z"}', NOON),
        ('{"level":"warn","ts":1769860800.5}', NOON + 0.5),
        ('{"time":1769860800250,"msg":""}', NOON + 0.25),
        ("%3|1769860800.125|FAIL|rdkafka#producer-1| x", NOON + 0.125),
        ("2026-01-31 12:00:00 of which zone?", None),
        ('{"ts":"2026-01-31 12:00:00"}', None),
        ("2026-13-31T12:00:00Z", None),
        ("nothing", None),
    ],
)
def test_only_a_time_with_its_zone_is_believed(text: str, time: float | None) -> None:
    assert told(text) == (None if time is None else pytest.approx(time))


def test_records_are_a_programs_with_tag_and_key() -> None:
    record = Application("llama").take(docker("hello\n"), "7.0.0")
    assert record is not None
    assert (record.writer, record.tag, record.text, record.tags["key"]) == (Writer.PROGRAM, "llama", "hello", "7.0.0")


@given(st.lists(st.sampled_from(["a", "line with words", '{"x": 1}', "ü"]), max_size=20), st.data())
def test_bytes_cut_anywhere_give_the_same_records(lines: list[str], data: st.DataObject) -> None:
    whole = "".join(f"{line}\n" for line in lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    framer = Application()
    records = []
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        records += framer.feed(whole[begin:end])
    records += framer.flush()
    assert [record.text for record in records] == lines


@given(st.lists(st.binary(max_size=300), max_size=10))
def test_random_bytes_are_no_error(chunks: list[bytes]) -> None:
    framer = Application()
    for chunk in chunks:
        framer.feed(chunk)
    framer.flush()


def test_a_line_without_end_is_cut_and_counted() -> None:
    framer = Application()
    records = [record for _ in range(40) for record in framer.feed(b"x" * 65536)]
    records += framer.feed(b"\nnext\n")
    assert framer.bad == 1
    assert [len(record.text) for record in records] == [LONGEST_LINE, 4]
