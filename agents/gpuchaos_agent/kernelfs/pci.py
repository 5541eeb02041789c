"""PCI devices: sources write the same address in four ways, and are joined on one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuchaos_agent.kernelfs import files

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


#: PCI local bus specification 2.2, appendix I: a large resource of the type "identifier string".
_VPD_NAME: Final = 0x82


def product_name(vpd: bytes | None) -> str | None:
    """The product name at the head of vital product data (`vpd` of a PCI device), None where there is none.

    Reading that file takes milliseconds, as each four bytes are a wait for the device: read a few hundred, once.
    """
    if not vpd or len(vpd) < 3 or vpd[0] != _VPD_NAME:
        return None
    name = vpd[3 : 3 + int.from_bytes(vpd[1:3], "little")].decode("ascii", "replace")
    return " ".join(name.replace("\0", " ").split()) or None
