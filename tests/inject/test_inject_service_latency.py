"""`service-latency` on real connections: network namespaces, a real service, and the clock.

This machine's kernel may have no netem: what netem does is shown in the guest (`test_guest_fault_latency.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from journal_entries import journalled
from lab.hosts import Host, cable, echo, host, needs
from lab.waiting import until
from two_hosts import serving

from gpuchaos_agent import clock
from gpuchaos_agent.inject import hold, nft
from gpuchaos_agent.inject.base import Env, InjectError
from gpuchaos_agent.inject.service_latency import ServiceLatency
from gpuchaos_agent.journal import EntryState, Journal, JournalEntry, Scalar

NODE = "n1"
TARGET = f"node/{NODE}"
PEER, PEER6 = "10.77.1.2", "fd77:1::2"
SERVICE, OTHER, SILENT, BULK = 5432, 6379, 7000, 7001
ECHO: dict[str, Scalar] = {"service": f"{PEER}:{SERVICE}", "method": "proxy", "probe": "PING\\r\\n"}


@dataclass(frozen=True)
class Hosts:
    node: Host
    peer: Host


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    needs("nft", "ip", "unshare")
    with host("node") as node, host("peer") as peer:
        cable(node, peer, 1)
        with serving(peer, SERVICE), serving(peer, OTHER), serving(node, SERVICE), talking(peer):
            yield Hosts(node, peer)


@contextlib.contextmanager
def talking(at: Host) -> Iterator[None]:
    """A service that never says anything, and one that speaks first, a million bytes, and closes."""
    with at.inside():
        silent = socket.create_server((PEER, SILENT))
        bulk = socket.create_server((PEER, BULK))
    kept: list[socket.socket] = []
    ended = threading.Event()

    def take(listener: socket.socket, data: bytes) -> None:
        listener.settimeout(0.05)
        while not ended.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                connection.settimeout(10)
                connection.sendall(data)
                if data:
                    connection.close()
                kept.append(connection)

    threads = [threading.Thread(target=take, args=args) for args in ((silent, b""), (bulk, b"x" * 1_000_000))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        for each in (silent, bulk, *kept):
            each.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def strategy(state: Path, **fields: object) -> ServiceLatency:
    return ServiceLatency(Env(node=NODE, boot_id=clock.boot_id(), state_dir=state, **fields))  # type: ignore[arg-type]


def planned(of: ServiceLatency, state: Path, params: dict[str, Scalar], *, lease_s: float = 60.0) -> JournalEntry:
    assert of.check(TARGET, params) is None
    fault_id = f"f-{os.urandom(4).hex()}"
    payload = of.plan(TARGET, params, fault_id)
    entry = journalled(
        of.name, TARGET, params, payload, boot_id=clock.boot_id(), fault_id=fault_id, lease_s=lease_s, now=clock.now()
    )
    Journal(state / "journal").write(entry)
    return entry


@contextlib.contextmanager
def injected(state: Path, params: dict[str, Scalar], **more: float) -> Iterator[tuple[ServiceLatency, JournalEntry]]:
    """Undone twice at the end, with nothing left."""
    fault = strategy(state)
    before = ruleset()
    entry = planned(fault, state, params, **more)
    try:
        fault.inject(entry)
        yield fault, entry
    finally:
        fault.undo(entry)
        assert fault.verify(entry)
        fault.undo(entry)
        assert holders(entry) == []
        assert ruleset() == before


def ruleset() -> str:
    return subprocess.run(["nft", "list", "ruleset"], check=True, capture_output=True, text=True).stdout


def holders(entry: JournalEntry) -> list[int]:
    return [int(each["holder_pid"] or 0) for each in hold.find(str(entry.payload["holder"]))]


def round_trip(address: str, port: int = SERVICE, timeout: float = 10.0) -> float:
    """Seconds for a connection, a question and its answer: the least of three, as the machine may be busy."""

    def once() -> float:
        began = time.monotonic()
        with socket.create_connection((address, port), timeout=timeout) as connection:
            connection.sendall(b"hello")
            assert connection.recv(5) == b"hello"
        return time.monotonic() - began

    return min(once() for _ in range(3))


@pytest.mark.root
@pytest.mark.parametrize(("direction", "trips"), [("out", 2), ("in", 2), ("both", 4)])
def test_one_service_is_slow_by_its_delay_and_its_neighbours_are_not(
    hosts: Hosts, state: Path, direction: str, trips: int
) -> None:
    with hosts.node.inside():
        assert round_trip(PEER) < 0.05
        with injected(state, {**ECHO, "delay": "60ms", "direction": direction}) as (fault, entry):
            evidence = fault.evidence(entry)
            assert evidence.moved, evidence
            assert (evidence.detail["method"], evidence.detail["measured"]) == ("proxy", "probe")
            assert float(evidence.detail["during_ms"] or 0) >= 60
            assert float(evidence.detail["before_ms"] or 0) < 50
            # A connection and a question: each of them crosses the delayed direction once.
            assert trips * 0.06 <= round_trip(PEER) < trips * 0.06 + 0.15
            assert round_trip(PEER, OTHER) < 0.05
            assert round_trip("127.0.0.1") < 0.05
            assert not fault.verify(entry)
        assert round_trip(PEER) < 0.05


@pytest.mark.root
def test_a_service_by_ipv6_is_slow_as_well(hosts: Hosts, state: Path) -> None:
    with hosts.node.inside():
        params: dict[str, Scalar] = {**ECHO, "service": f"[{PEER6}]:{SERVICE}", "delay": "80ms"}
        with injected(state, params) as (fault, entry):
            assert fault.evidence(entry).moved
            assert round_trip(PEER6) >= 0.16
            assert round_trip(PEER) < 0.05
        assert round_trip(PEER6) < 0.05


@pytest.mark.root
def test_a_service_on_this_node_is_slow_through_its_own_proxy(hosts: Hosts, state: Path) -> None:
    with (
        hosts.node.inside(),
        injected(state, {**ECHO, "service": f"127.0.0.1:{SERVICE}", "delay": "70ms"}) as (fault, entry),
    ):
        assert fault.evidence(entry).moved
        assert round_trip("127.0.0.1") >= 0.14


@pytest.mark.root
def test_without_a_probe_the_end_of_input_is_timed(hosts: Hosts, state: Path) -> None:
    params: dict[str, Scalar] = {"service": f"{PEER}:{SERVICE}", "delay": "90ms", "method": "proxy"}
    with hosts.node.inside(), injected(state, params) as (fault, entry):
        evidence = fault.evidence(entry)
        assert evidence.moved
        assert evidence.detail["measured"] == "end-of-input"


@pytest.mark.root
def test_a_delay_longer_than_the_look_at_it_is_evidence_too(hosts: Hosts, state: Path) -> None:
    with hosts.node.inside(), injected(state, {**ECHO, "delay": "5s"}) as (fault, entry):
        evidence = fault.evidence(entry)
    assert evidence.moved
    assert evidence.detail["during_ms"] is None


@pytest.mark.root
def test_a_narrow_path_lets_through_what_it_says(hosts: Hosts, state: Path) -> None:
    def fetch() -> float:
        began, size = time.monotonic(), 0
        with socket.create_connection((PEER, BULK), timeout=10) as connection:
            while data := connection.recv(65536):
                size += len(data)
        assert size == 1_000_000
        return time.monotonic() - began

    params: dict[str, Scalar] = {
        "service": f"{PEER}:{BULK}", "bandwidth": "8mbit", "direction": "both", "method": "proxy",
    }  # fmt: skip
    with hosts.node.inside():
        assert fetch() < 0.6
        with injected(state, params) as (fault, entry):
            evidence = fault.evidence(entry)
            assert evidence.moved, evidence
            assert evidence.detail["measured"] == "banner"
            assert 0.8 < fetch() < 3
        assert fetch() < 0.6


@pytest.mark.root
def test_connections_that_stand_already_go_on_and_are_counted(hosts: Hosts, state: Path) -> None:
    with hosts.node.inside(), socket.create_connection((PEER, SERVICE), timeout=5) as standing:
        # The process's own tables are those of the namespace that it began in: the test's thread has another one.
        fault = strategy(state, procfs=thread_procfs(state.parent))
        entry = planned(fault, state, {**ECHO, "delay": "300ms"})
        try:
            fault.inject(entry)
            began = time.monotonic()
            standing.sendall(b"hello")
            assert standing.recv(5) == b"hello"
            assert time.monotonic() - began < 0.1
            assert fault.evidence(entry).detail["untouched"] == 1
        finally:
            fault.undo(entry)


def thread_procfs(folder: Path) -> Path:
    procfs = folder / "proc"
    procfs.mkdir()
    (procfs / "net").symlink_to("/proc/thread-self/net")
    return procfs


@pytest.mark.root
def test_an_undo_lets_connections_end_in_their_own_time_and_without_delay(hosts: Hosts, state: Path) -> None:
    params: dict[str, Scalar] = {**ECHO, "delay": "300ms", "drain": "30s"}
    with hosts.node.inside(), injected(state, params) as (fault, entry):
        with socket.create_connection((PEER, SERVICE), timeout=10) as connection:
            connection.sendall(b"hello")
            assert connection.recv(5) == b"hello"
            (undoing := threading.Thread(target=fault.undo, args=(entry,))).start()
            until(lambda: "\t\taccept\n" in ruleset())
            began = time.monotonic()
            connection.sendall(b"again")
            assert connection.recv(5) == b"again"
            assert time.monotonic() - began < 0.3
            assert undoing.is_alive(), "it did not wait for the connection"
        undoing.join(10)


@pytest.mark.root
def test_a_connection_that_stays_is_ended_when_the_drain_is_over(hosts: Hosts, state: Path) -> None:
    params: dict[str, Scalar] = {**ECHO, "delay": "50ms", "drain": "100ms"}
    with (
        hosts.node.inside(),
        injected(state, params) as (fault, entry),
        socket.create_connection((PEER, SERVICE), timeout=10) as connection,
    ):
        connection.sendall(b"hello")
        assert connection.recv(5) == b"hello"
        fault.undo(entry)
        assert fault.verify(entry)
        assert echo(connection, 5.0) in ("closed", "reset")


@pytest.mark.root
def test_a_proxy_that_is_killed_takes_its_redirect_with_it(hosts: Hosts, state: Path) -> None:
    with hosts.node.inside(), injected(state, {**ECHO, "delay": "200ms"}) as (fault, entry):
        table = str(entry.payload["table"])
        assert nft.exists(table)
        proxies = [pid for pid in holders(entry) if "python" in Path(f"/proc/{pid}/exe").readlink().name]
        assert len(proxies) == 1
        os.kill(proxies[0], signal.SIGKILL)
        until(lambda: not nft.exists(table))
        assert round_trip(PEER) < 0.1
        with pytest.raises(InjectError):
            fault.evidence(entry)


@pytest.mark.root
def test_another_process_undoes_it_from_the_journal_alone(hosts: Hosts, state: Path) -> None:
    program = f"""
from pathlib import Path
from gpuchaos_agent import clock, offline
from gpuchaos_agent.inject import registry
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.journal import Journal
env = Env(node={NODE!r}, boot_id=clock.boot_id(), state_dir=Path({str(state)!r}))
outcomes, _ = offline.undo(Journal(env.state_dir / "journal"), registry.build(env), clock.now(), "test")
print([outcome.problem for outcome in outcomes])
"""
    with hosts.node.inside(), injected(state, {**ECHO, "delay": "200ms"}) as (_, entry):
        assert hosts.node.run(sys.executable, "-c", program).strip() == "[None]"
        assert holders(entry) == []
        assert round_trip(PEER) < 0.05


@pytest.mark.root
@pytest.mark.parametrize("moment", ["started", "ready"])
def test_an_agent_killed_while_it_injects_leaves_what_the_journal_takes_back(
    hosts: Hosts, state: Path, moment: str
) -> None:
    program = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from gpuchaos_agent.inject import hold
from test_inject_service_latency import ECHO, planned, strategy
state = Path({str(state)!r})
fault = strategy(state)
entry = planned(fault, state, {{**ECHO, "delay": "200ms"}})
if {moment!r} == "started":
    hold._says_ready = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
fault.inject(entry)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with hosts.node.inside():
        before = ruleset()
        died = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
        assert died.returncode == -signal.SIGKILL, died.stderr
        (entry,), _ = Journal(state / "journal").read()
        fault = strategy(state)
        fault.undo(entry)
        assert fault.verify(entry)
        Journal(state / "journal").write(entry.model_copy(update={"state": EntryState.UNDONE}))
        until(lambda: holders(entry) == [])
        until(lambda: ruleset() == before)
        assert round_trip(PEER) < 0.05


@pytest.mark.root
def test_the_proxy_ends_by_itself_when_the_lease_is_over_and_nobody_lives(hosts: Hosts, state: Path) -> None:
    with hosts.node.inside():
        fault = strategy(state)
        entry = planned(fault, state, {**ECHO, "delay": "100ms"}, lease_s=1.0)
        fault.inject(entry)
        until(lambda: holders(entry) == [])
        assert clock.now().boot >= entry.lease_deadline
        until(lambda: not nft.exists(str(entry.payload["table"])))
        assert fault.verify(entry)


@pytest.mark.root
def test_the_agents_own_brokers_are_refused_unless_asked_for(hosts: Hosts, state: Path) -> None:
    with hosts.node.inside():
        fault = strategy(state, brokers=(f"{PEER}:{SERVICE}",))
        params: dict[str, Scalar] = {**ECHO, "delay": "100ms"}
        assert "own way to Kafka" in (fault.check(TARGET, params) or "")
        assert fault.check(TARGET, {**params, "include_brokers": True}) is None
        assert fault.check(TARGET, {**params, "service": f"{PEER}:{OTHER}"}) is None


@pytest.mark.root
def test_what_cannot_be_measured_or_does_not_answer_is_refused_with_the_reason(hosts: Hosts, state: Path) -> None:
    fault = strategy(state)
    with hosts.node.inside():
        silent: dict[str, Scalar] = {"service": f"{PEER}:{SILENT}", "delay": "100ms", "method": "proxy"}
        assert "give probe" in (fault.check(TARGET, silent) or "")
        assert "does not answer" in (fault.check(TARGET, {**silent, "service": f"{PEER}:1"}) or "")
        assert "node/n1" in (fault.check("node/n2", silent) or "")
        assert "resolved" in (fault.check(TARGET, {**silent, "service": "nobody.invalid:80"}) or "")


@pytest.mark.root
def test_the_dry_run_names_the_rules_and_the_proxy(hosts: Hosts, state: Path) -> None:
    with hosts.node.inside():
        fault = strategy(state)
        entry = planned(fault, state, {**ECHO, "delay": "100ms"})
        text = "\n".join(fault.commands(entry))
        assert f"ip daddr {PEER} tcp dport {SERVICE}" in text
        assert "gpuchaos_agent.inject.proxy" in text
        assert ruleset() == ""


@pytest.mark.root
def test_after_a_reboot_there_is_nothing_to_take_back(hosts: Hosts, state: Path) -> None:
    with hosts.node.inside():
        fault = strategy(state)
        entry = planned(fault, state, {**ECHO, "delay": "100ms"}).model_copy(update={"boot_id": "of another boot"})
        fault.undo(entry)
        assert fault.verify(entry)
        with pytest.raises(InjectError):
            fault.inject(entry)
