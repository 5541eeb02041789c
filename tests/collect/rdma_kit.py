"""A device in the form of the kernel's `/sys/class/infiniband`, below a folder, and what a reading of it says."""

from __future__ import annotations

from pathlib import Path

from collect_trees import plant

from gpuchaos_agent.collect.base import Fact
from gpuchaos_agent.kernelfs.ports import LIFESPAN
from gpuchaos_stream.events.base import Severity

IB = "class/infiniband"
NET = "class/net"


class Adapter:
    """One device with one port, in the form of the kernel, below a root of sysfs."""

    def __init__(self, root: Path, name: str = "mlx5_0", *, link_layer: str = "InfiniBand", address: str = "") -> None:
        self.root, self.name, self.address = root, name, address
        self.path = f"{IB}/{name}/ports/1"
        self.values = {"link_downed": 3}
        plant(root, {f"{self.path}/link_layer": f"{link_layer}\n", f"{self.path}/hw_counters/{LIFESPAN}": "12\n"})
        if address:
            real = root / f"devices/pci0000:80/0000:80:01.0/{address}"
            real.mkdir(parents=True)
            link = root / "bus/pci/devices" / address
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(real)
            (root / IB / name / "device").symlink_to(real)
        self.up()
        self.count()

    def say(self, state: str, physical: str, rate: str = "400 Gb/sec (4X NDR)") -> None:
        plant(
            self.root,
            {
                f"{self.path}/state": f"{state}\n",
                f"{self.path}/phys_state": f"{physical}\n",
                f"{self.path}/rate": f"{rate}\n",
            },
        )

    def up(self) -> None:
        self.say("4: ACTIVE", "5: LinkUp")

    def down(self, physical: str = "2: Polling") -> None:
        self.say("1: DOWN", physical, "10 Gb/sec (4X SDR)")

    def init(self) -> None:
        self.say("2: INIT", "5: LinkUp")

    def count(self, **changed: int) -> None:
        """Writes counters; a name with `hw_` before it goes to hw_counters."""
        self.values |= changed
        for name, value in self.values.items():
            folder = "hw_counters" if name.startswith("hw_") else "counters"
            plant(self.root, {f"{self.path}/{folder}/{name.removeprefix('hw_')}": f"{value}\n"})

    def netdev(self, name: str, *, carrier: str = "1", downs: int = 0, flags: str = "0x1003") -> None:
        net = f"{NET}/{name}"
        plant(
            self.root,
            {
                f"{net}/carrier": f"{carrier}\n",
                f"{net}/carrier_down_count": f"{downs}\n",
                f"{net}/flags": f"{flags}\n",
                f"{net}/operstate": "up\n" if carrier == "1" else "down\n",
                f"{self.path}/gid_attrs/ndevs/0": f"{name}\n",
            },
        )


def faults(facts: tuple[Fact, ...]) -> list[tuple[str, str, Severity]]:
    return [(fact.fault, fact.local, fact.severity) for fact in facts]
