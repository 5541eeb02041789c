"""PCI devices: sources write the same address in four ways, and are joined on one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuchaos_agent.collect import files

_NVIDIA: Final = "0x10de"
#: PCI class codes of GPUs: VGA compatible (0300) and 3D controller (0302); bridges and switches are neither.
_GPU_CLASSES: Final = ("0x0300", "0x0302")


def normal(address: str) -> str:
    """`0000:1a:00` of `00000000:1A:00.0` (NVML), `0000:1a:00.0` (sysfs) and `0000:1a:00` (Xid lines).

    The function is left out because Xid lines have none; a domain keeps more than four digits where it has
    them (VMD: `10003`). What is no address comes back stripped and in lower case.
    """
    head = address.strip().lower().partition(".")[0]
    domain, _, rest = head.partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if rest else head
    except ValueError:
        return head


def numa_file(sysfs: Path, address: str) -> Path:
    """Where the kernel says on which NUMA node the device of that address is."""
    return sysfs / "bus/pci/devices" / f"{normal(address)}.0" / "numa_node"


def gpus(sysfs: Path) -> tuple[str, ...]:
    """The addresses of NVIDIA GPUs in bus order, which is the order of NVML's indexes."""
    root = sysfs / "bus/pci/devices"
    return tuple(
        normal(name)
        for name in files.names(root)
        if files.text(root / name / "vendor") == _NVIDIA
        and (files.text(root / name / "class") or "").startswith(_GPU_CLASSES)
    )
