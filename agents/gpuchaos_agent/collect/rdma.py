"""RDMA ports from `/sys/class/infiniband`: state, rate, counters made rates, and what becomes of their links.

Each file is read by itself (`kernelfs/ports.py`), counters become increments (`rdma_counters.py`), states become
facts (`rdma_links.py`, `rdma_presence.py`). Devices whose driver complains about being read are left alone
(`kernelfs/quiet.py`). The first reading is a baseline, kept over restarts of the agent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent.collect import place
from gpuchaos_agent.collect.base import Evidence, Fact, Group, Places, Reading, Sources
from gpuchaos_agent.collect.rdma_baseline import Baseline, Mark
from gpuchaos_agent.collect.rdma_counters import COUNTERS, Step, Tally, Watch
from gpuchaos_agent.collect.rdma_links import BOOT_S, Links, Look
from gpuchaos_agent.collect.rdma_presence import Presence
from gpuchaos_agent.kernelfs import ethtool, files, netdevs, numa_nodes, pci_tree, ports, quiet
from gpuchaos_agent.kernelfs.counters import Rates
from gpuchaos_agent.kernelfs.ports import Device, Port, State
from gpuchaos_stream.events.frame import GroupLayout, Kind
from gpuchaos_stream.events.node import PortPlace

#: What does not change while a device is there is read anew after this time, seconds: interfaces are renamed.
LOOK_ANEW_S: Final = 60.0
#: The rate of an active port is asked for when it becomes active, and after this time, seconds.
RATE_AGAIN_S: Final = 10.0
#: A driver's own statistics cost it a question for each of thousands of them: one interface a tick, each at most
#: this often, seconds. The rate stays until the next one.
PAUSE_AGAIN_S: Final = 5.0
#: Ports in a frame. Virtual functions come last: a node can have hundreds, which share their physical one's cable.
MOST_PORTS: Final = 64

METRICS: Final = (
    "port_active",
    "rate_bits",
    "carrier",
    *(counter.metric for counter in COUNTERS),
    "pfc_pause_rate",
)


@dataclass(frozen=True, slots=True)
class _Seat:
    """A port with its device and what is said of it in every fact."""

    port: Port
    device: Device
    leader: str | None
    evidence: Evidence

    @property
    def left_alone(self) -> bool:
        return self.device.fabric_owned or (bool(self.device.address) and quiet.asked(self.device.address))


class RdmaCollector:
    """Reads `<sysfs>/class/infiniband`. `rails` is port name → rail, `state` a file kept over restarts.

    `pauses` counts pause frames, None not to ask drivers. It is a `Follower` for the sake of `commit`: what was
    told is kept only when it is safe elsewhere.
    """

    name = "rdma"
    kinds: tuple[Kind, ...] = ("rdma",)
    ORDER = 30

    def __init__(
        self,
        sysfs: Path,
        rails: dict[str, str] | None = None,
        *,
        boot_id: str = "unknown",
        state: Path | None = None,
        pauses: ethtool.PauseFrames | None = None,
    ) -> None:
        self._sysfs = sysfs
        self._rails = rails or {}
        self._boot = boot_id
        self._pauses = pauses
        self._tally, self._watch, self._links = Tally(), Watch(boot_id), Links(boot_id)
        self._presence = Presence(sysfs, boot_id)
        self._baseline = Baseline(state, boot_id)
        self._this_boot, self._before = self._baseline.load()
        self._before_until: float | None = None
        self._names: tuple[str, ...] | None = None
        self._looked = 0.0
        self._devices: tuple[Device, ...] = ()
        self._seats: tuple[_Seat, ...] = ()
        self._left_out = 0
        self._places = Places()
        self._info: dict[str, str | int | float] = {}
        self._rate_bits: dict[str, tuple[float, float | None]] = {}
        self._carrier_downs: dict[str, int] = {}
        self._downs: dict[str, int | None] = {}
        self._was_active: dict[str, bool | None] = {}
        self._pause_rates = Rates()
        self._pause: dict[str, tuple[float, float | None]] = {}
        self._in_flight = False

    @classmethod
    def from_sources(cls, sources: Sources) -> RdmaCollector:
        """The collector of these roots.

        Raises:
            UserError: the place file is none; with file and line.
        """
        return cls(
            sources.sysfs,
            {**place.load(sources.place).rails, **sources.rails},
            boot_id=files.text(sources.procfs / "sys/kernel/random/boot_id") or "unknown",
            state=None if sources.state_dir is None else sources.state_dir / "rdma.json",
            pauses=ethtool.PauseFrames(ethtool.Statistics()),
        )

    def fileno(self) -> None:
        """Nothing can be waited on."""

    def drain(self, now: float) -> tuple[Fact, ...]:  # noqa: ARG002  (the contract's signature)
        """Nothing comes between two readings."""
        return ()

    def commit(self) -> None:
        """Keeps what was told: it is safe elsewhere.

        Raises:
            OSError: it cannot be written.
        """
        self._in_flight = False
        self._baseline.save(self._marks())

    def read(self, now: float) -> Reading:
        """One row a port, named as the device, with `_N` where it has several."""
        self._look(now)
        facts = self._presence.step(self._devices, now)
        if not self._seats:
            why = "no RDMA driver loaded" if self._names is None else "no RDMA device"
            if self._devices:
                why = "no RDMA port"
            return Reading(absent={"rdma": f"{why} ({self._sysfs / ports.INFINIBAND})"}, facts=tuple(facts))
        absent: dict[str, str] = {}
        looks: list[Look] = []
        rows: list[tuple[float | None, ...]] = []
        for seat in self._seats:
            if seat.left_alone:
                absent[f"rdma.{seat.port.name}"] = "not read: its driver complains in the kernel log when it is"
                rows.append((None,) * len(METRICS))
                continue
            # Counters first: a link that goes down between the two then shows its state at once, its count next time.
            steps = self._tally.read(seat.port, now)
            look = self._look_at(seat, steps)
            absent.update(_stuck(seat.port.name, steps))
            facts += self._over_limits(seat, steps, look, now)
            looks.append(look)
            rows.append(self._row(seat, steps, look, now))
        facts += self._links.step(looks, now)
        self._one_pause(now)
        if self._left_out:
            absent["rdma.virtual"] = f"{self._left_out} ports of virtual functions are left out of {MOST_PORTS}"
        self._in_flight = self._in_flight or bool(facts)
        absent.update(self._save_or_say())
        return Reading((self._group(rows),), absent, tuple(facts), self._places, self._info)

    def close(self) -> None:
        """Gives back the socket that drivers are asked through."""
        if self._pauses is not None:
            self._pauses.close()

    def _look(self, now: float) -> None:
        """Which devices there are, each second; what they are, when that has changed or was long ago."""
        names = ports.device_names(self._sysfs)
        if names == self._names and 0 <= now - self._looked < LOOK_ANEW_S:
            return
        self._names, self._looked = names, now
        before = {device.name: device for device in self._devices}
        self._devices = tuple(self._described(name, before.get(name)) for name in names or ())
        seats = [
            _Seat(port, device, self._leader(device, port), _evidence(device, port))
            for device in self._devices
            for port in device.ports
        ]
        seats.sort(key=lambda seat: seat.leader is not None)
        self._left_out = max(0, len(seats) - MOST_PORTS)
        self._seats = tuple(seats[:MOST_PORTS])
        self._settle(now)

    def _described(self, name: str, before: Device | None) -> Device:
        """Who owns a device is asked once (VPD is slow), and one that is the fabric manager's is not asked again."""
        if before is not None and before.fabric_owned:
            return before
        return ports.device(self._sysfs, name, fabric_owned=None if before is None else False)

    def _leader(self, device: Device, port: Port) -> str | None:
        for other in self._devices:
            if device.physical is not None and other.physical is None and other.address == device.physical:
                return next((p.name for p in other.ports if p.number == port.number), None)
        return None

    def _settle(self, now: float) -> None:
        """Forgets ports that are gone, takes up those that an earlier run knew, and places all of them."""
        names = [seat.port.name for seat in self._seats]
        self._tally.keep(names)
        self._watch.keep(names)
        self._links.keep(names)
        self._pause_rates.keep(names)
        tables: tuple[dict[str, Any], ...] = (
            self._rate_bits,
            self._carrier_downs,
            self._downs,
            self._was_active,
            self._pause,
        )
        for table in tables:
            for name in set(table).difference(names):
                del table[name]
        if self._before_until is None:
            self._before_until = now + BOOT_S
        for name in set(names).intersection(self._before):
            until = 0.0 if self._this_boot else self._before_until
            self._links.recall(name, self._before[name].kept, until=until)
            if self._this_boot:
                self._downs[name] = self._before[name].downs
            self._before.pop(name)
        nodes = numa_nodes.online(self._sysfs / numa_nodes.NODES)
        self._places = Places(ports=tuple(self._place(seat, nodes) for seat in self._seats))
        self._info = {}
        for seat in self._seats:
            if not seat.left_alone and seat.leader is None:
                self._info |= _addresses(seat.port)

    def _place(self, seat: _Seat, nodes: tuple[int, ...]) -> PortPlace:
        """Cabling cannot be read from here and is not guessed: a rail is known where it is configured."""
        address = seat.device.address
        return PortPlace(
            name=seat.port.name,
            rail=self._rails.get(seat.port.name) or None,
            numa_node=numa_nodes.device_node(seat.device.numa_node, nodes),
            pcie_switch=pci_tree.switch_of(self._sysfs, address) if address else None,
            netdev=seat.port.netdev,
        )

    def _look_at(self, seat: _Seat, steps: dict[str, Step]) -> Look:
        port = seat.port
        cable = netdevs.cable(self._sysfs, port.netdev) if port.netdev else netdevs.Cable()
        state = ports.state(port)
        active = None if state is None else state is State.ACTIVE
        if seat.device.family.name == "efa" and cable.works is not None:
            active = active and cable.works  # the driver's own answer is always ACTIVE
        physical = ports.physical_state(port) if active is False and state is not State.ACTIVE else None
        off = physical is ports.Physical.DISABLED and (port.link_layer != "Ethernet" or cable.up is False)
        return Look(
            name=port.name,
            active=active,
            state=State.DOWN if active is False and state is State.ACTIVE else state,
            physical=physical,
            switched_off=off or (active is False and cable.up is False and port.link_layer != "InfiniBand"),
            downs=self._new_downs(port.name, steps.get("link_downed_rate")),
            carrier_downs=self._new_carrier_downs(port, cable),
            cable_of=seat.leader,
            carrier=cable.carrier,
            cause="no carrier" if cable.carrier is False else None if physical is None else physical.name.lower(),
            members={name: netdevs.cable(self._sysfs, name).carrier for name in port.members},
            evidence=seat.evidence,
        )

    def _new_downs(self, name: str, step: Step | None) -> int | None:
        """Downs since the last reading, also that of an earlier run in this boot. Fewer than then: cleared."""
        value = None if step is None else step.value
        before = self._downs.get(name)
        if value is not None:
            self._downs[name] = value
        return None if value is None or before is None or value < before else value - before

    def _new_carrier_downs(self, port: Port, cable: netdevs.Cable) -> int | None:
        before = self._carrier_downs.get(port.name)
        # The carrier of IP over InfiniBand follows the subnet manager, and that of a bond its members together.
        if cable.downs is None or port.netdev is None or port.link_layer == "InfiniBand":
            return None
        self._carrier_downs[port.name] = cable.downs
        return None if before is None or cable.downs < before else cable.downs - before

    def _over_limits(self, seat: _Seat, steps: dict[str, Step], look: Look, now: float) -> list[Fact]:
        was, self._was_active[look.name] = self._was_active.get(look.name), look.active
        trained = bool(was) and bool(look.active)
        return self._watch.step(look.name, steps, now, trained=trained, evidence=seat.evidence)

    def _row(self, seat: _Seat, steps: dict[str, Step], look: Look, now: float) -> tuple[float | None, ...]:
        return (
            None if look.active is None else float(look.active),
            self._rate(seat.port, now, active=bool(look.active)),
            None if look.carrier is None else float(look.carrier),
            *((steps[c.metric].rate if c.metric in steps else None) for c in COUNTERS),
            self._pause.get(seat.port.name, (0.0, None))[1],
        )

    def _rate(self, port: Port, now: float, *, active: bool) -> float | None:
        """The rate of a port that is not active is a default; when it comes up, it may be another than before."""
        at, bits = self._rate_bits.pop(port.name, (now, None))
        if not active:
            return None
        if bits is None or not 0 <= now - at < RATE_AGAIN_S:
            at, bits = now, ports.rate_bits(port)
        self._rate_bits[port.name] = (at, bits)
        return bits

    def _one_pause(self, now: float) -> None:
        """Asks the one interface that has waited longest, if it has waited long enough."""
        if self._pauses is None:
            return
        due = [
            (self._pause.get(seat.port.name, (float("-inf"), None))[0], at)
            for at, seat in enumerate(self._seats)
            if seat.port.link_layer == "Ethernet" and seat.port.netdev and seat.leader is None and not seat.left_alone
        ]
        if not due or 0 <= now - min(due)[0] < PAUSE_AGAIN_S:
            return
        seat = self._seats[min(due)[1]]
        name = seat.port.name
        frames = self._pauses.received(seat.port.netdev or "", seat.device.address)
        rate = self._pause_rates.rate((name,), None if frames is None else float(frames), now)
        self._pause[name] = (now, rate)

    def _group(self, rows: list[tuple[float | None, ...]]) -> Group:
        names = tuple(seat.port.name for seat in self._seats)
        return Group(_layout(names, tuple(self._rails.get(name, "") for name in names)), tuple(zip(*rows, strict=True)))

    def _marks(self) -> dict[str, Mark]:
        return {
            seat.port.name: Mark(self._downs.get(seat.port.name), self._links.kept(seat.port.name))
            for seat in self._seats
            if not seat.left_alone
        }

    def _save_or_say(self) -> dict[str, str]:
        """Without facts under way what is known is safe, and kept at once."""
        try:
            if not self._in_flight:
                self._baseline.save(self._marks())
        except OSError as error:
            return {"rdma.position": f"cannot be kept: {os.strerror(error.errno or 0)}"}
        return {}


@lru_cache(maxsize=4)
def _layout(names: tuple[str, ...], rails: tuple[str, ...]) -> GroupLayout:
    """Made when something changed: checking it costs more than filling it."""
    return GroupLayout(kind="rdma", ids=names, metrics=METRICS, labels={"rail": rails})


def _evidence(device: Device, port: Port) -> Evidence:
    found: Evidence = {"bdf": device.address or None, "netdev": port.netdev, "link_layer": port.link_layer or None}
    return {name: value for name, value in found.items() if value is not None}


def _addresses(port: Port) -> dict[str, str | int | float]:
    """What peers reach the port by: its local id and subnet manager on InfiniBand, its RoCE v2 GIDs on Ethernet."""
    if port.link_layer == "Ethernet":
        return {f"{port.name}.roce_v2_gids": sum(gid.kind == "RoCE v2" for gid in ports.gids(port))}
    lid, manager = ports.lids(port)
    said = {f"{port.name}.lid": lid, f"{port.name}.sm_lid": manager}
    return {name: value for name, value in said.items() if value is not None}


def _stuck(name: str, steps: dict[str, Step]) -> dict[str, str]:
    """Counters at their end: from here on they say nothing, until somebody clears them."""
    ends = {step.file.partition("/")[2]: step.value for step in steps.values() if step.stuck}
    return {f"rdma.{name}.{file}": f"stands at its end, {top}; perfquery -R clears it" for file, top in ends.items()}


COLLECTOR = RdmaCollector
