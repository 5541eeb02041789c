"""Tables of nftables in a real kernel, and peers as people write them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.hosts import Host, host, needs

from gpuchaos_agent.inject import endpoints, nft
from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.inject.endpoints import Endpoint, Selector
from gpuchaos_agent.journal import FAULT_ID

BODY = """  counter dropped { }
  chain output { type filter hook output priority -300; policy accept;
    ip daddr 127.0.0.9 counter name "dropped" drop
  }"""


@pytest.fixture
def at() -> Iterator[Host]:
    needs("nft", "unshare")
    with host("alone") as made, made.inside():
        yield made


@pytest.mark.root
def test_a_table_is_made_counted_and_removed_whole(at: Host) -> None:
    before = at.rules()
    table = nft.table_name("by-hand-1")
    nft.apply(table, BODY)
    assert nft.exists(table)
    assert nft.own_tables() == (table,)
    at.udp("127.0.0.9", 9, times=3)
    assert nft.counters(table)["dropped"].packets == 3
    nft.remove(table)
    nft.remove(table)
    assert not nft.exists(table)
    assert at.rules() == before


@pytest.mark.root
def test_a_table_made_twice_is_one_with_its_counters_at_zero(at: Host) -> None:
    table = nft.table_name("f1")
    nft.apply(table, BODY)
    once = at.rules()
    at.udp("127.0.0.9", 9)
    nft.apply(table, BODY)
    assert at.rules() == once
    nft.remove(table)


@pytest.mark.root
def test_a_body_that_nft_refuses_changes_nothing(at: Host) -> None:
    table = nft.table_name("f1")
    nft.apply(table, BODY)
    once = at.rules()
    with pytest.raises(InjectError, match="syntax error"):
        nft.apply(table, BODY + "\n  chain broken { no such word }")
    assert at.rules() == once
    nft.remove(table)


@pytest.mark.root
def test_a_table_of_somebody_else_is_never_touched(at: Host) -> None:
    at.run("nft", "add table inet firewall")
    for act in (nft.remove, lambda table: nft.apply(table, BODY)):
        with pytest.raises(InjectError, match="no table of this agent"):
            act("firewall")
    assert nft.own_tables() == ()
    assert "firewall" in at.rules()


@pytest.mark.root
def test_counters_of_a_table_that_is_gone_are_an_error_and_not_zero(at: Host) -> None:
    with pytest.raises(InjectError, match="No such file"):
        nft.counters(nft.table_name("gone"))


@pytest.mark.root
def test_asking_whether_nft_can_be_used_changes_nothing(at: Host) -> None:
    before = at.rules()
    assert nft.unavailable() is None
    assert at.rules() == before


def test_a_node_without_nft_says_so_and_cannot_claim_that_a_table_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuchaos_agent.inject.tools.find", lambda _name: None)
    assert "nft not found" in (nft.unavailable() or "")
    with pytest.raises(InjectError, match="not found"):
        nft.exists(nft.table_name("f1"))


@given(st.from_regex(FAULT_ID), st.from_regex(FAULT_ID))
def test_two_faults_never_share_a_table(one: str, other: str) -> None:
    one, other = one.strip(), other.strip()
    assert (nft.table_name(one) == nft.table_name(other)) == (one == other)
    assert len(nft.table_name(one)) < 256
    assert nft.table_name(one).replace("_", "").isalnum()


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("10.0.0.7", Endpoint("10.0.0.7")),
        (" 10.0.0.9/24 ", Endpoint("10.0.0.0/24")),
        ("db.local:5432", Endpoint("db.local", "5432")),
        ("[fd00::1]:2049", Endpoint("fd00::1", "2049")),
        ("[fd00::1]", Endpoint("fd00::1")),
        ("fd00::1", Endpoint("fd00::1")),
        ("fd00::/64", Endpoint("fd00::/64")),
        ("tcp/5432", Endpoint(None, "5432", "tcp")),
        ("udp/8000-8100", Endpoint(None, "8000-8100", "udp")),
        ("10.0.0.7:80-90", Endpoint("10.0.0.7", "80-90")),
        ("node-3", Endpoint("node-3")),
    ],
)
def test_a_peer_is_read_as_people_write_it(text: str, endpoint: Endpoint) -> None:
    assert endpoints.parse(text) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.300",
        "10.0.0.7:0",
        "x:65536",
        "a b",
        "-x",
        "[fd00::1",
        "[fd00::1]2049",
        "tcp/",
        "x:9-1",
        "{1,2}",
        'a"b',
    ],
)
def test_what_is_no_peer_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no|is written"):
        endpoints.parse(text)


@given(st.text(max_size=40))
def test_no_text_gets_into_a_rule_unread(text: str) -> None:
    try:
        found = endpoints.parse(text)
    except ValueError:
        return
    assert not set(f"{found.host}{found.ports}") & set(' ;{}"#\n\\')


def test_a_name_is_resolved_to_all_its_addresses_and_overlaps_are_merged() -> None:
    found = endpoints.networks_of(Endpoint("db.local"), lambda _name: ["10.0.0.7", "fd00::7", "10.0.0.7"])
    assert found == (ipaddress.ip_network("10.0.0.7"), ipaddress.ip_network("fd00::7"))

    def nowhere(name: str) -> list[str]:
        raise OSError("no such name")

    with pytest.raises(InjectError, match=r"db\.local cannot be resolved"):
        endpoints.networks_of(Endpoint("db.local"), nowhere)


def test_a_selector_matches_each_family_and_either_end() -> None:
    networks = (ipaddress.ip_network("10.0.0.7"), ipaddress.ip_network("fd00::/64"))
    assert Selector(networks, ("80", "443"), "tcp").matches("daddr") == (
        "ip daddr 10.0.0.7 meta l4proto tcp th dport { 80, 443 } ",
        "ip daddr 10.0.0.7 meta l4proto tcp th sport { 80, 443 } ",
        "ip6 daddr fd00::/64 meta l4proto tcp th dport { 80, 443 } ",
        "ip6 daddr fd00::/64 meta l4proto tcp th sport { 80, 443 } ",
    )
    assert Selector(networks[:1], ("80",)).matches("saddr", either_end=False) == (
        "ip saddr 10.0.0.7 meta l4proto { tcp, udp } th sport 80 ",
    )
    assert Selector().matches("saddr") == ("",)


@pytest.mark.root
def test_the_nodes_own_addresses_are_read_from_the_kernel(at: Host) -> None:
    at.run("ip", "addr", "add", "10.9.9.9/32", "dev", "lo")
    at.run("ip", "addr", "add", "fd09::9/128", "dev", "lo")
    own = endpoints.local_addresses(Path("/proc"))
    assert {ipaddress.ip_address(text) for text in ("127.0.0.1", "::1", "10.9.9.9", "fd09::9")} <= own
