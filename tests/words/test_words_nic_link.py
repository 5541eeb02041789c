"""Links up and down: what one line cannot say is counted over the lines of a port."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_words_kit import events, fault, one, said

from gpuchaos_agent.words.base import NONE, Part
from gpuchaos_agent.words.nic_link import conclude_link
from gpuchaos_stream.events.base import Severity

IB = "mlx5_core 0000:1b:00.0 mlx5_4: Port: 1 Link "
ETH = "mlx5_core 0000:c4:00.1 ens3f1np1: Link "


def test_an_infiniband_port_that_goes_down_is_an_error_of_that_port() -> None:
    finding = one([IB + "DOWN"])
    assert (finding.fault, finding.severity) == ("nic_link_down", Severity.ERROR)
    assert (finding.kind, finding.local, finding.device) == ("port", "mlx5_4", "mlx5_4")
    assert finding.evidence["bdf"] == "0000:1b:00.0"


def test_a_port_that_comes_up_is_nothing() -> None:
    assert events([IB + "INIT", IB + "ACTIVE"]) == []
    assert events([ETH + "up"]) == []
    assert events([(0.0, ETH + "up"), (900.0, ETH + "up")]) == []


def test_a_port_that_is_up_again_has_recovered() -> None:
    finding = one([(5.0, IB + "DOWN"), (9.0, IB + "INIT"), (9.5, IB + "ACTIVE")])
    assert (finding.fault, finding.severity) == ("nic_link_down", Severity.INFO)
    assert finding.evidence["cleared"] is True


def test_two_downs_within_a_minute_are_flapping() -> None:
    finding = one([(0.0, IB + "DOWN"), (4.0, IB + "ACTIVE"), (30.0, IB + "DOWN"), (33.0, IB + "ACTIVE")])
    assert (finding.fault, finding.severity) == ("nic_link_flap", Severity.WARNING)
    assert finding.evidence["count"] == 2


def test_ups_alone_tell_the_downs_between_them() -> None:
    finding = one([(float(second), ETH + "up") for second in (0, 6, 11)])
    assert finding.fault == "nic_link_flap"
    assert (finding.evidence["count"], finding.evidence["netdev"], finding.device) == (2, "ens3f1np1", "0000:c4:00.1")


def test_a_second_up_is_not_yet_flapping() -> None:
    assert events([(0.0, ETH + "up"), (6.0, ETH + "up")]) == []


def test_a_link_that_an_administrator_took_down_is_no_fault_of_the_cable() -> None:
    unload = "E-Switch: Unload vfs: mode(LEGACY), nvfs(0), necvfs(0), active vports(0)"
    disable = "E-Switch: Disable: mode(LEGACY), nvfs(0), necvfs(0), active vports(0)"
    own = one([(0.0, IB + "DOWN"), (1.0, f"mlx5_core 0000:1b:00.0: {unload}")])
    sibling = one([(0.0, IB + "DOWN"), (20.0, f"mlx5_core 0000:1b:00.1: {disable}")])
    assert own.severity is sibling.severity is Severity.INFO
    assert own.evidence["cause"] == "driver_unload"


def test_the_unloading_of_another_card_excuses_nothing() -> None:
    other = "mlx5_core 0000:5e:00.0: E-Switch: Disable: mode(LEGACY), nvfs(0), necvfs(0), active vports(0)"
    assert one([(0.0, IB + "DOWN"), (1.0, other)]).severity is Severity.ERROR


def test_an_unloaded_driver_alone_says_nothing() -> None:
    assert events(["mlx5_core 0000:1b:00.0: E-Switch: Unload vfs: mode(LEGACY), nvfs(4), necvfs(0)"]) == []


def test_a_pulled_cable_is_the_cause_of_a_link_that_is_down() -> None:
    plug = "mlx5_core 0000:1b:00.0: Port module event: module 0, Cable unplugged"
    assert one([(0.0, IB + "DOWN"), (0.1, plug)]).evidence["cause"] == "cable_unplugged"
    assert events([plug]) == []


@pytest.mark.parametrize(
    ("text", "device", "netdev", "severity"),
    [
        (ETH + "down", "0000:c4:00.1", "ens3f1np1", Severity.ERROR),
        ("igb 0000:05:00.0 eno1: igb: eno1 NIC Link is Down", "0000:05:00.0", "eno1", Severity.WARNING),
        ("ixgbe 0000:3b:00.1 eth3: NIC Link is Down", "0000:3b:00.1", "eth3", Severity.WARNING),
        ("ixgbe 0000:3b:00.1: NIC Link is Down", "0000:3b:00.1", None, Severity.WARNING),
        ("bnxt_en 0000:19:00.0 eno8303: NIC Link is Down", "0000:19:00.0", "eno8303", Severity.WARNING),
        ("tg3 0000:02:00.0 em1: Link is down", "0000:02:00.0", "em1", Severity.WARNING),
        ("e1000e: eth0 NIC Link is Down", "eth0", "eth0", Severity.WARNING),
        ("mlx4_en: ens1: Link Down", "ens1", "ens1", Severity.ERROR),
        ("ice 0000:8a:00.0 ens7f0: NIC Link is Down", "0000:8a:00.0", "ens7f0", Severity.WARNING),
    ],
)
def test_each_drivers_wording_of_a_link_that_is_down_is_read(
    text: str, device: str, netdev: str | None, severity: Severity
) -> None:
    finding = fault(text)
    assert (finding.fault, finding.device, finding.severity) == ("nic_link_down", device, severity)
    assert finding.evidence.get("netdev") == netdev


@pytest.mark.parametrize(
    "text",
    [
        "ata3: SATA link down (SStatus 0 SControl 300)",
        "ata1: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "IPv6: ADDRCONF(NETDEV_UP): eth0: link is not ready",
        "lpfc 0000:5e:00.0: 0:1305 Link Down Event x2 received",
        "usb usb1-port2: link down",
        "mlx5_core 0000:c4:00.1 eth5: renamed from eth1",
        "bond0: (slave ens1f0): link status definitely up, 100000 Mbps full duplex",
        "my_daemon: eth0: Link down",
    ],
)
def test_other_links_are_not_network_links(text: str) -> None:
    assert said(text) is None


STATES = st.lists(st.sampled_from(["DOWN", "INIT", "ACTIVE"]), min_size=1, max_size=40)


@given(STATES)
def test_whatever_a_port_does_the_conclusion_counts_no_more_downs_than_changes(states: list[str]) -> None:
    findings = [finding for state in states if (finding := said(IB + state)) is not None]
    made = conclude_link(findings)
    assert made.part is Part.FAULT
    assert made.fault in {NONE, "nic_link_down", "nic_link_flap"}
    count = made.evidence.get("count", 0)
    assert isinstance(count, int)
    assert count <= states.count("DOWN") + states.count("ACTIVE")
    if "DOWN" in states:
        assert made.fault != NONE
    if states[-1] == "DOWN" and states.count("DOWN") == 1 and states.count("ACTIVE") <= 1:
        assert made.fault == "nic_link_down"
