"""How PCI devices hang together: the bridges above each, and how far two of them are from each other.

`<sysfs>/bus/pci/devices/BDF` is a link into the tree of the machine, in which each bridge is a directory above
what hangs from it: `devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:04.0/0000:1a:00.0`. The first address is
a root port, those between it and the device are ports of switches.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Final

from gpuchaos_agent.kernelfs import numa_nodes, peek

#: Below the root of sysfs.
DEVICES: Final = "bus/pci/devices"

_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}\Z")


class Distance(StrEnum):
    """How two devices reach each other, in the words of `nvidia-smi topo -m` (its legend, driver 535 and later)."""

    SELF = "X"
    PIX = "PIX"  # at most a single PCIe bridge (switch)
    PXB = "PXB"  # multiple PCIe bridges, not the host bridge
    PHB = "PHB"  # a PCIe host bridge, typically the CPU
    NODE = "NODE"  # the interconnect between host bridges of one NUMA node
    SYS = "SYS"  # the interconnect between NUMA nodes


def address_of(path: str) -> str | None:
    """The PCI address that `path` leads to or below, the innermost one: `…/0000:1a:00.0/net/eth0` → that device."""
    return next((part for part in reversed(os.path.realpath(path).split("/")) if _ADDRESS.match(part)), None)


def chain(sysfs: Path, address: str) -> tuple[str, ...]:
    """Host bridge, root port, switch ports and device of `address`, from the top; empty where it is unknown.

    `address` is in any of the forms that `pci.normal` knows; without a function, function 0 is meant.
    """
    parts = os.path.realpath(sysfs / DEVICES / _file_name(address)).split("/")
    top = next((at for at, part in enumerate(parts) if _ROOT.match(part)), None)
    if top is None:
        return ()
    below = tuple(part for part in parts[top + 1 :] if _ADDRESS.match(part))
    return (parts[top], *below) if below else ()


def switch_of(sysfs: Path, address: str) -> str | None:
    """The PCIe switch that the device hangs from, as the address of its upstream port just below the root port.

    Devices with the same one reach each other without the CPU. None for a device directly at a root port, and
    where the tree is not known (in most virtual machines).
    """
    known = chain(sysfs, address)
    # Host bridge, root port, upstream port, and at least one port or the device behind it.
    return known[2] if len(known) > 3 else None


def distance(sysfs: Path, one: str, other: str) -> Distance | None:
    """How far two devices are from each other; None where either is not in the tree.

    PIX where the way between them crosses one switch, PXB where it crosses several, PHB from one root port of a
    host bridge to another, NODE and SYS between host bridges by NUMA node. An unknown node (-1) makes it SYS, as
    nothing speaks for it being nearer, unless the machine has one node.
    """
    a, b = chain(sysfs, one), chain(sysfs, other)
    if not a or not b:
        return None
    if a == b:
        return Distance.SELF
    shared = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if shared == 0:
        here, there = _node(sysfs, a[-1]), _node(sysfs, b[-1])
        return Distance.NODE if here is not None and here == there else Distance.SYS
    if shared == 1:
        return Distance.PHB
    # Functions of one device, and devices below one root port, meet without any switch between them.
    bridges = len(a) + len(b) - 2 * shared - 2
    return Distance.PIX if bridges <= 2 else Distance.PXB


def _node(sysfs: Path, address: str) -> int | None:
    said = peek.text(f"{sysfs}/{DEVICES}/{address}/numa_node")
    value = float(said) if said is not None and said.lstrip("-").isdecimal() and said.isascii() else None
    return numa_nodes.device_node(value, numa_nodes.online(sysfs / numa_nodes.NODES))


def _file_name(address: str) -> str:
    """`0000:1a:00.0` of `00000000:1A:00.0`, `0000:1a:00.0` and `0000:1a:00`."""
    head, dot, function = address.strip().lower().partition(".")
    domain, _, rest = head.partition(":")
    try:
        number = int(domain, 16)
    except ValueError:
        return "-"
    return f"{number:04x}:{rest}.{function if dot and function.isdecimal() else '0'}".replace("/", "-")
