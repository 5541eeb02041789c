"""`rdma-link`: the port itself, taken down, flapping, or slowed down.

RDMA passes the kernel by, so nothing that filters packets (`tc`, nftables) is felt by it. On Ethernet (RoCE, iWARP,
rxe) the port follows its network interface, which is set down; on InfiniBand the port is disabled by a management
datagram to itself (`ibportstate`). A slower port is one whose link is negotiated anew at a lower speed.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, Self

from pydantic import Field, model_validator

from gpuchaos_agent.inject import hold, link_speed, port_admin, tools
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.params import belong, need
from gpuchaos_agent.inject.port_admin import Interface
from gpuchaos_agent.journal import JournalEntry, Scalar
from gpuchaos_agent.kernelfs import netdevs, peek, ports
from gpuchaos_stream.events.base import Authored

_FLAP: Final = "gpuchaos_agent.inject.port_flap"
#: A busy node takes its time to start a process.
_READY_S: Final = 20.0
_WAIT_S: Final = 0.5
_STEP_S: Final = 0.01
_ETHERNET: Final = "Ethernet"
_INFINIBAND: Final = "InfiniBand"
#: The GID table has at most so many places.
_GIDS: Final = 256
#: Counters of a port that a lost link moves, where the driver has them.
_COUNTERS: Final = ("counters/link_downed", "hw_counters/link_downed", "counters/link_error_recovery")


class RdmaLinkParams(Authored):
    """What happens to the port.

    `period_s` is one turn of a flapping port, half of it down, `count` the number of turns. `speed_mbps` is what a
    degraded port is slowed down to. `force` allows a port that the node's default route leads through,
    `include_brokers` one that the agent's own way to Kafka does.
    """

    mode: Literal["down", "flap", "degraded"] = "down"
    period_s: float = Field(default=2.0, ge=0.1, le=60)
    count: int = Field(default=5, ge=1, le=1000)
    speed_mbps: int | None = Field(default=None, ge=10, le=3_200_000)
    force: bool = False
    include_brokers: bool = False

    @model_validator(mode="after")
    def _of_the_mode(self) -> Self:
        belong(self, "mode", {"period_s": ("flap",), "count": ("flap",), "speed_mbps": ("degraded",)})
        need(self, "mode", {"degraded": ("speed_mbps",)})
        return self


class RdmaLink:
    """One port; see the module."""

    name = "rdma-link"
    layer = "the RDMA port itself: its link is gone, comes and goes, or is slower"
    certifies = ("rdma-failure", "collective-failure", "rdma-degradation")
    not_certified = ("node-isolation",)
    params: type[Authored] = RdmaLinkParams

    def __init__(self, env: Env) -> None:
        self._env = env

    def unavailable(self) -> str | None:
        """Needs an RDMA device whose port can be switched, and the right to."""
        if not ports.device_names(self._env.sysfs):
            return "there is no RDMA device on this node"
        if os.geteuid() != 0 and not _may_administer(self._env.procfs):
            return "a port is switched by root or with CAP_NET_ADMIN, and this agent has neither"
        return tools.missing("ip")

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Refuses what is no port of ours, is down already, or would take the node's own way with it."""
        given = RdmaLinkParams.model_validate(params)
        kind, _, name = target.partition(f"/{self._env.node}/")
        if kind != "port" or not name:
            return f"the target must be port/{self._env.node}/NAME, not {target}"
        reason = self.unavailable()
        found = None if reason else self._find(name)
        if reason or found is None:
            return reason or f"there is no RDMA port {name} on this node"
        device, port = found
        if device.fabric_owned:
            return f"port {name} belongs to the fabric manager of the NVLink switches"
        if {name, device.name, port.netdev} & self._env.protected:
            return f"port {name} is protected"
        if ports.state(port) is not ports.State.ACTIVE:
            return f"port {name} is not active: there is no link to take away"
        if port.link_layer == _INFINIBAND:
            return _why_no_infiniband(given)
        return self._why_no_ethernet(port, given)

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:
        """Who the port is, by name and by hardware, how it stands, and what its interface would forget."""
        given = RdmaLinkParams.model_validate(params)
        found = self._find(target.rsplit("/", 1)[1])
        if found is None:
            raise InjectError(f"{target} has gone")
        device, port = found
        payload: Payload = {
            "mode": given.mode,
            "device": device.name,
            "port": port.number,
            "identity": device.identity,
            "link_layer": port.link_layer,
            "netdev": port.netdev,
            "state_before": _state_name(port),
            "rate_before": ports.rate_text(port),
            "period_s": given.period_s,
            "count": given.count,
            **{f"before.{name}": value for name, value in self._counters(port).items()},
        }
        if port.link_layer == _ETHERNET and port.netdev:
            payload["interfaces"] = port_admin.to_text(port_admin.snapshot(self._env.sysfs, port.netdev, _places(port)))
            if given.mode == "degraded":
                payload |= link_speed.read(port.netdev).payload()
                payload["speed_mbps"] = given.speed_mbps
        if given.mode == "flap":
            payload["holder_file"] = str(self._env.state_dir / f"rdma-link-{fault_id}.json")
            payload["holder_log"] = str(self._env.state_dir / f"rdma-link-{fault_id}.log")
        return payload

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:  # noqa: ARG002
        """The port and its interface."""
        name = target.rsplit("/", 1)[1]
        found = self._find(name)
        netdev = found[1].netdev if found else None
        return frozenset({f"port:{name}", *((f"netdev:{netdev}",) if netdev else ())})

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """With `ip`, `ethtool` or `ibportstate`."""
        payload = entry.payload
        if payload.get("link_layer") == _INFINIBAND:
            return tuple(shlex.join(_ibportstate(payload, word)) for word in ("disable", "enable"))
        name = str(payload.get("netdev"))
        if payload.get("mode") == "degraded":
            speed = link_speed.Speed.of(payload)
            return (
                shlex.join(link_speed.slow_command(name, _mbps(payload))),
                shlex.join(speed.command(name)),
            )
        turns = f"  # {payload.get('count')} times, every {payload.get('period_s')} s"
        once = turns if payload.get("mode") == "flap" else ""
        back = port_admin.commands(name, _interfaces(payload))
        return (f"ip link set dev {name} down{once}", *(shlex.join(command) for command in back))

    def inject(self, entry: JournalEntry) -> None:
        """Switches the port, or starts the process that flaps it."""
        payload = entry.payload
        if entry.boot_id != self._env.boot_id:
            raise InjectError("the fault belongs to another boot")
        if payload.get("link_layer") == _INFINIBAND:
            tools.run(_ibportstate(payload, "disable"))
            return
        name = self._netdev(entry)
        if name is None:
            raise InjectError(f"the interface {payload.get('netdev')} has gone")
        match payload.get("mode"):
            case "degraded":
                link_speed.slow(self._env.sysfs, name, _mbps(payload))
            case "flap":
                self._start_flapping(entry)
            case _:
                port_admin.set_up(name, up=False)

    def evidence(self, entry: JournalEntry) -> Evidence:
        """The port's state in sysfs, what it counted, and its rate."""
        port = self._port(entry)
        if port is None:
            return Evidence(moved=False, detail={"state": None})
        mode = entry.payload.get("mode")
        deadline = time.monotonic() + _WAIT_S
        while True:
            state, now = ports.state(port), self._counters(port)
            counted = {
                name: value - before
                for name, value in now.items()
                if isinstance(before := entry.payload.get(f"before.{name}"), int) and value > before
            }
            if mode == "degraded":
                speed = link_speed.current(self._env.sysfs, str(self._netdev(entry)))
                moved = speed is not None and 0 < speed <= _mbps(entry.payload)
            else:
                moved = state is ports.State.DOWN or (mode == "flap" and bool(counted))
            if moved or time.monotonic() >= deadline:
                break
            time.sleep(_STEP_S)
        detail: Payload = {
            "state_before": entry.payload.get("state_before"),
            "state": state.name if state is not None else None,
            "phys_state": _physical_name(port),
            **counted,
        }
        if mode == "degraded":
            detail |= {"rate_before": entry.payload.get("rate_before"), "rate": ports.rate_text(port)}
        return Evidence(moved, detail)

    def undo(self, entry: JournalEntry) -> None:
        """Ends the flapping, sets the port up, and puts back what its interface forgot. Another boot did all of it."""
        if entry.boot_id != self._env.boot_id:
            self._forget(entry)
            return
        hold.stop(self._with_holder(entry), self._env.boot_id)
        if entry.payload.get("link_layer") == _INFINIBAND:
            port = self._port(entry)
            if port is not None and ports.physical_state(port) is ports.Physical.DISABLED:
                tools.run(_ibportstate({**entry.payload, "device": port.device}, "enable"))
        elif (name := self._netdev(entry)) is not None:
            if entry.payload.get("mode") == "degraded":
                link_speed.Speed.of(entry.payload).restore(name)
            else:
                port_admin.bring_up(name, _interfaces(entry.payload))
        self._forget(entry)

    def verify(self, entry: JournalEntry) -> bool:
        """Nobody flaps it, and it is administratively up; that a cable was pulled meanwhile is not ours."""
        if entry.boot_id != self._env.boot_id:
            return True
        if hold.alive(self._with_holder(entry).payload):
            return False
        port = self._port(entry)
        if port is None:
            return True
        if port.link_layer == _INFINIBAND:
            return _within(lambda: ports.physical_state(port) is not ports.Physical.DISABLED)
        name = self._netdev(entry)
        if name is None:
            return True
        if entry.payload.get("mode") == "degraded":
            return link_speed.Speed.of(entry.payload).holds(name)
        return _within(lambda: netdevs.cable(self._env.sysfs, name).up is not False) and not any(
            port_admin.missing(name if at == 0 else one.name, one) for at, one in enumerate(_interfaces(entry.payload))
        )

    # Parts

    def _start_flapping(self, entry: JournalEntry) -> None:
        payload = entry.payload
        file = Path(str(payload["holder_file"]))
        file.parent.mkdir(parents=True, exist_ok=True)
        interfaces = _interfaces(payload)
        given = {
            "file": str(file),
            "parent": os.getpid(),
            "interfaces": port_admin.to_text(interfaces),
            "period_s": payload["period_s"],
            "count": payload["count"],
        }
        hold.start(_FLAP, [json.dumps(given)], log=Path(str(payload["holder_log"])), ready_s=_READY_S)

    def _with_holder(self, entry: JournalEntry) -> JournalEntry:
        """The entry with who flaps the port, as that process wrote it before its first effect."""
        try:
            known = json.loads(Path(str(entry.payload.get("holder_file"))).read_text())
        except (OSError, ValueError):
            return entry
        return entry.model_copy(update={"payload": {**entry.payload, **known}})

    def _forget(self, entry: JournalEntry) -> None:
        for name in ("holder_file", "holder_log"):
            if isinstance(path := entry.payload.get(name), str):
                Path(path).unlink(missing_ok=True)

    def _find(self, name: str) -> tuple[ports.Device, ports.Port] | None:
        for device in ports.devices(self._env.sysfs):
            for port in device.ports:
                if port.name == name:
                    return device, port
        return None

    def _port(self, entry: JournalEntry) -> ports.Port | None:
        """The port of the entry, also where its device was renamed since."""
        wanted = entry.payload
        found = [
            (device, port)
            for device in ports.devices(self._env.sysfs)
            for port in device.ports
            if port.number == wanted.get("port")
            and (device.identity == wanted.get("identity") or device.name == wanted.get("device"))
        ]
        found.sort(key=lambda pair: pair[0].identity != wanted.get("identity"))
        return found[0][1] if found else None

    def _netdev(self, entry: JournalEntry) -> str | None:
        """The interface of the entry by its index in this boot, else as the port says: names can change."""
        interfaces = _interfaces(entry.payload)
        root = f"{self._env.sysfs}/{netdevs.NET}"
        for name in peek.names(root) if interfaces else ():
            if peek.counter(f"{root}/{name}/ifindex") == interfaces[0].index:
                return name
        port = self._port(entry)
        return port.netdev if port else None

    def _counters(self, port: ports.Port) -> dict[str, int]:
        found: dict[str, int | None] = {}
        for name in _COUNTERS:
            short = name.rpartition("/")[2]
            found[short] = ports.read_counter(port, name) if found.get(short) is None else found[short]
        if port.netdev:
            found["carrier_downs"] = netdevs.cable(self._env.sysfs, port.netdev).downs
        return {name: value for name, value in found.items() if value is not None}

    def _why_no_ethernet(self, port: ports.Port, given: RdmaLinkParams) -> str | None:
        if port.link_layer != _ETHERNET or port.netdev is None:
            return f"port {port.name} has no network interface here that could be switched ({port.link_layer or '?'})"
        if port.members:
            return (
                f"port {port.name} is bonded ({', '.join(port.members)}): one of them down is a failover of the bond "
                "and not the loss of the port"
            )
        if netdevs.cable(self._env.sysfs, port.netdev).up is not True:
            return f"interface {port.netdev} of port {port.name} is down already"
        if given.mode == "degraded":
            reason = link_speed.why_not(self._env.sysfs, port.netdev, given.speed_mbps)
            if reason:
                return f"port {port.name}: {reason}"
        try:
            names = [one.name for one in port_admin.snapshot(self._env.sysfs, port.netdev)]
            led = None if given.force else port_admin.carries_default(names)
            if led:
                return f"the node's default route leads through {led}; force: true allows it"
            return None if given.include_brokers else self._why_brokers(names)
        except InjectError as error:
            return str(error)

    def _why_brokers(self, names: list[str]) -> str | None:
        for broker in self._env.brokers:
            host = broker.rpartition(":")[0].strip("[]") or broker
            way = port_admin.way_to(host)
            if way in names:
                return f"the agent's way to Kafka ({broker}) leads through {way}; include_brokers: true allows it"
        return None


def _within(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _WAIT_S
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(_STEP_S)
    return found


def _why_no_infiniband(given: RdmaLinkParams) -> str | None:
    if given.mode != "down":
        return f"mode {given.mode} is for Ethernet ports; an InfiniBand port can be taken down"
    return tools.missing("ibportstate")


def _ibportstate(payload: Mapping[str, Scalar], word: str) -> list[str]:
    number = str(payload.get("port"))
    return ["ibportstate", "-C", str(payload.get("device")), "-P", number, "-D", "0", number, word]


def _places(port: ports.Port) -> dict[tuple[str, str | None], int]:
    """Each address's first place in the GID table, with its interface."""
    found: dict[tuple[str, str | None], int] = {}
    for gid in ports.gids(port, _GIDS):
        found.setdefault((str(ipaddress.ip_address(gid.gid)), gid.netdev), gid.index)
    return found


def _interfaces(payload: Mapping[str, Scalar]) -> tuple[Interface, ...]:
    return port_admin.from_text(str(payload.get("interfaces") or ""))


def _mbps(payload: Mapping[str, Scalar]) -> int:
    value = payload.get("speed_mbps")
    return value if isinstance(value, int) else 0


def _state_name(port: ports.Port) -> str | None:
    state = ports.state(port)
    return state.name if state is not None else None


def _physical_name(port: ports.Port) -> str | None:
    state = ports.physical_state(port)
    return state.name if state is not None else None


def _may_administer(procfs: Path) -> bool:
    """CAP_NET_ADMIN (12) among the effective capabilities."""
    for line in (peek.text(f"{procfs}/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 12 & 1)
    return False


STRATEGY = RdmaLink
