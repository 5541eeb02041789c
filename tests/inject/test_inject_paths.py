"""Two faults on one path: traffic is compared as networks and ports, whatever it is called."""

from __future__ import annotations

import ipaddress
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_entries import journalled

from gpuchaos_agent import admit
from gpuchaos_agent.inject import paths
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.database_outage import DatabaseOutage
from gpuchaos_agent.inject.network_partition import NetworkPartition, NetworkPartitionParams
from gpuchaos_agent.inject.service_latency_params import ServiceLatencyParams
from gpuchaos_agent.inject.storage_mode import StorageDisconnectParams

ENV = Env(node="n1", boot_id="b")
ADDRESSES = {"db.local": ["10.9.9.9"], "other.local": ["10.8.8.8"]}


def lookup(name: str) -> list[str]:
    if name not in ADDRESSES:
        raise OSError("no such name")
    return ADDRESSES[name]


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("path:all", "path:10.9.9.9", True),
        ("path:all", "path:all", True),
        ("path:all", "path:127.0.0.1:5432", False),
        ("path:10.9.9.0/24", "path:10.9.9.9:5432", True),
        ("path:10.9.9.9:80", "path:10.9.9.9:5432", False),
        ("path:10.9.9.9:5000-6000", "path:10.9.9.9:5432", True),
        ("path:tcp/5432", "path:10.9.9.9:5432", True),
        ("path:tcp/5432", "path:udp/5432", False),
        ("path:db.local:5432", "path:10.9.9.9", True),
        ("path:other.local:5432", "path:10.9.9.9", False),
        ("path:gone.local:5432", "path:10.9.9.9", True),
        ("path:[fd00::1]:5432", "path:fd00::/64", True),
        ("path:fd00::/64", "path:10.9.9.9", False),
        ("file:/a", "file:/a", True),
        ("file:/a", "path:all", False),
    ],
)
def test_paths_meet_where_their_networks_and_ports_do(one: str, other: str, meet: bool) -> None:
    assert bool(paths.common(frozenset({one}), frozenset({other}), lookup)) is meet
    assert bool(paths.common(frozenset({other}), frozenset({one}), lookup)) is meet


NETWORKS = st.builds(
    lambda address, length: f"path:{ipaddress.IPv4Address(address)}/{length}",
    st.integers(0, 2**32 - 1),
    st.integers(8, 32),
)


@given(NETWORKS, NETWORKS)
def test_whether_paths_meet_does_not_depend_on_who_asks(a: str, b: str) -> None:
    one, other = frozenset({a}), frozenset({b})
    assert bool(paths.common(one, other)) is bool(paths.common(other, one))
    assert paths.common(one, one) == one


@pytest.mark.parametrize(
    ("params", "held"),
    [
        ({"peers": "all"}, {"path:all"}),
        ({"peers": "10.9.9.9,db.local:5432"}, {"path:10.9.9.9", "path:db.local:5432"}),
        ({"peers": "10.9.9.9,fd00::1", "ports": "80,90-99"},
         {"path:10.9.9.9:80", "path:10.9.9.9:90-99", "path:[fd00::1]:80", "path:[fd00::1]:90-99"}),
        ({"ports": "5432"}, {"path:tcp/5432", "path:udp/5432"}),
        ({"peers": "all", "ports": "53", "protocol": "udp"}, {"path:udp/53"}),
        ({"peers": "tcp/5432"}, {"path:tcp/5432"}),
    ],
)  # fmt: skip
def test_a_partition_holds_the_paths_that_it_cuts(params: dict[str, str], held: set[str]) -> None:
    assert NetworkPartition(ENV).resources("node/n1", params) == held


def test_a_second_fault_on_a_part_of_a_cut_path_is_refused_with_who_holds_it() -> None:
    partition, outage = NetworkPartition(ENV), DatabaseOutage(ENV)
    known = {partition.name: partition, outage.name: outage}
    cut = journalled(partition.name, "node/n1", {"peers": "10.9.9.0/24"}, {}, boot_id="b")
    database = {"engine": "redis", "address": "10.9.9.9:6379"}
    reason = admit.held_by(outage, "node/n1", database, [cut], known)
    assert reason == "path:10.9.9.9:6379 is held by fault f1 (network-partition)"
    assert admit.held_by(outage, "node/n1", {**database, "address": "10.8.8.8:6379"}, [cut], known) is None
    broken = cut.model_copy(update={"params": {"peers": "10.0.0.999"}})
    assert "cannot tell what it holds" in (admit.held_by(outage, "node/n1", database, [broken], known) or "")


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        ("0.0.0.0", "nobody's address"),  # noqa: S104
        ("0.0.0.0/8", "nobody's address"),
        ("::", "nobody's address"),
        ("255.255.255.255", "broadcast"),
        ("224.0.0.1", "multicast"),
        ("ff02::/16", "multicast"),
        ("::ffff:10.0.0.7", "write that"),
    ],
)
def test_an_address_at_which_nobody_can_be_met_is_refused_with_what_to_write(peer: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        NetworkPartitionParams(peers=f"10.0.0.1,{peer}")
    if "/" not in peer:
        at = f"[{peer}]:80" if ":" in peer else f"{peer}:80"
        with pytest.raises(ValueError, match=words):
            ServiceLatencyParams(service=at, delay="1ms")
        with pytest.raises(ValueError, match=words):
            StorageDisconnectParams(mode="unreachable", endpoint=at)


def test_everybody_by_address_may_be_cut_off() -> None:
    assert NetworkPartitionParams(peers="0.0.0.0/0,::/0").peers == "0.0.0.0/0,::/0"


@pytest.mark.root
@pytest.mark.parametrize("peer", ["127.0.0.1", "127.0.0.0/8", "::1"])
def test_the_node_itself_is_no_peer(peer: str) -> None:
    assert "is this node itself" in (NetworkPartition(ENV).check("node/n1", {"peers": peer}) or "")


@pytest.mark.root
def test_root_without_capabilities_is_told_which_one_is_missing() -> None:
    program = """
from gpuchaos_agent.inject import nft
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.service_latency import ServiceLatency
from gpuchaos_agent.inject.storage_disconnect import StorageDisconnect
env = Env(node="n1", boot_id="b")
print(nft.unavailable(), ServiceLatency(env).unavailable(), StorageDisconnect(env).unavailable(), sep="\\n")
for mode in ("readonly", "hanging", "full"):
    print(StorageDisconnect(env).check("node/n1", {"mode": mode, "path": "/nowhere"}))
"""

    def said(*bounds: str) -> list[str]:
        words = ["setpriv", *bounds, sys.executable, "-c", program]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()

    nft, latency, storage, readonly, hanging, full = said("--bounding-set=-all", "--inh-caps=-all")
    assert nft == "this agent lacks CAP_NET_ADMIN"
    assert "lacks CAP_NET_ADMIN" in latency
    # `full` takes no capability: whether its folder may be written is seen when it is tried.
    assert storage == "None"
    assert readonly == hanging == "this agent lacks CAP_SYS_ADMIN"
    assert "is not there" in full
    nft, _, storage, readonly, hanging, full = said("--bounding-set=-sys_admin")
    assert (nft, storage) == ("None", "None")
    assert readonly == hanging == "this agent lacks CAP_SYS_ADMIN"
    assert "is not there" in full
