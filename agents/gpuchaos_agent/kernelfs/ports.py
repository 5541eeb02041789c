"""`/sys/class/infiniband`: RDMA devices, their ports, and what each file of them says.

Paths and values as in Documentation/ABI/stable/sysfs-class-infiniband of the kernel. Every file is read by itself:
drivers leave out whole directories (irdma and EFA have no `counters`), answer EINVAL, or write `N/A (no PMA)`, and
one file's silence must not hide another. A value out of its range is None like one that is absent.

Reading costs more than it seems: `state`, `phys_state` and `rate` are each a question to the adapter's firmware, and
so is each file in `counters`; those in `hw_counters` are one question together within their `lifespan` (10 ms).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from gpuchaos_agent.kernelfs import files, netdevs, pci, pci_tree, peek

#: Below the root of sysfs.
INFINIBAND: Final = "class/infiniband"
#: The cache time of hw_counters in milliseconds, which can be written. It lies among them and is none of them.
LIFESPAN: Final = "lifespan"
#: Product names of adapters whose ports belong to the fabric manager (leptonai/gpud#1164).
FABRIC_OWNED: Final = ("mezz internal for nvidia umbriel",)
#: Entries of the GID table that are read unless more are asked for; the table has up to 256, mostly empty.
GIDS_READ: Final = 16
_VPD_HEAD: Final = 256
_EMPTY_GID: Final = ":".join(["0000"] * 8)


class State(IntEnum):
    """Logical state of a port: ib_verbs.h, `enum ib_port_state`."""

    NOP = 0
    DOWN = 1
    INIT = 2
    ARMED = 3
    ACTIVE = 4
    ACTIVE_DEFER = 5


class Physical(IntEnum):
    """Physical state of a port: ib_verbs.h, `enum ib_port_phys_state` (Linux 5.4)."""

    SLEEP = 1
    POLLING = 2
    DISABLED = 3
    TRAINING = 4
    LINK_UP = 5
    ERROR_RECOVERY = 6
    PHY_TEST = 7


@dataclass(frozen=True, slots=True)
class Family:
    """A family of adapters: the kernel drivers of its PCI function, how its devices are called by default."""

    name: str
    vendor: str
    drivers: tuple[str, ...]
    prefixes: tuple[str, ...]
    hca_types: tuple[str, ...] = ()


#: The names of devices are a last resort: udev renames them (`rocep65s0f0`, `ibp12s0`, `rdmap0s6`).
FAMILIES: Final = (
    Family("mlx5", "mellanox", ("mlx5_core",), ("mlx5",), ("MT41",)),
    Family("mlx4", "mellanox", ("mlx4_core",), ("mlx4",), ("MT4099", "MT4103", "MT264", "MT25408")),
    Family("efa", "amazon", ("efa",), ("efa", "rdmap")),
    Family("hfi1", "omni-path", ("hfi1",), ("hfi1",)),
    Family("irdma", "intel", ("ice", "i40e", "idpf", "irdma"), ("irdma",)),
    Family("bnxt_re", "broadcom", ("bnxt_en",), ("bnxt_re",)),
    Family("erdma", "alibaba", ("erdma",), ("erdma",)),
    Family("mana", "microsoft", ("mana",), ("mana", "manae")),
    Family("ionic", "amd-pensando", ("ionic",), ("ionic",)),
    Family("qedr", "marvell", ("qede",), ("qedr",)),
    Family("cxgb4", "chelsio", ("cxgb4",), ("cxgb4",)),
    Family("hns", "huawei", ("hns3",), ("hns",)),
    Family("rxe", "software", (), ("rxe",)),
    Family("siw", "software", (), ("siw",)),
)
_UNKNOWN: Final = Family("", "", (), ())


@dataclass(frozen=True, slots=True)
class Port:
    """One port; `name` is the device's, with `_N` where it has several. What is read of it later is below `path`.

    `link_layer` is `InfiniBand` (Omni-Path as well), `Ethernet`, `Unknown` (EFA), or empty. `netdev` is its network
    interface, `members` those bonded with that one. `counters` and `hw_counters` are the files there are.
    """

    name: str
    device: str
    number: int
    path: str
    link_layer: str = ""
    netdev: str | None = None
    members: tuple[str, ...] = ()
    counters: frozenset[str] = frozenset()
    hw_counters: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Device:
    """One RDMA device. `address` is its PCI address with function, empty for a software device and where unknown.

    `physical` is the address of the physical function that a virtual or a scalable one belongs to: they share a
    cable. `identity` stays the same when the device is renamed.
    `fabric_owned` devices are the fabric manager's; their counters are not to be read.
    """

    name: str
    path: str
    family: Family = _UNKNOWN
    identity: str = ""
    address: str = ""
    physical: str | None = None
    driver: str | None = None
    board_id: str | None = None
    hca_type: str | None = None
    firmware: str | None = None
    node_guid: str | None = None
    numa_node: float | None = None
    fabric_owned: bool = False
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's GID table. `kind` is `IB/RoCE v1` or `RoCE v2`, None where the kernel does not say."""

    index: int
    gid: str
    kind: str | None = None
    netdev: str | None = None


def natural(name: str) -> tuple[str | int, ...]:
    """Sorting key: `mlx5_2` before `mlx5_10`."""
    return tuple(int(part) if part.isascii() and part.isdigit() else part for part in re.split(r"([0-9]{1,18})", name))


def device_names(sysfs: Path) -> tuple[str, ...] | None:
    """The devices there are, `mlx5_2` before `mlx5_10`; None where no RDMA driver is loaded."""
    root = sysfs / INFINIBAND
    return tuple(sorted(files.names(root), key=natural)) if root.is_dir() else None


def device(sysfs: Path, name: str, *, fabric_owned: bool | None = None) -> Device:
    """What does not change while the device is there. A port without any readable file is listed all the same.

    `fabric_owned` is what is known of it already; None asks the device (VPD), which takes milliseconds.
    """
    path = f"{sysfs}/{INFINIBAND}/{name}"
    driver = peek.link_name(f"{path}/device/driver")
    hca_type = peek.text(f"{path}/hca_type") or None
    numbers = sorted(int(n) for n in peek.names(f"{path}/ports") if n.isascii() and n.isdigit() and len(n) < 6)
    family = _family(name, driver, hca_type)
    guid = _guid(peek.text(f"{path}/node_guid", 64))
    address = pci_tree.address_of(f"{path}/device") or ""
    parent = os.path.realpath(f"{path}/device").rpartition("/")[2]
    # A scalable function is no PCI function of its own: its parent is `mlx5_core.sf.2` below the physical one.
    scalable = address if address and parent != address else None
    return Device(
        name=name,
        path=path,
        family=family,
        identity=parent if address else guid or name,
        address=address,
        physical=peek.link_name(f"{path}/device/physfn") or scalable,
        driver=driver,
        board_id=peek.text(f"{path}/board_id") or None,
        hca_type=hca_type,
        firmware=peek.text(f"{path}/fw_ver") or None,
        node_guid=guid,
        numa_node=files.number(Path(path) / "device/numa_node"),
        fabric_owned=family.name == "mlx5" and _is_fabric_owned(path) if fabric_owned is None else fabric_owned,
        ports=tuple(_port(sysfs, name, path, number, alone=len(numbers) == 1) for number in numbers),
    )


def devices(sysfs: Path) -> tuple[Device, ...]:
    """All devices; empty where there is none."""
    return tuple(device(sysfs, name) for name in device_names(sysfs) or ())


def state(port: Port) -> State | None:
    """The port's logical state, by its number: the words differ between drivers."""
    number = _numbered(peek.text(f"{port.path}/state", 64))
    return State(number) if number is not None and number in State.__members__.values() else None


def physical_state(port: Port) -> Physical | None:
    """The port's physical state, by its number.

    On Ethernet it follows the interface: `3: Disabled` is then said of a cable that is out as well (mlx5, bnxt_re,
    siw), and only the interface knows whether an administrator did it.
    """
    number = _numbered(peek.text(f"{port.path}/phys_state", 64))
    return Physical(number) if number is not None and number in Physical.__members__.values() else None


_RATE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec(?: |\Z)")


def rate_bits(port: Port) -> float | None:
    """Bits a second of `400 Gb/sec (4X NDR)`. Ask only active ports: others show a default of 10 Gb/s."""
    match = _RATE.match(rate_text(port) or "")
    return (float(match[1]) * 1e9 or None) if match else None


def rate_text(port: Port) -> str | None:
    """The rate as the kernel writes it, `400 Gb/sec (4X NDR)`."""
    return peek.text(f"{port.path}/rate", 64) or None


def lids(port: Port) -> tuple[int | None, int | None]:
    """The port's local id and its subnet manager's; 0 is none assigned. None each where unreadable."""
    return _hex(peek.text(f"{port.path}/lid", 64)), _hex(peek.text(f"{port.path}/sm_lid", 64))


def gids(port: Port, most: int = GIDS_READ) -> tuple[Gid, ...]:
    """The entries of the GID table that are filled, of the first `most`."""
    found: list[Gid] = []
    for index in range(most):
        said = peek.text(f"{port.path}/gids/{index}", 64)
        if said is None:
            break
        if said and said != _EMPTY_GID:
            kind = peek.text(f"{port.path}/gid_attrs/types/{index}", 64) or None
            netdev = netdevs.valid(peek.text(f"{port.path}/gid_attrs/ndevs/{index}", 64))
            found.append(Gid(index, said, kind, netdev))
    return tuple(found)


def read_counter(port: Port, file: str) -> int | None:
    """One counter, `counters/link_downed` or `hw_counters/rx_bytes`, as it stands since the driver was loaded."""
    return peek.counter(f"{port.path}/{file}")


def _port(sysfs: Path, name: str, path: str, number: int, *, alone: bool) -> Port:
    below = f"{path}/ports/{number}"
    netdev = _netdev(path, below, number)
    return Port(
        name=name if alone else f"{name}_{number}",
        device=name,
        number=number,
        path=below,
        link_layer=peek.text(f"{below}/link_layer", 64) or "",
        netdev=netdev,
        members=netdevs.members(sysfs, netdev) if netdev else (),
        counters=frozenset(peek.names(f"{below}/counters")),
        hw_counters=frozenset(peek.names(f"{below}/hw_counters")) - {LIFESPAN},
    )


def _netdev(path: str, below: str, number: int) -> str | None:
    """The port's interface: the GID table names it for RoCE, the PCI device's `net` for the rest."""
    for index in range(4):
        said = netdevs.valid(peek.text(f"{below}/gid_attrs/ndevs/{index}", 64))
        if said is not None:
            return said
    # rxe and siw have no device of their own and name their parent.
    return netdevs.of_device(f"{path}/device", number) or netdevs.valid(peek.text(f"{path}/parent", 64))


def _family(name: str, driver: str | None, hca_type: str | None) -> Family:
    by_driver = next((family for family in FAMILIES if driver in family.drivers), None)
    by_type = next((family for family in FAMILIES if (hca_type or "-").startswith(family.hca_types)), None)
    by_name = next((family for family in FAMILIES if name.startswith(family.prefixes)), None)
    return by_driver or by_type or by_name or _UNKNOWN


def _is_fabric_owned(path: str) -> bool:
    product = pci.product_name(peek.raw(f"{path}/device/vpd", _VPD_HEAD)) or ""
    return any(words in product.lower() for words in FABRIC_OWNED)


def _numbered(said: str | None) -> int | None:
    """4 of `4: ACTIVE`."""
    number, _, _ = (said or "").partition(":")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 3 else None


def _guid(said: str | None) -> str | None:
    return said if said and any(c not in "0:" for c in said) else None


def _hex(said: str | None) -> int | None:
    try:
        return int(said or "", 16)
    except ValueError:
        return None
