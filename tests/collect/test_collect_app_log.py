from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpuchaos_agent.collect.app_log import SAVE_EVERY_S, AppLogCollector
from gpuchaos_agent.collect.base import Fact, Follower, JobSource, Sources
from gpuchaos_agent.collect.registry import collectors
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin

TIMEOUT = (
    "[rank{rank}]:[E512 10:11:12 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600100 milliseconds "
    "before timing out.\n"
)
FULL = "OSError: [Errno 28] No space left on device: '/ckpt/step_5/0.distcp'\n"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.log"
    path.write_text(FULL)
    return path


def test_it_is_found_by_the_registry() -> None:
    assert collectors()["app_log"] is AppLogCollector
    collector = AppLogCollector.from_sources(Sources())
    assert isinstance(collector, Follower)
    assert collector.read(1.0).absent == {"app_log": "no job has a log, and app_logs names none"}
    assert collector.fileno() is None
    collector.close()
    collector.close()


def test_what_a_job_says_is_a_fact_of_its_process(log: Path) -> None:
    collector = AppLogCollector((JobSource("llama", pid=4711, log=log),))
    append(log, "step=1\n" + FULL)
    (fact,) = collector.read(100.0).facts
    assert (fact.fault, fact.severity, fact.kind, fact.local) == (
        "checkpoint_write_failed",
        Severity.ERROR,
        "process",
        "4711",
    )
    assert (fact.origin, fact.time) == (Origin.APPLICATION, 100.0)
    assert {name: fact.evidence[name] for name in ("job", "errno", "cause", "log")} == {
        "job": "llama",
        "errno": 28,
        "cause": "disk_full",
        "log": str(log),
    }
    assert fact.evidence["advice"]


@pytest.mark.parametrize("stamp", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59+00:00"])
def test_a_time_that_was_never_set_is_no_time(log: Path, stamp: str) -> None:
    collector = AppLogCollector((JobSource("llama", pid=4711, log=log),))
    append(log, f"{stamp} {FULL}")
    (fact,) = collector.read(100.0).facts
    assert fact.time == 100.0
    assert "said_at" not in fact.evidence


def test_the_process_is_found_by_its_pidfile_and_is_the_job_where_nobody_knows_it(log: Path, tmp_path: Path) -> None:
    pidfile = tmp_path / "pid"
    collector = AppLogCollector((JobSource("llama", pidfile=pidfile, log=log),))
    append(log, FULL)
    (unknown,) = collector.read(100.0).facts
    pidfile.write_text("812\n")
    append(log, "redis.exceptions.ConnectionError: max number of clients reached\n")
    (known,) = collector.read(101.0).facts
    assert (unknown.local, known.local) == ("llama", "812")


def test_a_log_of_no_job_speaks_for_the_node(log: Path) -> None:
    collector = AppLogCollector((), {"pooler": log})
    append(log, "FATAL:  no more connections allowed (max_client_conn)\n")
    (fact,) = collector.read(1.0).facts
    assert (fact.fault, fact.kind, fact.local, fact.evidence["program"]) == (
        "db_connection_limit",
        "node",
        "",
        "pooler",
    )


def test_ranks_of_one_job_in_several_logs_are_one_event(tmp_path: Path) -> None:
    logs = [tmp_path / f"{rank}.log" for rank in range(3)]
    for path in logs:
        path.write_text("")
    collector = AppLogCollector(tuple(JobSource("llama", pid=100 + n, log=path) for n, path in enumerate(logs)))
    for rank, path in enumerate(logs):
        append(path, TIMEOUT.format(rank=rank))
    facts = collector.read(100.0).facts
    assert [fact.fault for fact in facts] == ["collective_timeout"]
    append(
        logs[1], "\t - To our best knowledge, ranks [7] are the lagging ranks that caused this timeout. They never\n"
    )
    (later,) = collector.read(101.0).facts
    assert (later.fault, later.evidence["ranks"], later.evidence["suspect"]) == ("collective_desync", "0,1,2", "7")
    assert later.evidence["opened"] == facts[0].key


def test_two_jobs_are_two_events(tmp_path: Path) -> None:
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    for path in logs:
        path.write_text("")
    collector = AppLogCollector(tuple(JobSource(path.stem, log=path) for path in logs))
    for path in logs:
        append(path, TIMEOUT.format(rank=0))
    assert [fact.evidence["job"] for fact in collector.read(1.0).facts] == ["a", "b"]


def test_containers_wrapping_is_taken_off_and_its_time_believed(log: Path) -> None:
    collector = AppLogCollector((), {"pod": log})
    wrapped = {"log": FULL, "stream": "stderr", "time": "1970-01-01T00:01:30.5Z"}
    append(log, json.dumps(wrapped) + "\n")
    append(log, "1970-01-01T00:01:31Z stderr P redis.exceptions.ConnectionError: max number of\n")
    append(log, "1970-01-01T00:01:31Z stderr F  clients reached\n")
    facts = collector.read(100.0).facts
    assert [(fact.fault, fact.time) for fact in facts] == [
        ("checkpoint_write_failed", 90.5),
        ("db_connection_limit", 91.0),
    ]


def test_a_time_that_is_yet_to_come_is_now(log: Path) -> None:
    collector = AppLogCollector((), {"pod": log})
    append(log, "2100-01-01T00:00:00Z " + FULL)
    assert collector.read(100.0).facts[0].time == 100.0


def kept(log: Path, state: Path) -> AppLogCollector:
    return AppLogCollector((JobSource("llama", log=log),), state_dir=state)


def test_facts_that_were_not_committed_come_again_with_the_same_key(log: Path, tmp_path: Path) -> None:
    first = kept(log, tmp_path / "state")
    first.read(0.0)
    append(log, FULL)
    (fact,) = first.read(100.0).facts
    first.read(200.0)
    first.close()
    again = kept(log, tmp_path / "state")
    (same,) = again.read(300.0).facts
    assert same.key == fact.key
    again.commit()
    again.close()
    assert kept(log, tmp_path / "state").read(400.0).facts == ()


def test_what_was_written_while_the_agent_was_away_is_read(log: Path, tmp_path: Path) -> None:
    first = kept(log, tmp_path / "state")
    first.read(0.0)
    first.close()
    append(log, FULL)
    assert len(kept(log, tmp_path / "state").read(1.0).facts) == 1


def test_positions_are_not_written_every_tick(log: Path, tmp_path: Path) -> None:
    collector = kept(log, tmp_path / "state")
    collector.read(0.0)
    (file,) = (tmp_path / "state/app_log").iterdir()
    before = file.read_text()
    append(log, "step=1\n")
    collector.read(SAVE_EVERY_S / 2)
    assert file.read_text() == before
    collector.read(SAVE_EVERY_S)
    assert file.read_text() != before


def test_a_position_that_cannot_be_kept_is_said(log: Path, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    reading = kept(log, tmp_path / "state").read(0.0)
    assert "cannot be kept" in reading.absent["app_log.position"]


def test_a_log_that_cannot_be_read_is_said_and_others_go_on(log: Path, tmp_path: Path) -> None:
    collector = AppLogCollector((JobSource("gone", log=tmp_path / "no.log"),), {"here": log})
    append(log, FULL)
    reading = collector.read(1.0)
    assert str(tmp_path / "no.log") in reading.absent["app_log.gone"]
    assert len(reading.facts) == 1


def test_a_burst_drops_no_fault_and_rings_for_more(log: Path) -> None:
    """100,000 lines at once, with a fault here and there; every call is bounded."""
    collector = AppLogCollector((), {"a": log})
    bell = collector.fileno()
    assert bell is not None
    lines = [f"worker {number} says that everything is as it should be today\n" for number in range(100_000)]
    for number in range(0, 100_000, 10_000):
        lines[number] = f"Connection to node -1 (kfk-{number}/10.8.0.2:9092) could not be established.\n".replace(
            "established.", "established. Broker may not be available."
        )
    append(log, "".join(lines))
    facts: list[Fact] = list(collector.read(1.0).facts)
    calls = 1
    while select.select([bell], [], [], 0)[0]:
        facts += collector.drain(1.0)
        calls += 1
    assert calls > 3
    assert len(facts) == 10
    assert collector.read(2.0).info["behind"] == 0
    collector.close()


def test_a_flood_of_one_log_does_not_keep_another_waiting(log: Path, tmp_path: Path) -> None:
    flood = tmp_path / "flood.log"
    flood.write_text("")
    collector = AppLogCollector((), {"flood": flood, "quiet": log})
    append(flood, "x" * 99 + "\n" * 1)
    append(flood, ("y" * 99 + "\n") * 50_000)
    append(log, FULL)
    facts = [*collector.drain(1.0), *collector.drain(1.0)]
    assert [fact.fault for fact in facts] == ["checkpoint_write_failed"]


def test_a_real_refused_connection_becomes_its_fact(log: Path) -> None:
    """A program of its own is refused by a real port, and its traceback goes to its log."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    program = (
        "import asyncio\n"
        "try:\n"
        f"    asyncio.run(asyncio.open_connection('127.0.0.1', {port}))\n"
        "except OSError as error:\n"
        f"    print('redis.exceptions.ConnectionError: Error', error.errno, 'connecting to 127.0.0.1:{port}.', "
        "'Connection refused.')\n"
    )
    collector = AppLogCollector((JobSource("llama", log=log),))
    with log.open("a") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True, timeout=60)
    (fact,) = collector.read(1.0).facts
    assert (fact.fault, fact.evidence["server"]) == ("db_unreachable", f"127.0.0.1:{port}")


def test_a_rotated_log_is_read_to_its_end_and_on(log: Path) -> None:
    collector = AppLogCollector((), {"a": log})
    append(log, FULL)
    log.rename(log.with_name("rank0.log.1"))
    log.write_text("redis.exceptions.ConnectionError: max number of clients reached\n")
    assert [fact.fault for fact in collector.read(1.0).facts] == ["checkpoint_write_failed", "db_connection_limit"]
