from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.kernelfs import pci, pci_tree, quiet
from gpuchaos_agent.kernelfs.pci_tree import Distance

#: A server with two sockets: on the first a switch with two GPUs and an adapter, below it a second switch with one
#: more adapter; an adapter at a root port of its own, and one at another host bridge of the same socket.
SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"
TREE = {
    "0000:19:00.0": f"{SWITCH}/0000:17:00.0/0000:19:00.0",
    "0000:1a:00.0": f"{SWITCH}/0000:17:01.0/0000:1a:00.0",
    "0000:1b:00.0": f"{SWITCH}/0000:17:02.0/0000:1b:00.0",
    "0000:1b:00.1": f"{SWITCH}/0000:17:02.0/0000:1b:00.1",
    "0000:20:00.0": f"{SWITCH}/0000:17:03.0/0000:1e:00.0/0000:1f:00.0/0000:20:00.0",
    "0000:25:00.0": "pci0000:15/0000:15:03.0/0000:25:00.0",
    "0000:31:00.0": "pci0000:30/0000:30:01.0/0000:31:00.0",
    "0000:98:00.0": "pci0000:97/0000:97:01.0/0000:98:00.0",
    "0000:00:03.0": "pci0000:00/0000:00:03.0",
    "10003:04:00.0": "pci0000:97/0000:97:00.5/pci10003:00/10003:00:01.0/10003:04:00.0",
}
NODES = {"0000:97:": "1\n", "0000:98:": "1\n", "0000:00:": "-1\n"}


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    for address, where in TREE.items():
        real = tmp_path / "devices" / where
        real.mkdir(parents=True)
        node = next((value for start, value in NODES.items() if address.startswith(start)), "0\n")
        (real / "numa_node").write_text(node)
        (links / address).symlink_to(Path("../../../devices") / where)
    nodes = tmp_path / "devices/system/node"
    nodes.mkdir(parents=True)
    (nodes / "online").write_text("0-1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("address", "switch"),
    [
        ("0000:19:00.0", "0000:16:00.0"),
        ("00000000:1A:00.0", "0000:16:00.0"),
        ("0000:1b:00", "0000:16:00.0"),
        ("0000:20:00.0", "0000:16:00.0"),
        ("0000:25:00.0", None),
        ("0000:00:03.0", None),
        ("0000:77:00.0", None),
        ("", None),
        ("../../x", None),
    ],
)
def test_the_switch_of_a_device_is_the_first_bridge_below_its_root_port(
    sysfs: Path, address: str, switch: str | None
) -> None:
    assert pci_tree.switch_of(sysfs, address) == switch


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ("0000:19:00.0", "0000:19:00.0", Distance.SELF),
        ("0000:19:00.0", "0000:1b:00.0", Distance.PIX),
        ("0000:1b:00.0", "0000:1b:00.1", Distance.PIX),
        ("0000:19:00.0", "0000:20:00.0", Distance.PXB),
        ("0000:19:00.0", "0000:25:00.0", Distance.PHB),
        ("0000:19:00.0", "0000:31:00.0", Distance.NODE),
        ("0000:19:00.0", "0000:98:00.0", Distance.SYS),
        ("0000:19:00.0", "0000:00:03.0", Distance.SYS),
        ("0000:19:00.0", "0000:77:00.0", None),
    ],
)
def test_the_distance_of_two_devices_is_what_nvidia_smi_calls_it(
    sysfs: Path, one: str, other: str, distance: Distance | None
) -> None:
    assert pci_tree.distance(sysfs, one, other) == distance
    assert pci_tree.distance(sysfs, other, one) == distance


def test_a_domain_of_five_digits_below_another_device_is_found(sysfs: Path) -> None:
    assert pci_tree.chain(sysfs, "10003:04:00.0")[-1] == "10003:04:00.0"
    assert pci_tree.distance(sysfs, "10003:04:00.0", "0000:98:00.0") is Distance.PHB


def test_an_address_is_found_in_the_path_of_what_belongs_to_it(sysfs: Path) -> None:
    net = sysfs / "devices" / TREE["0000:1b:00.1"] / "net/eth4"
    net.mkdir(parents=True)
    assert pci_tree.address_of(str(net)) == "0000:1b:00.1"
    assert pci_tree.address_of(str(sysfs / "class/net/lo")) is None


def test_this_machines_devices_have_a_chain_that_ends_with_themselves() -> None:
    root = Path("/sys/bus/pci/devices")
    for link in sorted(root.iterdir()) if root.is_dir() else []:
        chain = pci_tree.chain(Path("/sys"), link.name)
        assert chain == () or chain[-1] == link.name


@pytest.mark.parametrize(
    ("vpd", "name"),
    [
        (b"\x82\x0a\x00ConnectX-7\x90\x05\x00", "ConnectX-7"),
        (b"\x82\xff\xffConnectX-7  Lx ", "ConnectX-7 Lx"),
        (b"\x90\x0a\x00ConnectX-7", None),
        (b"\x82\x00\x00", None),
        (b"\xff" * 256, None),
        (b"", None),
        (None, None),
    ],
)
def test_the_product_name_is_at_the_head_of_vital_product_data(vpd: bytes | None, name: str | None) -> None:
    assert pci.product_name(vpd) == name


@given(st.binary(max_size=300))
def test_any_vital_product_data_are_read_without_an_error(vpd: bytes) -> None:
    name = pci.product_name(vpd)
    assert name is None or name.strip() == name


COMPLAINT = (
    "mlx5_core 0000:a3:00.1: mlx5_cmd_out_err:838:(pid {pid}): ACCESS_REG(0x805) op_mod(0x1) failed, "
    "status bad resource(0x5), syndrome (0x1), err(-22)"
)


def test_a_complaint_about_a_thread_of_ours_is_heard_and_another_process_is_not_ours() -> None:
    quiet.forget()
    assert quiet.heard(COMPLAINT.format(pid=2**31)) is None
    assert not quiet.asked("0000:a3:00.1")
    heard: list[str | None] = []
    thread = threading.Thread(target=lambda: heard.append(quiet.heard(COMPLAINT.format(pid=threading.get_native_id()))))
    thread.start()
    thread.join(10)
    assert heard == ["0000:a3:00.1"]
    assert quiet.asked("00000000:A3:00.1")
    assert not quiet.asked("0000:a3:00.0")
    quiet.forget()
    assert not quiet.asked("0000:a3:00.1")


def test_only_refused_registers_are_complaints_about_reading() -> None:
    for text in ("", "ACCESS_REG", COMPLAINT.format(pid=1).replace("ACCESS_REG(0x805)", "CREATE_QP(0x500)")):
        assert quiet.heard(text, own_pid=1) is None


@given(st.text(max_size=200))
def test_any_text_is_heard_without_an_error(text: str) -> None:
    assert quiet.heard("mlx5_core " + text + " ACCESS_REG(0x805)") is None
