"""`network-partition` between real hosts: network namespaces with cables between them, and real sockets."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from journal_entries import journalled
from lab.hosts import Host, cable, echo, host, needs
from pydantic import ValidationError
from two_hosts import serving

from gpuchaos_agent import clock
from gpuchaos_agent.inject import nft
from gpuchaos_agent.inject.base import Env, Evidence, InjectError
from gpuchaos_agent.inject.network_partition import NetworkPartition, NetworkPartitionParams
from gpuchaos_agent.journal import Journal, JournalEntry, Scalar

pytestmark = pytest.mark.root

NODE = "n1"
TARGET = f"node/{NODE}"
PEER, PEER6 = "10.77.1.2", "fd77:1::2"
BROKER = "10.77.2.2"
SERVICE, OTHER, KAFKA = 5432, 6379, 9092


@dataclass(frozen=True)
class Hosts:
    node: Host
    peer: Host
    brokers: Host


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    needs("nft", "ip", "unshare")
    with host("node") as node, host("peer") as peer, host("brokers") as brokers:
        cable(node, peer, 1)
        cable(node, brokers, 2)
        served = ((peer, SERVICE), (peer, OTHER), (brokers, KAFKA), (brokers, SERVICE), (node, SERVICE))
        with contextlib.ExitStack() as stack:
            for at, port in served:
                stack.enter_context(serving(at, port))
            yield Hosts(node, peer, brokers)


@pytest.fixture
def empty_procfs(tmp_path: Path) -> Path:
    """No process of this machine counts; its network is the node's."""
    procfs = tmp_path / "proc"
    procfs.mkdir()
    (procfs / "net").symlink_to("/proc/self/net")
    return procfs


@pytest.fixture
def partition(empty_procfs: Path) -> NetworkPartition:
    return make(empty_procfs)


def make(procfs: Path, *brokers: str, **names: str) -> NetworkPartition:
    def lookup(name: str) -> list[str]:
        if name not in names:
            raise OSError("no such name")
        return names[name].split(",")

    env = Env(node=NODE, boot_id=clock.boot_id(), procfs=procfs, brokers=brokers or (f"{BROKER}:{KAFKA}",))
    return NetworkPartition(env, lookup=lookup)


def planned(of: NetworkPartition, hosts: Hosts, fault_id: str = "f-1", **params: Scalar) -> JournalEntry:
    with hosts.node.inside():
        reason = of.check(TARGET, params)
        assert reason is None, reason
        payload = of.plan(TARGET, params, fault_id)
    return entry_of(fault_id, payload, params)


def entry_of(fault_id: str, payload: dict[str, Scalar], params: dict[str, Scalar]) -> JournalEntry:
    return journalled("network-partition", TARGET, params, payload, boot_id=clock.boot_id(), fault_id=fault_id)


def injected(of: NetworkPartition, hosts: Hosts, entry: JournalEntry) -> Evidence:
    with hosts.node.inside():
        of.inject(entry)
        return of.evidence(entry)


def undone(of: NetworkPartition, hosts: Hosts, entry: JournalEntry) -> bool:
    with hosts.node.inside():
        of.undo(entry)
        of.undo(entry)
        return of.verify(entry)


def reason(of: NetworkPartition, hosts: Hosts, target: str = TARGET, **params: Scalar) -> str:
    with hosts.node.inside():
        return of.check(target, params) or ""


@contextlib.contextmanager
def forwarding(hosts: Hosts) -> Iterator[None]:
    """The node as the router between the other two."""
    hosts.node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    hosts.peer.run("ip", "route", "add", "10.77.2.0/24", "via", "10.77.1.1")
    hosts.brokers.run("ip", "route", "add", "10.77.1.0/24", "via", "10.77.2.1")
    try:
        yield
    finally:
        hosts.brokers.run("ip", "route", "del", "10.77.1.0/24")
        hosts.peer.run("ip", "route", "del", "10.77.2.0/24")
        hosts.node.run("sysctl", "-qw", "net.ipv4.ip_forward=0")


@pytest.mark.parametrize("address", [PEER, PEER6])
def test_a_peer_is_cut_in_both_ways_and_comes_back(partition: NetworkPartition, hosts: Hosts, address: str) -> None:
    before = hosts.node.rules()
    with hosts.node.connect(address, SERVICE) as standing:
        assert echo(standing) == "answered"
        entry = planned(partition, hosts, peers=address)
        evidence = injected(partition, hosts, entry)
        assert evidence.moved
        assert int(evidence.detail["dropped_packets_out"] or 0) > 0
        assert hosts.node.tcp(address, SERVICE) == "silence"
        assert hosts.node.udp(address, SERVICE) == 0
        assert hosts.peer.tcp(address.replace("2", "1") if ":" not in address else "fd77:1::1", SERVICE) != "answered"
        assert echo(standing) == "silence"
        assert hosts.node.tcp(BROKER, KAFKA) == "answered"
        assert undone(partition, hosts, entry)
        assert echo(standing, 5.0) in ("answered", "closed")
    assert hosts.node.tcp(address, SERVICE) == "answered"
    assert hosts.node.udp(address, SERVICE) == 1
    assert hosts.node.rules() == before


def test_all_peers_are_cut_but_not_the_agents_way_to_its_brokers_nor_loopback(
    partition: NetworkPartition, hosts: Hosts
) -> None:
    before = hosts.node.rules()
    entry = planned(partition, hosts, peers="all")
    assert injected(partition, hosts, entry).moved
    assert hosts.node.tcp(BROKER, KAFKA) == "answered"
    assert hosts.node.tcp(BROKER, SERVICE) == "silence"
    assert hosts.node.tcp(PEER, SERVICE) == "silence"
    assert hosts.node.tcp(PEER6, SERVICE) == "silence"
    assert hosts.node.tcp("127.0.0.1", SERVICE) == "answered"
    assert hosts.node.tcp("::1", SERVICE) == "answered"
    assert undone(partition, hosts, entry)
    assert hosts.node.rules() == before


def test_the_brokers_are_cut_only_when_asked_for(empty_procfs: Path, hosts: Hosts) -> None:
    partition = make(empty_procfs)
    assert "own way to its brokers" in reason(partition, hosts, peers=f"{BROKER}:{KAFKA}")
    entry = planned(partition, hosts, peers=f"{BROKER}:{KAFKA}", include_brokers=True)
    assert injected(partition, hosts, entry).moved
    assert hosts.node.tcp(BROKER, KAFKA) == "silence"
    assert hosts.node.tcp(BROKER, SERVICE) == "answered"
    assert undone(partition, hosts, entry)
    assert hosts.node.tcp(BROKER, KAFKA) == "answered"


def test_a_broker_known_by_name_keeps_its_ipv6_address_open_as_well(empty_procfs: Path, hosts: Hosts) -> None:
    partition = make(empty_procfs, f"kafka.local:{KAFKA}", **{"kafka.local": f"{BROKER},fd77:2::2"})
    entry = planned(partition, hosts, peers="all")
    assert injected(partition, hosts, entry).moved
    assert hosts.node.tcp("fd77:2::2", KAFKA) == "answered"
    assert hosts.node.tcp(BROKER, KAFKA) == "answered"
    assert hosts.node.tcp("fd77:2::2", SERVICE) == "silence"
    assert undone(partition, hosts, entry)


def test_a_broker_that_the_agent_was_led_to_is_kept_too(hosts: Hosts) -> None:
    partition = NetworkPartition(Env(node=NODE, boot_id=clock.boot_id(), brokers=(f"{BROKER}:{OTHER}",)))
    with hosts.node.connect(PEER, OTHER):
        entry = planned(partition, hosts, peers="all", force=True)
    assert f"{PEER}/32:{OTHER}" in str(entry.payload["kept"])


@pytest.mark.parametrize("direction", ["out", "in"])
def test_one_direction_is_cut_and_the_other_is_not(partition: NetworkPartition, hosts: Hosts, direction: str) -> None:
    entry = planned(partition, hosts, peers=PEER, direction=direction)
    evidence = injected(partition, hosts, entry)
    assert evidence.moved
    way, other = ("out", "in") if direction == "out" else ("in", "out")
    assert int(evidence.detail[f"dropped_packets_{way}"] or 0) > 0
    assert evidence.detail[f"dropped_packets_{other}"] == 0
    assert hosts.node.tcp(PEER, SERVICE) == "silence"
    assert hosts.peer.tcp("10.77.1.1", SERVICE) == "silence"
    # What is sent one way arrives, although no answer can come back.
    sender, receiver = (hosts.peer, hosts.node) if direction == "out" else (hosts.node, hosts.peer)
    with receiver.inside():
        inbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        inbox.bind(("", 0))
        inbox.settimeout(2)
    with inbox, sender.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outbox:
        outbox.sendto(b"arrives", ("10.77.1.1" if direction == "out" else PEER, inbox.getsockname()[1]))
        assert inbox.recv(16) == b"arrives"
    assert undone(partition, hosts, entry)


def test_only_the_named_port_of_the_named_peer_is_cut(partition: NetworkPartition, hosts: Hosts) -> None:
    entry = planned(partition, hosts, peers=f"{PEER}:{SERVICE},[{PEER6}]:{OTHER}", protocol="tcp")
    assert injected(partition, hosts, entry).moved
    assert hosts.node.tcp(PEER, SERVICE) == "silence"
    assert hosts.node.tcp(PEER, OTHER) == "answered"
    assert hosts.node.tcp(PEER6, OTHER) == "silence"
    assert hosts.node.tcp(PEER6, SERVICE) == "answered"
    assert hosts.node.udp(PEER, SERVICE) == 1
    assert undone(partition, hosts, entry)


def test_a_port_alone_is_cut_whoever_is_at_the_other_end(partition: NetworkPartition, hosts: Hosts) -> None:
    with hosts.node.connect(PEER, OTHER) as known:  # so that there is somebody to knock at
        entry = planned(partition, hosts, peers=f"tcp/{SERVICE}")
        assert injected(partition, hosts, entry).moved
        assert hosts.node.tcp(PEER, SERVICE) == "silence"
        assert hosts.node.tcp(BROKER, SERVICE) == "silence"
        assert hosts.peer.tcp("10.77.1.1", SERVICE) == "silence"
        assert echo(known) == "answered"
        assert undone(partition, hosts, entry)


def test_only_one_device_is_cut_off(partition: NetworkPartition, hosts: Hosts) -> None:
    entry = planned(partition, hosts, peers="all", interface="to-peer")
    assert injected(partition, hosts, entry).moved
    assert hosts.node.tcp(PEER, SERVICE) == "silence"
    assert hosts.node.tcp(BROKER, SERVICE) == "answered"
    assert undone(partition, hosts, entry)


def test_what_the_node_forwards_for_its_pods_is_cut_as_well(partition: NetworkPartition, hosts: Hosts) -> None:
    with forwarding(hosts):
        assert hosts.brokers.tcp(PEER, SERVICE) == "answered"
        entry = planned(partition, hosts, peers=PEER)
        assert injected(partition, hosts, entry).moved
        assert hosts.brokers.tcp(PEER, SERVICE) == "silence"
        assert undone(partition, hosts, entry)
        assert hosts.brokers.tcp(PEER, SERVICE) == "answered"


def test_a_network_is_cut_by_its_prefix(partition: NetworkPartition, hosts: Hosts) -> None:
    entry = planned(partition, hosts, peers="10.77.1.0/24,10.77.1.2,fd77:1::/64")
    assert injected(partition, hosts, entry).moved
    assert hosts.node.tcp(PEER, SERVICE) == "silence"
    assert hosts.node.tcp(PEER6, SERVICE) == "silence"
    assert hosts.node.tcp(BROKER, SERVICE) == "answered"
    assert undone(partition, hosts, entry)


def test_rejecting_answers_at_once_on_both_sides(partition: NetworkPartition, hosts: Hosts) -> None:
    with hosts.node.connect(PEER, SERVICE) as standing, hosts.peer.connect("10.77.1.1", SERVICE) as theirs:
        assert (echo(standing), echo(theirs)) == ("answered", "answered")
        entry = planned(partition, hosts, peers=PEER, action="reject")
        assert injected(partition, hosts, entry).moved
        assert hosts.node.tcp(PEER, SERVICE, 5) == "refused"
        assert hosts.peer.tcp("10.77.1.1", SERVICE, 5) == "refused"
        assert echo(standing, 5) == "reset"
        assert echo(theirs, 5) == "reset"
        assert undone(partition, hosts, entry)
    assert hosts.node.tcp(PEER, SERVICE) == "answered"


def test_half_of_the_packets_are_lost_where_half_was_asked_for(partition: NetworkPartition, hosts: Hosts) -> None:
    entry = planned(partition, hosts, peers=PEER, loss_percent=50, direction="out", protocol="udp")
    assert injected(partition, hosts, entry).moved
    answered = sum(hosts.node.udp(PEER, SERVICE, 100) for _ in range(10))
    assert 400 < answered < 600  # six standard deviations of 1000 throws
    with hosts.node.inside():
        counted = nft.counters(nft.table_name("f-1"))
    assert 0.4 < counted["dropped_out"].packets / counted["seen_out"].packets < 0.6
    assert undone(partition, hosts, entry)


def test_a_loss_of_one_in_a_hundred_is_still_seen(partition: NetworkPartition, hosts: Hosts) -> None:
    entry = planned(partition, hosts, peers=PEER, loss_percent=1, protocol="udp")
    assert injected(partition, hosts, entry).moved
    assert undone(partition, hosts, entry)


def test_two_partitions_do_not_disturb_each_other(partition: NetworkPartition, hosts: Hosts) -> None:
    before = hosts.node.rules()
    first = planned(partition, hosts, "f-1", peers=PEER)
    second = planned(partition, hosts, "f.1", peers=f"{BROKER}:{SERVICE}")
    assert first.payload["table"] != second.payload["table"]
    assert injected(partition, hosts, first).moved
    assert injected(partition, hosts, second).moved
    assert undone(partition, hosts, first)
    assert hosts.node.tcp(PEER, SERVICE) == "answered"
    assert hosts.node.tcp(BROKER, SERVICE) == "silence"
    assert undone(partition, hosts, second)
    assert hosts.node.rules() == before


def test_rules_of_somebody_else_are_left_alone(partition: NetworkPartition, hosts: Hosts) -> None:
    hosts.node.run(
        "nft", "add table inet firewall; add chain inet firewall input { type filter hook input priority 0; }"
    )
    try:
        before = hosts.node.rules()
        entry = planned(partition, hosts, peers=PEER)
        assert injected(partition, hosts, entry).moved
        assert undone(partition, hosts, entry)
        assert hosts.node.rules() == before
    finally:
        hosts.node.run("nft", "delete", "table", "inet", "firewall")


def test_a_cut_that_no_packet_can_meet_is_no_evidence(partition: NetworkPartition, hosts: Hosts) -> None:
    entry = planned(partition, hosts, peers="203.0.113.7")  # there is no route to it from here
    evidence = injected(partition, hosts, entry)
    assert not evidence.moved
    assert evidence.detail["seen_packets"] == 0
    assert undone(partition, hosts, entry)


def test_an_agent_killed_right_after_the_cut_is_undone_by_the_next_one_from_the_journal(
    empty_procfs: Path, hosts: Hosts, tmp_path: Path
) -> None:
    before = hosts.node.rules()
    code = f"""
        import os, signal, sys
        from pathlib import Path
        sys.path[:0] = {sys.path!r}
        from test_inject_network_partition import *
        partition = make(Path({str(empty_procfs)!r}))
        entry = entry_of("f-1", partition.plan(TARGET, {{"peers": PEER}}, "f-1"), {{"peers": PEER}})
        Journal(Path({str(tmp_path / "journal")!r})).write(entry)
        partition.inject(entry)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with hosts.node.inside():
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert hosts.node.tcp(PEER, SERVICE) == "silence"
    (entry,), _ = Journal(tmp_path / "journal").read()
    fresh = make(empty_procfs)
    with hosts.node.inside():
        assert not fresh.verify(entry)
    assert undone(fresh, hosts, entry)
    assert hosts.node.tcp(PEER, SERVICE) == "answered"
    assert hosts.node.rules() == before


def test_an_entry_of_another_boot_cuts_nothing_and_is_undone(partition: NetworkPartition, hosts: Hosts) -> None:
    entry = planned(partition, hosts, peers=PEER).model_copy(update={"boot_id": "of another boot"})
    with hosts.node.inside(), pytest.raises(InjectError, match="reboot"):
        partition.inject(entry)
    assert undone(partition, hosts, entry)


def test_the_commands_that_are_shown_do_what_the_strategy_does(partition: NetworkPartition, hosts: Hosts) -> None:
    before = hosts.node.rules()
    entry = planned(partition, hosts, peers=PEER)
    cut, back = partition.commands(entry)
    hosts.node.run("sh", "-c", cut)
    typed = hosts.node.rules()
    assert hosts.node.tcp(PEER, SERVICE) == "silence"
    hosts.node.run("sh", "-c", back)
    assert hosts.node.rules() == before
    with hosts.node.inside():
        partition.inject(entry)
    assert hosts.node.rules().split("packets")[0] == typed.split("packets")[0]
    assert undone(partition, hosts, entry)


def test_what_must_not_be_cut_is_refused(empty_procfs: Path, hosts: Hosts) -> None:
    partition = make(empty_procfs)
    local = make(empty_procfs, "10.77.1.1:9092")
    lost = make(empty_procfs, "kafka.nowhere:9092")
    reasons = {
        "another node": reason(partition, hosts, target="node/n2", peers=PEER),
        "a process": reason(partition, hosts, target=f"process/{NODE}/1", peers=PEER),
        "itself": reason(partition, hosts, peers="10.77.1.1"),
        "loopback": reason(partition, hosts, peers="127.0.0.1"),
        "unresolved": reason(partition, hosts, peers="db.nowhere:5432"),
        "no device": reason(partition, hosts, peers=PEER, interface="ib9"),
        "broker here": reason(local, hosts, peers=PEER),
        "broker unresolved": reason(lost, hosts, peers="all"),
        "nothing left": reason(partition, hosts, peers="tcp/5432", protocol="udp"),
    }
    assert [name for name, why in reasons.items() if not why] == []
    assert reason(local, hosts, peers=PEER, force=True) == ""


def test_the_node_of_a_running_worker_is_refused_unless_forced(empty_procfs: Path, hosts: Hosts) -> None:
    (empty_procfs / "4711").mkdir()
    (empty_procfs / "4711" / "cmdline").write_bytes(b"/usr/bin/python3\0/usr/local/bin/gpuchaos\0worker\0--cell\0c1\0")
    partition = make(empty_procfs)
    assert "process 4711" in reason(partition, hosts, peers=PEER)
    assert reason(partition, hosts, peers=PEER, force=True) == ""


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "peers: all"),
        ({"peers": ""}, "say all"),
        ({"peers": "10.0.0.300"}, "no address"),
        ({"peers": "db.local:0"}, "no port"),
        ({"peers": "all", "ports": "80-79"}, "no port"),
        ({"peers": "all", "loss_percent": 0}, "greater than or equal to 1"),
        ({"peers": "all", "loss_percent": 101}, "less than or equal to 100"),
        ({"peers": "all", "direction": "sideways"}, "'in', 'out' or 'both'"),
        ({"peers": "all", "interface": 'x" drop'}, "match pattern"),
        ({"peers": "10.0.0.7; flush ruleset"}, "no address"),
        ({"peer": "all"}, "Extra inputs"),
    ],
)
def test_parameters_that_mean_nothing_are_named(params: dict[str, Scalar], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        NetworkPartitionParams.model_validate(params)


def test_two_faults_on_one_path_take_hold_of_the_same_thing(partition: NetworkPartition) -> None:
    one = partition.resources(TARGET, {"peers": "10.0.0.7, 10.0.0.8"})
    other = partition.resources(TARGET, {"peers": "10.0.0.8"})
    assert one & other
    assert not other & partition.resources(TARGET, {"peers": "10.0.0.9"})
