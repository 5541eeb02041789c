from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.kernelfs import ports
from gpuchaos_agent.kernelfs.ports import Gid, Physical, State

IB = "class/infiniband"


def plant(root: Path, tree: dict[str, str]) -> Path:
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def seat(root: Path, name: str, where: str, driver: str | None = None) -> None:
    """Puts a device at a place of the machine's tree."""
    real = root / "devices" / where
    real.mkdir(parents=True, exist_ok=True)
    if driver is not None:
        (root / "bus/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (real / "driver").symlink_to(root / "bus/drivers" / driver)
    (root / IB / name).mkdir(parents=True, exist_ok=True)
    (root / IB / name / "device").symlink_to(real)


def test_a_device_tells_who_it_is_where_it_sits_and_what_it_has(tmp_path: Path) -> None:
    seat(tmp_path, "rocep65s0f0", "pci0000:40/0000:40:01.1/0000:41:00.0", driver="mlx5_core")
    path = f"{IB}/rocep65s0f0"
    plant(
        tmp_path,
        {
            f"{path}/board_id": "MT_0000000838\n",
            f"{path}/hca_type": "MT4129\n",
            f"{path}/fw_ver": "28.39.1002\n",
            f"{path}/node_guid": "a088:c203:0012:3456\n",
            f"{path}/device/numa_node": "1\n",
            f"{path}/ports/1/link_layer": "Ethernet\n",
            f"{path}/ports/1/counters/link_downed": "0\n",
            f"{path}/ports/1/hw_counters/np_cnp_sent": "0\n",
            f"{path}/ports/1/hw_counters/lifespan": "10\n",
            f"{path}/ports/1/gid_attrs/ndevs/0": "ens1f0np0\n",
        },
    )
    (device,) = ports.devices(tmp_path)
    assert (device.family.name, device.family.vendor, device.driver) == ("mlx5", "mellanox", "mlx5_core")
    assert (device.address, device.identity, device.physical) == ("0000:41:00.0", "0000:41:00.0", None)
    assert (device.board_id, device.hca_type, device.firmware) == ("MT_0000000838", "MT4129", "28.39.1002")
    assert (device.numa_node, device.node_guid) == (1.0, "a088:c203:0012:3456")
    (port,) = device.ports
    assert (port.name, port.number, port.link_layer, port.netdev) == ("rocep65s0f0", 1, "Ethernet", "ens1f0np0")
    assert (set(port.counters), set(port.hw_counters)) == ({"link_downed"}, {"np_cnp_sent"})


@pytest.mark.parametrize(
    ("name", "driver", "hca_type", "family", "vendor"),
    [
        ("mlx5_3", None, None, "mlx5", "mellanox"),
        ("ibp12s0", "mlx5_core", None, "mlx5", "mellanox"),
        ("ibp12s0", None, "MT4123", "mlx5", "mellanox"),
        ("ibp12s0", None, "MT4099", "mlx4", "mellanox"),
        ("rdmap0s6", "efa", None, "efa", "amazon"),
        ("opap3s0", "hfi1", None, "hfi1", "omni-path"),
        ("rocep24s0", "ice", None, "irdma", "intel"),
        ("bnxt_re0", None, None, "bnxt_re", "broadcom"),
        ("erdma_0", "erdma", None, "erdma", "alibaba"),
        ("rxe0", None, None, "rxe", "software"),
        ("something0", None, None, "", ""),
    ],
)
def test_a_family_is_known_by_driver_then_type_then_name(
    tmp_path: Path, name: str, driver: str | None, hca_type: str | None, family: str, vendor: str
) -> None:
    seat(tmp_path, name, "pci0000:10/0000:10:00.0/0000:11:00.0", driver)
    if hca_type:
        plant(tmp_path, {f"{IB}/{name}/hca_type": f"{hca_type}\n"})
    (device,) = ports.devices(tmp_path)
    assert (device.family.name, device.family.vendor) == (family, vendor)


def test_devices_are_in_natural_order_and_ports_of_one_with_two_are_numbered(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            f"{IB}/mlx5_10/ports/1/state": "",
            f"{IB}/mlx5_2/ports/1/state": "",
            f"{IB}/mlx4_0/ports/2/state": "",
            f"{IB}/mlx4_0/ports/1/state": "",
            f"{IB}/irdma0/fw_ver": "1.2\n",
        },
    )
    assert [(d.name, [p.name for p in d.ports]) for d in ports.devices(tmp_path)] == [
        ("irdma0", []),
        ("mlx4_0", ["mlx4_0_1", "mlx4_0_2"]),
        ("mlx5_2", ["mlx5_2"]),
        ("mlx5_10", ["mlx5_10"]),
    ]


def test_an_absent_class_and_an_empty_one_are_told_apart(tmp_path: Path) -> None:
    assert ports.device_names(tmp_path) is None
    (tmp_path / IB).mkdir(parents=True)
    assert ports.device_names(tmp_path) == ()


def test_virtual_and_scalable_functions_name_the_physical_one(tmp_path: Path) -> None:
    parent = "pci0000:40/0000:40:01.1"
    seat(tmp_path, "mlx5_0", f"{parent}/0000:41:00.0")
    seat(tmp_path, "mlx5_1", f"{parent}/0000:41:00.2")
    (tmp_path / "devices" / parent / "0000:41:00.2/physfn").symlink_to("../0000:41:00.0")
    seat(tmp_path, "mlx5_2", f"{parent}/0000:41:00.0/mlx5_core.sf.2")
    found = {device.name: device for device in ports.devices(tmp_path)}
    assert {name: device.physical for name, device in found.items()} == {
        "mlx5_0": None,
        "mlx5_1": "0000:41:00.0",
        "mlx5_2": "0000:41:00.0",
    }
    assert len({device.identity for device in found.values()}) == 3


def test_a_bond_names_its_members(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            f"{IB}/mlx5_bond_0/ports/1/gid_attrs/ndevs/0": "bond0\n",
            "class/net/bond0/bonding/slaves": "eth2 eth3\n",
        },
    )
    (device,) = ports.devices(tmp_path)
    assert device.ports[0].members == ("eth2", "eth3")


@pytest.mark.parametrize(
    ("content", "state"),
    [
        ("4: ACTIVE\n", State.ACTIVE),
        ("1: DOWN", State.DOWN),
        ("2: INIT\n", State.INIT),
        ("5: ACTIVE_DEFER\n", State.ACTIVE_DEFER),
        ("4", State.ACTIVE),
        ("9: ?\n", None),
        ("ACTIVE\n", None),
        ("", None),
        ("44: ACTIVE", None),
        ("-4: ACTIVE", None),
    ],
)
def test_a_state_is_its_number(tmp_path: Path, content: str, state: State | None) -> None:
    plant(tmp_path, {f"{IB}/mlx5_0/ports/1/state": content})
    assert ports.state(ports.device(tmp_path, "mlx5_0").ports[0]) is state


def test_a_physical_state_is_its_number_whatever_its_words(tmp_path: Path) -> None:
    port = ports.device(plant(tmp_path, {f"{IB}/mlx5_0/ports/1/phys_state": "5: ACTIVE\n"}), "mlx5_0").ports[0]
    assert ports.physical_state(port) is Physical.LINK_UP
    plant(tmp_path, {f"{IB}/mlx5_0/ports/1/phys_state": "0: <unknown>\n"})
    assert ports.physical_state(port) is None


@pytest.mark.parametrize(
    ("content", "bits"),
    [
        ("400 Gb/sec (4X NDR)\n", 400e9),
        ("2.5 Gb/sec (1X SDR)\n", 2.5e9),
        ("200 Gb/sec (2X NDR)\n", 200e9),
        ("25 Gb/sec", 25e9),
        ("0 Gb/sec (4X)\n", None),
        ("fast\n", None),
        ("99999999 Gb/sec (4X)\n", None),
    ],
)
def test_a_rate_is_the_number_before_its_unit(tmp_path: Path, content: str, bits: float | None) -> None:
    plant(tmp_path, {f"{IB}/mlx5_0/ports/1/rate": content})
    assert ports.rate_bits(ports.device(tmp_path, "mlx5_0").ports[0]) == bits


def test_the_filled_gids_are_read_with_kind_and_interface(tmp_path: Path) -> None:
    port = f"{IB}/mlx5_0/ports/1"
    empty = "0000:0000:0000:0000:0000:0000:0000:0000\n"
    plant(
        tmp_path,
        {
            f"{port}/gids/0": "fe80:0000:0000:0000:a288:c2ff:fe00:0001\n",
            f"{port}/gids/1": empty,
            f"{port}/gids/2": "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
            f"{port}/gids/4": "fe80:0000:0000:0000:0000:0000:0000:0009\n",
            f"{port}/gid_attrs/types/2": "RoCE v2\n",
            f"{port}/gid_attrs/ndevs/2": "eth2\n",
            f"{port}/lid": "0x1a\n",
            f"{port}/sm_lid": "x\n",
        },
    )
    found = ports.device(tmp_path, "mlx5_0").ports[0]
    assert ports.gids(found) == (
        Gid(0, "fe80:0000:0000:0000:a288:c2ff:fe00:0001"),
        Gid(2, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth2"),
    )
    assert ports.lids(found) == (26, None)


@given(st.lists(st.integers(0, 10**20), min_size=1, max_size=20, unique=True))
def test_natural_order_is_that_of_the_numbers(numbers: list[int]) -> None:
    names = [f"mlx5_{number}" for number in numbers if number < 10**18]
    assert sorted(names, key=ports.natural) == [f"mlx5_{number}" for number in sorted(numbers) if number < 10**18]


@given(st.lists(st.text(max_size=30), max_size=10))
def test_any_names_have_an_order(names: list[str]) -> None:
    assert len(sorted(names, key=ports.natural)) == len(names)
