from __future__ import annotations

import io
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.logs import literals
from gpuchaos_agent.logs.kmsg import KmsgFramer, escape, unescape
from gpuchaos_agent.logs.lines import LineFramer
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.logs.stream import records
from gpuchaos_agent.words import registry


def line(seq: int, text: str, *, prefix: int = 4, usec: int = 990_000_000) -> bytes:
    return b"%d,%d,%d,-;%s\n" % (prefix, seq, usec, escape(text))


def framed(data: bytes, framer: LineFramer | None = None) -> list[LogRecord]:
    framer = framer or KmsgFramer()
    return [*framer.feed(data), *framer.flush()]


def test_facility_and_level_are_taken_from_the_prefix_and_name_the_writer() -> None:
    kernel, process = framed(line(7, "a", prefix=4, usec=12) + line(8, "b", prefix=12))
    assert (kernel.writer, kernel.facility, kernel.level, kernel.seq, kernel.usec) == (Writer.KERNEL, 0, 4, 7, 12)
    assert (process.writer, process.facility, process.level) == (Writer.INJECTED, 1, 4)


def test_lines_that_begin_with_a_blank_are_tags_of_the_record_above() -> None:
    (record,) = framed(line(1, "x") + b" SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n")
    assert record.tags == {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:01:00.0"}


def test_a_record_of_several_lines_is_one_text() -> None:
    assert unescape(rb"a\x0ab\x5cx41\x09\xc3\xa4") == "a\nb\\x41\tä"


def test_a_tag_without_a_record_is_bad_and_no_record() -> None:
    framer = KmsgFramer()
    assert framed(b" DEVICE=+pci:0000:01:00.0\n", framer) == []
    assert framer.bad == 1


def test_a_jump_in_the_numbers_is_lost_and_a_number_seen_twice_is_not() -> None:
    framer = KmsgFramer()
    assert len(framed(line(3, "a") + line(3, "b") + line(9, "c") + line(1, "next boot") + line(2, "d"), framer)) == 5
    assert framer.lost == 5


def test_callbacks_that_the_kernel_suppressed_are_counted_and_a_process_cannot_claim_any() -> None:
    framer = KmsgFramer()
    framed(line(1, "net_ratelimit: 12 callbacks suppressed"), framer)
    framed(line(2, "net_ratelimit: 99 callbacks suppressed", prefix=12), framer)
    assert (framer.suppressed, framer.lost) == (12, 12)


def test_records_without_a_hint_are_skipped_but_their_numbers_are_seen() -> None:
    framer = KmsgFramer(hints=("NVRM: Xid", "tab\there"))
    data = line(1, "noise") + line(4, "NVRM: Xid x") + line(6, "noise") + line(7, "tab\there")
    assert [record.seq for record in framed(data, framer)] == [4, 7]
    assert (framer.skipped, framer.lost, framer.seq) == (2, 3, 7)


def test_one_read_of_the_device_is_one_whole_record() -> None:
    framer = KmsgFramer(hints=("Xid",))
    record = framer.whole(line(1, "NVRM: Xid\nsecond") + b" DEVICE=c1:2\n")
    assert record is not None
    assert (record.text, record.tags) == ("NVRM: Xid\nsecond", {"DEVICE": "c1:2"})
    assert framer.whole(line(3, "noise")) is None
    assert (framer.seq, framer.lost) == (3, 1)


def test_a_line_that_is_too_long_is_one_bad_line_and_what_follows_its_end_is_read() -> None:
    framer = KmsgFramer()
    found = []
    chunk = b"6,1,1,-;" + b"x" * (1 << 20)
    for _ in range(20):
        found += framer.feed(chunk)
        assert len(framer._rest) <= framer.LONGEST
    found += framed(b"4,5,6,-;NVRM: middle of the line\n TAG=of the long one\n" + line(2, "after"), framer)
    assert [record.text for record in found] == ["after"]
    assert framer.bad == 2


def test_a_large_recording_is_streamed_in_flat_memory() -> None:
    class Endless(io.RawIOBase):
        """64 MiB that are made as they are read."""

        left = 64 << 20
        block = line(1, "noise of a driver") * 4096

        def read(self, size: int = -1) -> bytes:
            self.left -= size
            return self.block[:size] if self.left > 0 else b""

    framer = KmsgFramer(hints=("NVRM",))
    began = time.monotonic()
    assert list(records(Endless(), framer)) == []  # type: ignore[arg-type]
    assert framer.skipped > 500_000
    assert time.monotonic() - began < 60


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_random_bytes_are_cut_without_an_error(chunks: list[bytes]) -> None:
    framer = KmsgFramer()
    for chunk in chunks:
        for record in framer.feed(chunk):
            assert record.seq is not None
    framer.flush()


@given(
    st.lists(st.tuples(st.integers(0, 191), st.text(st.characters(codec="utf-8"), max_size=80)), max_size=12),
    st.integers(1, 40),
)
def test_records_come_back_whole_however_the_bytes_are_cut(written: list[tuple[int, str]], size: int) -> None:
    data = b"".join(line(n, text, prefix=prefix) for n, (prefix, text) in enumerate(written))
    framer = KmsgFramer()
    found = [r for at in range(0, len(data), size) for r in framer.feed(data[at : at + size])] + framer.flush()
    assert [(record.facility, record.level, record.text) for record in found] == [
        (prefix >> 3, prefix & 7, text) for prefix, text in written
    ]
    assert framer.bad == 0


@given(st.lists(st.text("abX: ", max_size=4), max_size=12), st.text("abX: c", max_size=16))
def test_one_pattern_finds_what_each_literal_would(words: list[str], text: str) -> None:
    found = any(word in text for word in words if word)
    assert (literals.any_bytes(word.encode() for word in words).search(text.encode()) is not None) == found
    assert (re.search(literals.any_of(words), text) is not None) == found


def test_the_pattern_of_all_words_finds_each_of_them_and_passes_a_flood_quickly() -> None:
    hints = registry.hints(Writer.KERNEL)
    pattern = re.compile(literals.any_of(hints))
    for hint in hints:
        assert pattern.search(f"a {hint}"), hint
    noise = 'audit: type=1400 apparmor="STATUS" operation="profile_load" name="docker-default" ' * 200
    began = time.process_time()
    assert pattern.search(noise) is None
    assert time.process_time() - began < 0.01


@pytest.mark.parametrize("text", ["", "\\", "\\x", "\\xg0", "\\x4"])
def test_what_is_no_escape_stays_as_it_is(text: str) -> None:
    assert unescape(text.encode()) == text
