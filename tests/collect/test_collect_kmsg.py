from __future__ import annotations

import os
import select
import time
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.collect.base import Fact
from gpuchaos_agent.collect.framing import Framer, unescape
from gpuchaos_agent.collect.kmsg import KmsgCollector
from gpuchaos_agent.collect.repeats import Repeats
from gpuchaos_agent.snapshot import fault_event
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin

NOW = 1_700_000_000.0
#: The node was booted 1000 s before NOW.
UP = 1000.0


def line(seq: int, text: str, *, prefix: int = 4, usec: int = 990_000_000) -> str:
    return f"{prefix},{seq},{usec},-;{text}\n"


def lost(bus: int) -> str:
    return f"NVRM: Xid (PCI:0000:{bus:02x}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def collector(
    path: Path, *, state: Path | None = None, boot: str = "boot-a", from_start: bool = False
) -> KmsgCollector:
    return KmsgCollector(path, boot_id=boot, state=state, from_start=from_start, monotonic=lambda: UP)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text("")
    return path


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.write("".join(lines))


def test_a_record_becomes_a_fact_at_the_time_of_the_record(log: Path) -> None:
    append(log, line(7, lost(0x3B)))
    (fact,) = collector(log, from_start=True).read(NOW).facts
    assert (fact.fault, fact.local, fact.origin, fact.severity) == (
        "gpu_lost",
        "0000:3b:00",
        Origin.KERNEL,
        Severity.CRITICAL,
    )
    assert fact.time == pytest.approx(NOW - UP + 990.0)
    assert fact.key == "kmsg/boot-a/7"


def test_a_record_that_a_process_wrote_claims_and_does_not_state(log: Path) -> None:
    append(log, line(7, "eco-test: " + lost(0x3B), prefix=12))
    (fact,) = collector(log, from_start=True).read(NOW).facts
    assert (fact.fault, fact.origin, fact.injected_mark) == ("spoof_or_injected", Origin.PROCESS, False)
    assert fact.severity is Severity.WARNING
    assert (fact.evidence["claims"], fact.evidence["facility"]) == ("gpu_lost", 1)


def test_our_own_injection_is_known_by_its_mark(log: Path) -> None:
    append(log, line(7, lost(0x3B) + " gpuchaos-injected=f-123", prefix=12))
    (fact,) = collector(log, from_start=True).read(NOW).facts
    assert (fact.fault, fact.origin, fact.injected_mark) == ("gpu_lost", Origin.PROCESS, True)
    assert fact.evidence["fault_id"] == "f-123"


def test_the_first_start_ever_tells_nothing_of_the_past_and_everything_from_then_on(log: Path) -> None:
    append(log, line(1, lost(1)), line(2, "something else"))
    follower = collector(log)
    first = follower.read(NOW)
    append(log, line(3, lost(3)))
    second = follower.read(NOW)
    assert first.facts == ()
    assert first.info["position"] == 2
    assert [fact.local for fact in second.facts] == ["0000:03:00"]


def test_a_restart_goes_on_where_the_last_commit_was(log: Path, tmp_path: Path) -> None:
    state = tmp_path / "state/kmsg.json"
    first = collector(log, state=state)
    append(log, line(1, lost(1)))
    assert len(first.read(NOW).facts) == 1
    first.commit()
    append(log, line(2, lost(2)))
    uncommitted = first.read(NOW).facts
    first.close()
    append(log, line(3, lost(3)))
    again = collector(log, state=state).read(NOW).facts
    assert [fact.key for fact in again] == ["kmsg/boot-a/2", "kmsg/boot-a/3"]
    assert fault_event(again[0], cluster="c", node="n").id == fault_event(uncommitted[0], cluster="c", node="n").id


def test_a_kill_before_the_first_record_loses_nothing_of_the_log_after_it(log: Path, tmp_path: Path) -> None:
    state = tmp_path / "kmsg.json"
    append(log, line(1, lost(1)))
    first = collector(log, state=state)
    first.read(NOW)
    append(log, line(2, lost(2)))
    assert [fact.local for fact in collector(log, state=state).read(NOW).facts] == ["0000:02:00"]


def test_a_position_is_not_kept_past_facts_that_are_not_safe_yet(log: Path, tmp_path: Path) -> None:
    state = tmp_path / "kmsg.json"
    append(log, line(0, "booted"))
    first = collector(log, state=state)
    first.read(NOW)
    append(log, line(1, lost(1)))
    assert len(first.drain(NOW)) == 1
    append(log, line(2, "nothing"))
    first.read(NOW)
    first.read(NOW)
    assert [fact.key for fact in collector(log, state=state).read(NOW).facts] == ["kmsg/boot-a/1"]


def test_a_position_that_cannot_be_kept_is_said_and_the_log_is_followed(log: Path, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    append(log, line(1, "x"))
    follower = collector(log, state=in_the_way / "kmsg.json", from_start=True)
    reading = follower.read(NOW)
    assert "cannot be kept" in reading.absent["kmsg.position"]
    append(log, line(2, lost(1)))
    assert len(follower.read(NOW).facts) == 1


def test_after_a_reboot_the_whole_log_is_new(log: Path, tmp_path: Path) -> None:
    state = tmp_path / "kmsg.json"
    append(log, line(900, "old"))
    first = collector(log, state=state)
    first.commit()
    log.write_text(line(1, lost(1)))
    reading = collector(log, state=state, boot="boot-b").read(NOW)
    assert [fact.key for fact in reading.facts] == ["kmsg/boot-b/1"]
    assert reading.info["lost"] == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"boot_id": "boot-a"}', '{"boot_id": 1, "seq": "x"}', "null"])
def test_a_broken_position_file_is_a_first_start(log: Path, tmp_path: Path, content: str) -> None:
    state = tmp_path / "kmsg.json"
    state.write_text(content)
    append(log, line(1, lost(1)))
    assert collector(log, state=state).read(NOW).facts == ()


def test_records_that_were_overwritten_are_counted(log: Path) -> None:
    append(log, line(1, "a"), line(2, "b"), line(12, "c"))
    assert collector(log, from_start=True).read(NOW).info["lost"] == 9


def test_a_flood_of_one_fault_is_one_fact_and_a_count(log: Path) -> None:
    append(log, *(line(n, lost(1), usec=100_000_000 + n) for n in range(1000)))
    follower = collector(log, from_start=True)
    assert len(follower.read(NOW).facts) == 1
    append(log, line(1000, lost(1), usec=200_000_000))
    (fact,) = follower.read(NOW).facts
    assert fact.evidence["repeats"] == 999


def test_a_process_cannot_hide_the_kernels_record_behind_its_own(log: Path) -> None:
    append(log, line(1, lost(1), prefix=12), line(2, lost(1)), line(3, lost(1) + " gpuchaos-injected=f", prefix=12))
    facts = collector(log, from_start=True).read(NOW).facts
    assert [(fact.origin, fact.injected_mark) for fact in facts] == [
        (Origin.PROCESS, False),
        (Origin.KERNEL, False),
        (Origin.PROCESS, True),
    ]


def test_a_log_that_is_not_there_is_said_and_found_when_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    follower = collector(path, from_start=True)
    assert str(path) in follower.read(NOW).absent["kmsg"]
    append(path, line(1, lost(1)))
    reading = follower.read(NOW)
    assert len(reading.facts) == 1
    assert reading.absent == {}


def test_a_device_named_by_the_kernel_is_evidence(log: Path) -> None:
    append(log, line(1, lost(1)), " SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n")
    (fact,) = collector(log, from_start=True).read(NOW).facts
    assert fact.evidence["device"] == "+pci:0000:01:00.0"


def test_a_record_of_several_lines_is_one_text() -> None:
    assert unescape(rb"a\x0ab\x5cx41\x09\xc3\xa4") == "a\nb\\x41\tä"


def test_the_number_of_things_remembered_is_bounded() -> None:
    repeats = Repeats(window_s=5.0, most=10)
    assert all(repeats.passes(n, 0.0) == 0 for n in range(1000))
    assert len(repeats._seen) == 10


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_random_bytes_are_cut_without_an_error(chunks: list[bytes]) -> None:
    framer = Framer()
    for chunk in chunks:
        for record in (*framer.feed(chunk), *framer.flush()):
            assert record.prefix >= 0


@given(
    st.lists(st.tuples(st.integers(0, 191), st.text(st.characters(codec="utf-8"), max_size=80)), max_size=12),
    st.integers(1, 40),
)
def test_records_come_back_whole_however_the_bytes_are_cut(written: list[tuple[int, str]], size: int) -> None:
    def escape(text: str) -> str:
        return "".join(chr(b) if 32 <= b < 127 and b != 0x5C else f"\\x{b:02x}" for b in text.encode())

    data = "".join(line(n, escape(text), prefix=prefix) for n, (prefix, text) in enumerate(written)).encode()
    framer = Framer()
    found = [r for at in range(0, len(data), size) for r in framer.feed(data[at : at + size])] + framer.flush()
    assert [(record.prefix, record.text) for record in found] == written
    assert framer.bad == 0


def _can_use_kmsg() -> bool:
    return os.access("/dev/kmsg", os.R_OK | os.W_OK)


@pytest.mark.root
@pytest.mark.skipif(not _can_use_kmsg(), reason="/dev/kmsg cannot be read and written here: needs root")
def test_a_real_record_wakes_the_follower_and_arrives_within_a_second(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    follower = KmsgCollector(Path("/dev/kmsg"), boot_id=boot, state=tmp_path / "kmsg.json")
    fd = follower.fileno()
    assert fd is not None
    mark = uuid.uuid4().hex
    written = time.time()
    with Path("/dev/kmsg").open("w") as device:
        device.write(f"collect-test: NVRM: Xid (PCI:0000:fe:00): 79, {mark} GPU has fallen off the bus.\n")
    facts: list[Fact] = []
    while not facts and time.time() < written + 5.0:
        assert select.select([fd], [], [], 1.0)[0]
        facts = [f for f in follower.drain(time.time()) if mark in str(f.evidence["text"])]
    (fact,) = facts
    assert time.time() - written < 1.0
    assert abs(fact.time - written) < 0.5
    assert (fact.origin, fact.fault) == (Origin.PROCESS, "spoof_or_injected")
    follower.commit()
    follower.close()
    again = KmsgCollector(Path("/dev/kmsg"), boot_id=boot, state=tmp_path / "kmsg.json")
    assert not [f for f in again.read(time.time()).facts if mark in str(f.evidence["text"])]
    again.close()
