from __future__ import annotations

from pathlib import Path

from collect_trees import plant, table
from rdma_kit import IB, NET, Adapter, faults

from gpuchaos_agent.collect.base import Fact
from gpuchaos_agent.collect.rdma import RdmaCollector
from gpuchaos_stream.events.base import Severity


def test_a_port_that_was_active_and_is_down_is_told_once_and_its_return_as_well(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path, address="0000:81:00.0")
    collector = RdmaCollector(tmp_path, boot_id="b1")
    assert collector.read(0.0).facts == ()
    adapter.down()
    (down,) = collector.read(1.0).facts
    assert (down.fault, down.severity, down.kind, down.local) == ("port_down", Severity.ERROR, "port", "mlx5_0")
    assert (down.evidence["bdf"], down.evidence["cause"]) == ("0000:81:00.0", "polling")
    adapter.count(link_downed=4)
    assert collector.read(2.0).facts == ()
    adapter.up()
    (back,) = collector.read(8.0).facts
    assert (back.fault, back.severity) == ("port_down", Severity.INFO)
    assert (back.evidence["recovered"], back.evidence["down_s"]) == (True, 7.0)
    assert down.key != back.key


def test_an_unused_port_is_never_a_fault(tmp_path: Path) -> None:
    Adapter(tmp_path).down()
    collector = RdmaCollector(tmp_path)
    assert [fact for second in range(0, 600, 7) for fact in collector.read(float(second)).facts] == []


def test_two_downs_within_a_minute_are_a_flap(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    collector = RdmaCollector(tmp_path)
    told: list[tuple[str, Severity]] = []
    for second, act in enumerate([adapter.up, adapter.down, adapter.up, adapter.down, adapter.up]):
        act()
        told += [(fact.fault, fact.severity) for fact in collector.read(second * 10.0).facts]
    assert [name for name, severity in told if severity is not Severity.INFO] == [
        "port_down",
        "nic_link_flap",
        "port_down",
    ]


def test_two_downs_between_two_readings_are_a_flap_as_well(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    adapter.count(link_downed=5)
    (fact,) = collector.read(10.0).facts
    assert (fact.fault, fact.severity, fact.evidence["count"]) == ("nic_link_flap", Severity.WARNING, 2)


def test_one_down_between_two_readings_is_told_and_is_no_flap(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    adapter.count(link_downed=4)
    assert faults(collector.read(10.0).facts) == [("nic_link_down", "mlx5_0", Severity.WARNING)]


def test_one_down_that_three_sources_tell_is_one(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path, link_layer="Ethernet")
    adapter.netdev("eth2")
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    adapter.down()
    first = collector.read(1.0).facts
    adapter.netdev("eth2", carrier="0", downs=1)
    adapter.count(link_downed=4)
    assert faults(first) == [("port_down", "mlx5_0", Severity.ERROR)]
    assert collector.read(2.0).facts == ()


def test_a_port_switched_off_is_no_cables_fault(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    adapter.down("3: Disabled")
    (fact,) = collector.read(1.0).facts
    assert (fact.fault, fact.severity) == ("port_disabled", Severity.WARNING)


def test_disabled_on_ethernet_is_an_administrators_doing_only_if_the_interface_is_down(tmp_path: Path) -> None:
    pulled = Adapter(tmp_path, "mlx5_0", link_layer="Ethernet")
    pulled.netdev("eth2")
    switched = Adapter(tmp_path, "mlx5_1", link_layer="Ethernet")
    switched.netdev("eth3")
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    pulled.down("3: Disabled")
    pulled.netdev("eth2", carrier="0", downs=1)
    switched.down("3: Disabled")
    switched.netdev("eth3", carrier="", flags="0x1002")
    assert faults(collector.read(1.0).facts) == [
        ("port_down", "mlx5_0", Severity.ERROR),
        ("port_disabled", "mlx5_1", Severity.WARNING),
    ]


def test_a_port_that_waits_for_its_subnet_manager_is_told_each_minute_until_it_comes(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    adapter.init()
    collector = RdmaCollector(tmp_path)
    assert [bool(collector.read(now).facts) for now in (0.0, 60.0, 61.0, 90.0, 122.0)] == [
        False,
        False,
        True,
        False,
        True,
    ]
    adapter.up()
    assert [(fact.fault, fact.severity) for fact in collector.read(130.0).facts] == [
        ("no_subnet_manager", Severity.INFO)
    ]


def test_an_unreadable_state_is_neither_down_nor_up(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    plant(tmp_path, {f"{adapter.path}/state": ""})
    reading = collector.read(1.0)
    assert (reading.facts, table(reading)[("mlx5_0", "port_active")]) == ((), None)
    adapter.up()
    assert collector.read(2.0).facts == ()


def test_virtual_functions_go_down_with_their_cable_as_one_event(tmp_path: Path) -> None:
    physical = Adapter(tmp_path, "mlx5_0", address="0000:81:00.0")
    virtual = [Adapter(tmp_path, f"mlx5_{n}", address=f"0000:81:01.{n}") for n in range(1, 8)]
    for one in virtual:
        (tmp_path / IB / one.name / "device/physfn").symlink_to("../0000:81:00.0")
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    facts: list[Fact] = []
    for one in (*virtual, physical):  # a virtual one may be seen down a tick before its physical one
        one.down()
        one.count(link_downed=4)
        if one is virtual[0]:
            facts += collector.read(0.5).facts
    for second in range(1, 5):
        facts += collector.read(float(second)).facts
    assert faults(tuple(facts)) == [("port_down", "mlx5_0", Severity.ERROR)]


def test_a_virtual_function_that_alone_is_down_is_told(tmp_path: Path) -> None:
    Adapter(tmp_path, "mlx5_0", address="0000:81:00.0")
    virtual = Adapter(tmp_path, "mlx5_1", address="0000:81:01.1")
    (tmp_path / IB / "mlx5_1/device/physfn").symlink_to("../0000:81:00.0")
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    virtual.down()
    assert collector.read(1.0).facts == ()
    assert faults(collector.read(2.0).facts) == [("port_down", "mlx5_1", Severity.ERROR)]
    virtual.up()
    assert faults(collector.read(3.0).facts) == [("port_down", "mlx5_1", Severity.INFO)]


def test_a_bond_that_lost_one_of_its_cables_is_told_although_its_port_is_active(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path, "mlx5_bond_0", link_layer="Ethernet")
    adapter.netdev("bond0")
    plant(tmp_path, {f"{NET}/bond0/bonding/slaves": "eth2 eth3\n", f"{NET}/eth2/carrier": "1\n"})
    plant(tmp_path, {f"{NET}/eth3/carrier": "1\n"})
    collector = RdmaCollector(tmp_path)
    assert collector.read(0.0).facts == ()
    plant(tmp_path, {f"{NET}/eth3/carrier": "0\n"})
    reading = collector.read(1.0)
    assert faults(reading.facts) == [("nic_link_down", "mlx5_bond_0", Severity.WARNING)]
    assert reading.facts[0].evidence["netdev"] == "eth3"
    assert table(reading)[("mlx5_bond_0", "port_active")] == 1.0
    plant(tmp_path, {f"{NET}/eth3/carrier": "1\n"})
    assert faults(collector.read(2.0).facts) == [("nic_link_down", "mlx5_bond_0", Severity.INFO)]
