from __future__ import annotations

import array
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.kernelfs import ethtool, netdevs, peek
from gpuchaos_agent.kernelfs.netdevs import Cable

NET = "class/net"


def plant(root: Path, tree: dict[str, str]) -> Path:
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_a_cable_is_what_carrier_flags_operstate_and_downs_say(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            f"{NET}/eth0/carrier": "1\n",
            f"{NET}/eth0/flags": "0x1003\n",
            f"{NET}/eth0/operstate": "up\n",
            f"{NET}/eth0/carrier_down_count": "12\n",
        },
    )
    cable = netdevs.cable(tmp_path, "eth0")
    assert cable == Cable(carrier=True, up=True, operstate="up", downs=12)
    assert netdevs.cable(tmp_path, "eth9") == Cable()


@pytest.mark.parametrize(
    ("cable", "works"),
    [
        (Cable(), None),
        (Cable(carrier=True, operstate="unknown"), True),
        (Cable(carrier=False, operstate="down"), False),
        (Cable(up=False, operstate="down"), False),
        (Cable(operstate="lowerlayerdown"), False),
        (Cable(operstate="up"), True),
        (Cable(operstate="dormant"), None),
    ],
)
def test_whether_a_cable_works_is_unknown_where_nothing_says_so(cable: Cable, works: bool | None) -> None:
    assert cable.works is works


def test_the_loopback_of_this_machine_has_its_carrier_and_is_up() -> None:
    if not Path("/sys/class/net/lo").exists():
        assert netdevs.cable("/sys", "lo") == Cable()
        return
    cable = netdevs.cable("/sys", "lo")
    assert cable.carrier in {True, None}
    assert cable.up in {True, False}


def test_ports_of_one_function_are_told_apart_and_representors_left_out(tmp_path: Path) -> None:
    device = tmp_path / "device"
    plant(
        device,
        {
            "net/eth4/dev_port": "0\n",
            "net/eth5/dev_port": "1\n",
            "net/pf0vf3/dev_port": "0\n",
            "net/pf0vf3/phys_port_name": "pf0vf3\n",
        },
    )
    assert [netdevs.of_device(str(device), port) for port in (1, 2, 3)] == ["eth4", "eth5", None]
    assert netdevs.of_device(str(tmp_path / "none"), 1) is None


def test_an_old_driver_tells_its_port_by_dev_id(tmp_path: Path) -> None:
    plant(tmp_path, {"net/eth4/dev_id": "0x0\n", "net/eth5/dev_id": "0x1\n", "net/eth5/dev_port": "0\n"})
    assert netdevs.of_device(str(tmp_path), 2) == "eth5"


def test_members_of_a_bond_are_found_from_the_bond_and_from_each_member(tmp_path: Path) -> None:
    plant(tmp_path, {f"{NET}/bond0/bonding/slaves": "eth2 eth3\n", f"{NET}/eth2/mtu": "1\n", f"{NET}/eth9/mtu": "1\n"})
    (tmp_path / NET / "eth2/master").symlink_to("../bond0")
    assert netdevs.members(tmp_path, "bond0") == ("eth2", "eth3")
    assert netdevs.members(tmp_path, "eth2") == ("eth2", "eth3")
    assert netdevs.members(tmp_path, "eth9") == ()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a:b", "sixteen_bytes_xx", "a\0b", None])
def test_what_cannot_be_an_interfaces_name_is_never_looked_up(name: str | None) -> None:
    assert netdevs.valid(name) is None


@given(st.binary(max_size=80))
def test_a_counter_is_a_whole_number_and_nothing_else(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("c") / "x"
    path.write_bytes(content)
    value = peek.counter(str(path))
    assert value is None or str(value).encode() == content.strip().lstrip(b"0") or value == 0


# Drivers' statistics


class Kernel:
    """Answers ioctls as net/ethtool/ioctl.c does. With `late`, queues come between counting and reading."""

    def __init__(self, statistics: dict[str, int], bus: str = "0000:81:00.0", late: int = 0) -> None:
        self.statistics, self.bus, self.late = statistics, bus, late
        self.asked: list[int] = []

    def __call__(self, name: str, request: array.array[int]) -> None:
        if name != "eth2":
            raise OSError(19, "No such device")
        (command,) = struct.unpack_from("=I", request.tobytes())
        self.asked.append(command)
        values = dict(self.statistics)
        if command == 0x37:
            answer = struct.pack("=IIQI", command, 0, 2, len(values))
        else:
            values |= {f"late_{at}": 7 for at in range(self.late)}
            names = b"".join(one.encode().ljust(32, b"\0") for one in values)
            numbers = struct.pack(f"={len(values)}Q", *values.values())
            answer = {
                0x03: struct.pack("=I32s32s32s32s", command, b"mlx5_core", b"6.8", b"28.39", self.bus.encode()),
                0x1B: struct.pack("=III", command, 1, len(values)) + names,
                0x1D: struct.pack("=II", command, len(values)) + numbers,
            }[command]
        assert len(answer) <= len(request), "the kernel would write past the caller's room"
        request[: len(answer)] = array.array("B", answer)


MLX5 = {f"rx_prio{n}_pause": n for n in range(8)} | {
    "rx_packets": 10**12,
    "rx_prio3_pause_duration": 10**9,
    "rx_prio3_pause_transition": 10**9,
    "tx_prio3_pause": 10**9,
    "rx_pause_ctrl_phy": 10**9,
}


@pytest.mark.parametrize(
    ("statistics", "frames"),
    [
        (MLX5, 28),
        ({f"rx_pause_prio_{n}": 1 for n in range(8)} | {"rx_pause_duration_prio_1": 9, "tx_pause_prio_1": 9}, 8),
        ({"rx_priority_3_xoff.nic": 5, "rx_priority_3_xon.nic": 5, "tx_priority_3_xoff.nic": 9}, 5),
        ({"port.rx_priority_1_xoff": 4, "port.rx_priority_1_xon_2_xoff": 9}, 4),
        ({"rx_pfc_ena_frames_pri0": 2, "rx_pfc_ena_frames_pri7": 3, "rx_pfc_xon2xoff_frames_pri7": 9}, 5),
        ({"rx_packets": 5, "rx_pause_ctrl_phy": 6, "tx_pause_ctrl_phy": 9}, 6),
        ({"rx_packets": 5}, None),
        ({}, None),
    ],
)
def test_pause_frames_are_those_received_of_all_priorities_by_each_drivers_names(
    statistics: dict[str, int], frames: int | None
) -> None:
    pauses = ethtool.PauseFrames(ethtool.Statistics(Kernel(statistics)))
    assert pauses.received("eth2", "0000:81:00.0") == frames


def test_queues_that_come_later_do_not_mix_up_the_names() -> None:
    kernel = Kernel({"rx_packets": 1, "rx_prio0_pause": 5})
    pauses = ethtool.PauseFrames(ethtool.Statistics(kernel))
    assert pauses.received("eth2", "0000:81:00.0") == 5
    kernel.statistics = {"rx_packets": 1, "rx1_packets": 99, "rx_prio0_pause": 6}
    assert pauses.received("eth2", "0000:81:00.0") == 6


def test_statistics_that_grow_between_counting_and_reading_do_not_write_past_their_room() -> None:
    pauses = ethtool.PauseFrames(ethtool.Statistics(Kernel({"rx_prio0_pause": 5}, late=100)))
    assert pauses.received("eth2", "0000:81:00.0") == 5


def test_a_driver_without_pause_frames_is_asked_for_its_numbers_never() -> None:
    kernel = Kernel({"rx_packets": 1})
    pauses = ethtool.PauseFrames(ethtool.Statistics(kernel))
    assert [pauses.received("eth2", "0000:81:00.0") for _ in range(3)] == [None] * 3
    assert 0x1D not in kernel.asked


def test_an_interface_at_another_address_or_gone_has_no_pause_frames() -> None:
    pauses = ethtool.PauseFrames(ethtool.Statistics(Kernel(MLX5)))
    assert pauses.received("eth2", "0000:82:00.0") is None
    assert pauses.received("eth2", "") is None
    assert pauses.received("eth3", "0000:81:00.0") is None


def test_this_machines_interfaces_are_asked_by_the_real_ioctl() -> None:
    statistics = ethtool.Statistics()
    for name in peek.names("/sys/class/net"):
        names, values = statistics.names(name), statistics.values(name)
        assert (names is None) == (values is None)
        if names is not None and values is not None:
            assert len(names) == len(values)
            assert all(names)
    assert statistics.names("no-such-iface") is None
    statistics.close()
    statistics.close()
