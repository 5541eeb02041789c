from __future__ import annotations

from pathlib import Path

from collect_trees import plant
from rdma_kit import IB, Adapter, faults

from gpuchaos_agent.collect.rdma import MOST_PORTS, RdmaCollector
from gpuchaos_stream.events.base import Severity


def test_a_device_that_left_the_bus_is_told_after_three_readings_and_so_is_its_return(tmp_path: Path) -> None:
    Adapter(tmp_path, "mlx5_0", address="0000:81:00.0")
    lost = Adapter(tmp_path, "mlx5_1", address="0000:82:00.0")
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    away = tmp_path / "away"
    (tmp_path / IB / "mlx5_1").rename(away)
    (tmp_path / "bus/pci/devices/0000:82:00.0").unlink()
    assert [faults(collector.read(now).facts) for now in (1.0, 2.0, 3.0, 4.0)] == [
        [],
        [],
        [("rdma_device_lost", "mlx5_1", Severity.ERROR)],
        [],
    ]
    away.rename(tmp_path / IB / "mlx5_1")
    lost.down()
    assert faults(collector.read(5.0).facts) == [("rdma_device_lost", "mlx5_1", Severity.INFO)]
    # It trains; only when it does not come back in time, its link is down.
    assert collector.read(60.0).facts == ()
    assert faults(collector.read(5.0 + 181.0).facts) == [("port_down", "mlx5_1", Severity.ERROR)]


def test_a_device_that_only_got_another_name_is_not_lost(tmp_path: Path) -> None:
    Adapter(tmp_path, "mlx5_0", address="0000:81:00.0")
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    (tmp_path / IB / "mlx5_0").rename(tmp_path / IB / "rocep129s0")
    readings = [collector.read(float(second)) for second in range(1, 6)]
    assert [fact for reading in readings for fact in reading.facts] == []
    assert readings[-1].groups[0].layout.ids == ("rocep129s0",)


def test_all_devices_at_once_are_an_unloaded_driver_and_one_event(tmp_path: Path) -> None:
    for number in range(4):
        Adapter(tmp_path, f"mlx5_{number}", address=f"0000:8{number}:00.0")
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    (tmp_path / IB).rename(tmp_path / "gone")
    facts = [fact for second in range(1, 6) for fact in collector.read(float(second)).facts]
    assert [(fact.fault, fact.kind, fact.evidence["count"]) for fact in facts] == [("rdma_device_lost", "node", 4)]
    assert facts[0].evidence["name"] == "mlx5_0,mlx5_1,mlx5_2,mlx5_3"


def test_ports_have_their_configured_rail_their_numa_node_and_their_switch(tmp_path: Path) -> None:
    plant(tmp_path, {"devices/system/node/online": "0-1\n"})
    for number in (0, 2, 10):
        adapter = Adapter(tmp_path, f"mlx5_{number}")
        plant(tmp_path, {f"{IB}/{adapter.name}/device/numa_node": f"{number % 3 - 1}\n"})
    real = tmp_path / "devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:02.0/0000:19:00.0"
    real.mkdir(parents=True)
    plant(real, {"numa_node": "1\n", "net/eth7/dev_port": "0\n"})
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:19:00.0").symlink_to(real)
    Adapter(tmp_path, "mlx5_20")
    (tmp_path / IB / "mlx5_20/device").symlink_to(real)
    places = RdmaCollector(tmp_path, {"mlx5_2": "rail-2"}).read(0.0).places.ports
    assert [(p.name, p.rail, p.numa_node, p.pcie_switch, p.netdev) for p in places] == [
        ("mlx5_0", None, None, None, None),
        ("mlx5_2", "rail-2", 1, None, None),
        ("mlx5_10", None, 0, None, None),
        ("mlx5_20", None, 1, "0000:17:00.0", "eth7"),
    ]


def test_hundreds_of_virtual_functions_leave_room_for_the_physical_ones(tmp_path: Path) -> None:
    for number in range(MOST_PORTS + 6):
        Adapter(tmp_path, f"mlx5_{number}", address=f"0000:8{number % 8}:{number // 8 + 1:02x}.0")
        if number % 8:
            (tmp_path / IB / f"mlx5_{number}/device/physfn").symlink_to(f"../0000:80:{number // 8 + 1:02x}.0")
    reading = RdmaCollector(tmp_path).read(0.0)
    names = reading.groups[0].layout.ids
    assert len(names) == MOST_PORTS
    assert {f"mlx5_{number}" for number in range(0, MOST_PORTS + 6, 8)} <= set(names)
    assert reading.absent["rdma.virtual"].startswith("6 ports")
