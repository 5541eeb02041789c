from __future__ import annotations

import os
import select
import threading
import time
import uuid
from pathlib import Path

import pytest

from gpuchaos_agent.collect.base import Fact, Sources
from gpuchaos_agent.collect.kernel_log import KernelLogCollector
from gpuchaos_agent.kernelfs import quiet
from gpuchaos_agent.logs import device
from gpuchaos_agent.logs.device import DeviceSource
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
) -> KernelLogCollector:
    source = DeviceSource(path, boot_id=boot, state=state, from_start=from_start, monotonic=lambda: UP)
    return KernelLogCollector([source])


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
    assert "cannot be kept" in reading.absent["kernel_log.position"]
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


def test_records_that_were_overwritten_are_counted_and_told(log: Path) -> None:
    append(log, line(1, "a"), line(2, "b"), line(12, lost(1)))
    reading = collector(log, from_start=True).read(NOW)
    assert reading.info["lost"] == 9
    gap, fact = reading.facts
    assert (gap.fault, gap.severity, gap.evidence["count"]) == ("kernel_log_gap", Severity.WARNING, 9)
    assert (gap.key, fact.key) == ("kmsg/boot-a/12/gap", "kmsg/boot-a/12")
    assert gap.time == fact.time
    assert "kernel log" in str(gap.evidence["advice"])


def test_records_that_were_overwritten_while_the_agent_was_away_are_told(log: Path, tmp_path: Path) -> None:
    state = tmp_path / "kmsg.json"
    append(log, line(1, "a"))
    first = collector(log, state=state)
    first.read(NOW)
    log.write_text(line(100, "the oldest that is left") + line(101, "b"))
    facts = collector(log, state=state).read(NOW).facts
    assert [(fact.fault, fact.evidence["count"]) for fact in facts] == [("kernel_log_gap", 98)]


def test_what_the_kernel_suppressed_itself_is_said_but_is_no_gap_of_ours(log: Path) -> None:
    append(log, line(1, "net_ratelimit: 41 callbacks suppressed"))
    reading = collector(log, from_start=True).read(NOW)
    assert (reading.info["suppressed"], reading.info["lost"], reading.facts) == (41, 0, ())


def test_a_flood_of_one_fault_is_few_facts_and_a_count(log: Path) -> None:
    append(log, *(line(n, lost(1), usec=100_000_000 + n * 10_000) for n in range(1000)))
    facts = collector(log, from_start=True).read(NOW).facts
    assert len(facts) == 2
    assert 500 <= int(facts[1].evidence["count"] or 0) <= 1000


def test_a_burst_drops_no_fault_and_says_what_it_passed_over(log: Path) -> None:
    with log.open("w") as file:
        for n in range(100_000):
            file.write(line(n, lost(n // 1000) if n % 1000 == 500 else f"veth{n}: link becomes ready", usec=n * 1000))
    source = DeviceSource(log, boot_id="b", hints=("NVRM: ",), from_start=True, monotonic=lambda: UP)
    follower = KernelLogCollector([source])
    facts = list(follower.read(NOW).facts)
    while source.behind:
        facts += follower.drain(NOW)
    info = follower.read(NOW).info
    assert [fact.local for fact in facts] == [f"0000:{bus:02x}:00" for bus in range(100)]
    assert (info["skipped"], info["lost"], info["position"]) == (99_900, 0, 99_999)


def test_a_call_is_bounded_and_the_rest_is_there_at_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "READS_PER_CALL", 1)
    monkeypatch.setattr(device, "BUFFER", 4096)
    append(log, *(line(n, lost(n % 256), usec=n * 1_000_000) for n in range(100)))
    follower = collector(log, from_start=True)
    fd = follower.fileno()
    assert fd is not None
    facts = list(follower.drain(NOW))
    calls = 1
    while select.select([fd], [], [], 0)[0]:
        facts += follower.drain(NOW)
        calls += 1
    assert [fact.key for fact in facts] == [f"kmsg/boot-a/{n}" for n in range(100)]
    assert 3 < calls < 10
    follower.close()


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
    assert str(path) in follower.read(NOW).absent["kernel_log"]
    append(path, line(1, lost(1)))
    reading = follower.read(NOW)
    assert len(reading.facts) == 1
    assert reading.absent == {}


def test_a_device_named_by_the_kernel_is_evidence(log: Path) -> None:
    append(log, line(1, lost(1)), " SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0\n")
    (fact,) = collector(log, from_start=True).read(NOW).facts
    assert fact.evidence["kernel_device"] == "+pci:0000:01:00.0"
    assert fact.evidence["device"] == "0000:01:00"
    assert (fact.evidence["source"], fact.evidence["seq"], fact.evidence["level"]) == ("kmsg", 1, 4)


def test_a_refusal_of_a_register_to_our_own_thread_is_taken_to_heart(log: Path) -> None:
    thread = threading.get_native_id()
    said = "mlx5_core 0000:05:00.{n}: mlx5_cmd_out_err:835:(pid {pid}): ACCESS_REG(0x805) op_mod(0x1) failed"
    append(log, line(1, said.format(n=0, pid=thread)), line(2, said.format(n=1, pid=thread), prefix=12))
    try:
        collector(log, from_start=True).read(NOW)
        assert quiet.asked("0000:05:00.0")
        assert not quiet.asked("0000:05:00.1"), "a process said that, not the driver"
    finally:
        quiet.forget()


def _can_use_kmsg() -> bool:
    return os.access("/dev/kmsg", os.R_OK | os.W_OK)


@pytest.mark.root
@pytest.mark.skipif(not _can_use_kmsg(), reason="/dev/kmsg cannot be read and written here: needs root")
def test_a_real_record_wakes_the_follower_and_arrives_within_a_second(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    sources = Sources(kernel_log="kmsg", state_dir=tmp_path)
    follower = KernelLogCollector.from_sources(sources)
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
    assert fact.key.startswith(f"kmsg/{boot}/")
    assert (fact.origin, fact.fault) == (Origin.PROCESS, "spoof_or_injected")
    follower.commit()
    follower.close()
    again = KernelLogCollector.from_sources(sources)
    assert not [f for f in again.read(time.time()).facts if mark in str(f.evidence["text"])]
    again.close()


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero"])
def test_another_device_in_its_place_is_no_silent_kernel_log(device: str, tmp_path: Path) -> None:
    (tmp_path / "kmsg").symlink_to(device)
    collector = KernelLogCollector.from_sources(Sources(kmsg=tmp_path / "kmsg", kernel_log="kmsg"))
    assert "is another device" in collector.read(1.0).absent["kernel_log"]
    assert collector.fileno() is None
    collector.close()
