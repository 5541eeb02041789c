"""RDMA devices that vanish and come back, told apart from those that were renamed or handed to a container."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent.collect.base import Evidence, Fact
from gpuchaos_agent.kernelfs import pci_tree
from gpuchaos_agent.kernelfs.ports import Device
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin

#: A device is gone when it is missing in this many readings in a row; a driver that is loaded anew takes one or two.
#: NVSentinel waits for as many (docs/nic-health-monitor.md, v1.23).
MISSING_READINGS: Final = 3
#: Names in the evidence of a fact about many devices.
_NAMED: Final = 16


@dataclass(slots=True)
class _Device:
    name: str
    address: str
    missing: int = 0
    told: bool = False


class Presence:
    """Remembers which devices there were. Virtual and scalable functions come and go as people make them."""

    def __init__(self, sysfs: Path, boot: str) -> None:
        self._sysfs = sysfs
        self._boot = boot
        self._known: dict[str, _Device] = {}

    def step(self, devices: Iterable[Device], now: float) -> list[Fact]:
        """The devices that are gone for good since the last tick, and those that came back."""
        here = {device.identity: device for device in devices if device.physical is None}
        facts: list[Fact] = []
        for identity, device in here.items():
            known = self._known.get(identity)
            if known is not None and known.told:
                facts.append(self._fact(known, Severity.INFO, now, {"recovered": True}))
            self._known[identity] = _Device(device.name, device.address)
        lost: list[_Device] = []
        for identity, known in self._known.items():
            if identity in here or known.told:
                continue
            known.missing += 1
            if known.missing >= MISSING_READINGS:
                known.told = True
                lost.append(known)
        if len(lost) > 1 and not here:
            facts.append(self._unloaded(lost, now))
        else:
            facts += [self._lost(known, now) for known in lost]
        return facts

    def _lost(self, known: _Device, now: float) -> Fact:
        """An error where the PCI device is gone as well. Where it is still there, its driver has let it go, or it
        was moved into a container's network namespace, which is what some clusters do for each job.
        """
        if known.address and not (self._sysfs / pci_tree.DEVICES / known.address).exists():
            evidence: Evidence = {"cause": "gone from the PCI bus", "action": "reboot_node"}
            return self._fact(known, Severity.ERROR, now, evidence)
        cause = "no longer offered by its driver, or in another network namespace"
        return self._fact(known, Severity.WARNING, now, {"cause": cause, "action": "investigate"})

    def _unloaded(self, lost: list[_Device], now: float) -> Fact:
        """All at once: a driver that was unloaded is one event."""
        names = ",".join(known.name for known in lost[:_NAMED])
        return Fact(
            key=f"rdma/{self._boot}/all/rdma_device_lost/{now:.0f}",
            fault="rdma_device_lost",
            severity=Severity.WARNING,
            time=now,
            origin=Origin.DRIVER,
            evidence={
                "cause": "all RDMA devices gone at once",
                "count": len(lost),
                "name": names,
                "action": "investigate",
            },
        )

    def _fact(self, known: _Device, severity: Severity, now: float, more: Evidence) -> Fact:
        evidence: Evidence = {"bdf": known.address} if known.address else {}
        return Fact(
            key=f"rdma/{self._boot}/{known.name}/rdma_device_lost/{severity.value}/{now:.0f}",
            fault="rdma_device_lost",
            severity=severity,
            time=now,
            kind="port",
            local=known.name,
            origin=Origin.DRIVER,
            evidence={**evidence, **more},
        )
