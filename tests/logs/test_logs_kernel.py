from __future__ import annotations

import select
import time
from pathlib import Path
from typing import Any

import pytest
from journald_kit import NOW, XID, Clock, Script

from gpuchaos_agent.collect.base import Sources
from gpuchaos_agent.collect.kernel_log import KernelLogCollector
from gpuchaos_agent.logs.device import DeviceSource
from gpuchaos_agent.logs.syslog_source import PER_CALL, SyslogSource
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin


@pytest.fixture
def script(tmp_path: Path) -> Script:
    folder = tmp_path / "script"
    folder.mkdir()
    return Script(folder)


def syslog(path: Path, **fields: Any) -> SyslogSource:
    return SyslogSource((path,), wall=lambda: NOW, **fields)


def stamped(text: str, tag: str = "kernel") -> str:
    return f"{time.strftime('%b %d %H:%M:%S', time.localtime(NOW))} gpu-7 {tag}: {text}\n"


def test_a_syslog_file_gives_the_kernels_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "syslog"
    path.write_text(stamped("of the past"))
    source = syslog(path)
    assert source.open()
    with path.open("a") as file:
        file.write(
            stamped("[ 12.000001] news") + stamped("words", tag="gpud[7]") + "no line at all\n" + stamped("half")[:-1]
        )
    (one,) = source.records(NOW)
    assert (one.record.text, one.record.usec, one.record.time) == ("news", 12_000_001, NOW)
    with path.open("a") as file:
        file.write(" a line\n")
    assert [one.record.text for one in source.records(NOW)] == ["half a line"]
    assert source.info()["unreadable"] == 1


def test_a_syslog_file_is_followed_through_rotation_and_a_new_start(tmp_path: Path) -> None:
    path, state = tmp_path / "syslog", tmp_path / "state/syslog.json"
    path.write_text(stamped("zero"))
    first = syslog(path, state=state)
    assert first.open()
    with path.open("a") as file:
        file.write(stamped("one"))
    (one,) = first.records(NOW)
    first.save()
    first.close()
    with path.open("a") as file:
        file.write(stamped("two"))
    path.rename(tmp_path / "syslog.1")
    path.write_text(stamped("three"))
    again = syslog(path, state=state)
    assert again.open()
    found = again.records(NOW)
    assert [sourced.record.text for sourced in found] == ["two", "three"]
    assert len({sourced.key for sourced in (one, *found)}) == 3


def test_a_burst_in_a_file_rings_until_all_of_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "syslog"
    path.write_text("")
    follower = KernelLogCollector([syslog(path, hints=("NVRM: ",))])
    fd = follower.fileno()
    assert fd is not None
    assert not select.select([fd], [], [], 0)[0]
    noise = stamped("veth7: link becomes ready") * 2000
    with path.open("a") as file:
        for bus in range(10):
            file.write(noise + stamped(XID.format(bus=bus)))
    facts = list(follower.read(NOW).facts)
    calls = 1
    while select.select([fd], [], [], 0)[0]:
        facts += follower.drain(NOW)
        calls += 1
    assert [fact.local for fact in facts] == [f"0000:{bus:02x}:00" for bus in range(10)]
    assert calls > path.stat().st_size // PER_CALL
    assert follower.read(NOW).info["skipped"] == 20_000
    follower.close()
    follower.close()


def test_the_first_way_that_can_be_read_is_taken_and_all_reasons_are_said_where_none_can(
    script: Script, tmp_path: Path
) -> None:
    clock, path, kmsg = Clock(), tmp_path / "syslog", tmp_path / "kmsg"
    script.says(then="echo 'No permission.' >&2; exit 1")
    device = DeviceSource(kmsg, boot_id="b", from_start=True)
    follower = KernelLogCollector([device, script.source(clock), syslog(path, from_start=True)])
    fd = follower.fileno()
    assert fd is not None, "journalctl was begun and has not said yet that it may not"
    assert select.select([fd], [], [], 20)[0]
    deadline = time.monotonic() + 20
    reading = follower.read(NOW)
    while not reading.absent and time.monotonic() < deadline:
        reading = follower.read(NOW)
    for reason in (str(kmsg), "No permission.", str(path)):
        assert reason in reading.absent["kernel_log"]
    path.write_text(stamped(XID.format(bus=4)))
    reading = follower.read(NOW)
    assert ([fact.local for fact in reading.facts], reading.info["way"]) == (["0000:04:00"], "syslog")
    follower.close()


def test_a_way_is_made_as_the_settings_say(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.write_text("")
    sources = Sources(
        procfs=tmp_path, kmsg=tmp_path / "kmsg", syslog=path, kernel_log="syslog", state_dir=tmp_path / "s"
    )
    follower = KernelLogCollector.from_sources(sources)
    with path.open("a") as file:
        file.write(stamped(XID.format(bus=5)))
    reading = follower.read(NOW)
    (fact,) = reading.facts
    assert (fact.fault, fact.severity, fact.origin) == ("gpu_lost", Severity.CRITICAL, Origin.KERNEL)
    assert fact.evidence["source"] == "syslog"
    follower.commit()
    assert (tmp_path / "s/syslog.json").exists()
    follower.close()
