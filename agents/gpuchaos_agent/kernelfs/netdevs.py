"""`/sys/class/net`: what a network device says of its cable, and which devices are bonded to one.

An interface that is administratively down answers EINVAL for `carrier`; that is no cable's fault. Paths and values
as in Documentation/ABI/testing/sysfs-class-net of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent.kernelfs import peek

#: Below the root of sysfs.
NET: Final = "class/net"

#: if.h
_IFF_UP: Final = 0x1
#: Interface names have at most 15 bytes and neither slash nor blank (dev_valid_name).
_LONGEST: Final = 15


@dataclass(frozen=True, slots=True)
class Cable:
    """What one device says now. Each field is None where it cannot be read.

    `carrier` is whether a signal is there (None while the interface is down: nothing is known of the cable), `up`
    whether an administrator has it up, `operstate` as in RFC 2863. `downs` counts losses of the carrier since the
    device was made (`carrier_down_count`, Linux 4.16), and so never wraps between two reads.
    """

    carrier: bool | None = None
    up: bool | None = None
    operstate: str | None = None
    downs: int | None = None

    @property
    def works(self) -> bool | None:
        """Whether it carries traffic; None where that cannot be known.

        `operstate` is asked where `carrier` is silent: an interface that is down is not working, whatever its
        cable. `unknown` and `dormant` leave it to the carrier: virtual devices never say `up`.
        """
        if self.carrier is not None:
            return self.carrier
        if self.up is False or self.operstate in {"down", "lowerlayerdown", "notpresent"}:
            return False
        return True if self.operstate == "up" else None


def valid(name: str | None) -> str | None:
    """The name if it can be an interface's, else None."""
    if not name or name in {".", ".."} or len(name.encode("utf-8", "replace")) > _LONGEST:
        return None
    return None if any(c in "/:\0" or c.isspace() for c in name) else name


def cable(sysfs: Path | str, name: str) -> Cable:
    """The device's state now: four small files, none of which goes to the hardware."""
    root = f"{sysfs}/{NET}/{name}"
    flags = peek.text(f"{root}/flags", 64)
    return Cable(
        carrier={b"1": True, b"0": False}.get((peek.raw(f"{root}/carrier", 64) or b"").strip()),
        up=_is_up(flags),
        operstate=peek.text(f"{root}/operstate", 64) or None,
        downs=peek.counter(f"{root}/carrier_down_count"),
    )


def of_device(device: str, port: int) -> str | None:
    """The interface of a PCI device's port, `port` from 1; None where it has none or several that fit.

    Adapters with several ports in one PCI function tell them apart by `dev_port`, from 0 (`dev_id` on old kernels).
    """
    found = [name for name in peek.names(f"{device}/net") if valid(name)]
    if len(found) > 1:
        by_port = [name for name in found if _port_of(f"{device}/net/{name}") == port - 1]
        # Representors of virtual functions are below the same device; they have a phys_port_name.
        found = [name for name in by_port if not peek.text(f"{device}/net/{name}/phys_port_name", 64)] or by_port
    return found[0] if len(found) == 1 else None


def members(sysfs: Path | str, name: str) -> tuple[str, ...]:
    """The interfaces bonded with this one, itself included where it is one of them; empty where it is in no bond."""
    root = f"{sysfs}/{NET}/{name}"
    listed = peek.text(f"{root}/bonding/slaves")
    bond = None if listed is not None else valid(peek.link_name(f"{root}/master"))
    if bond is not None:
        listed = peek.text(f"{sysfs}/{NET}/{bond}/bonding/slaves")
    return tuple(one for one in (listed or "").split() if valid(one))


def _port_of(path: str) -> int | None:
    number = peek.counter(f"{path}/dev_port")
    if number:
        return number
    # Before Linux 3.15 and in old mlx4 the port stood in dev_id, in hexadecimal, and dev_port is 0 or missing.
    said = peek.text(f"{path}/dev_id", 64) or ""
    try:
        return int(said, 16) or number
    except ValueError:
        return number


def _is_up(flags: str | None) -> bool | None:
    try:
        return None if flags is None else bool(int(flags, 16) & _IFF_UP)
    except ValueError:
        return None
