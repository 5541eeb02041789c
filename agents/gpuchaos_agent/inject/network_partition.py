"""`network-partition`: this node's IP traffic with named peers, ports or services is dropped, all of it or a share.

An nftables table of its own, before everybody else's rules and before connection tracking: established connections
are cut as well. The agent's way to its brokers stays open unless the plan says otherwise. RDMA passes it by.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gpuchaos_agent.inject import endpoints, nft
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.endpoints import Endpoint, Selector
from gpuchaos_agent.inject.network_partition_probe import Door, doors, knock
from gpuchaos_agent.inject.network_partition_rules import Cut, grouped
from gpuchaos_agent.inject.network_partition_ways import agents_own, control_plane_here, is_kept
from gpuchaos_agent.journal import JournalEntry, Scalar
from gpuchaos_stream.events.base import Authored

_ALL: Final = "all"
_WAIT_S: Final = 0.5
_STEP_S: Final = 0.02
#: Chance that a partial loss hits none of our knocks although it is there.
_UNSEEN: Final = 1e-4
#: Knocks at the peers to see one dropped, in all: a small loss may stay unseen, and is void then.
_MOST_KNOCKS: Final = 1024


def _peers(text: str) -> str:
    if text.strip() != _ALL and not endpoints.checked(endpoints.parse_list(text)):
        raise ValueError("name peers separated by commas, or say all")
    return text.strip()


def _ports(text: str) -> str:
    return ",".join(endpoints.ports(part) for part in text.split(","))


class NetworkPartitionParams(Authored):
    """`peers` are addresses, networks, names, `host:port` or `tcp/5432`, separated by commas, or `all`.

    `ports` hold for peers that name none, at whichever end. `action` reject answers at once instead of silence.
    `interface` limits it to one device. `force` allows the node that the control plane itself runs on.
    """

    peers: Annotated[str, AfterValidator(_peers)] | None = None
    ports: Annotated[str, AfterValidator(_ports)] | None = None
    protocol: Literal["any", "tcp", "udp"] = "any"
    direction: Literal["in", "out", "both"] = "both"
    loss_percent: int = Field(default=100, ge=1, le=100)
    action: Literal["drop", "reject"] = "drop"
    include_brokers: bool = False
    interface: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.:@-]{1,15}$")
    force: bool = False

    @model_validator(mode="after")
    def _somebody(self) -> Self:
        if self.peers is None and self.ports is None:
            raise ValueError("name peers or ports; peers: all cuts the node off from everybody")
        return self


class NetworkPartition:
    """A table of nftables that drops; see the module."""

    name = "network-partition"
    layer = "the node's IP network (control plane, storage, database); RDMA passes it by"
    certifies = ("node-isolation", "task-failover", "heartbeat-loss")
    not_certified = ("rdma-failure", "collective-failure", "node-loss", "gpu-failure")
    params: type[Authored] = NetworkPartitionParams

    def __init__(self, env: Env, *, lookup: endpoints.Lookup = endpoints.lookup) -> None:
        self._env = env
        self._lookup = lookup

    def unavailable(self) -> str | None:
        """Needs nft, the right to use it, and a kernel with nf_tables."""
        return nft.unavailable()

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Refuses the control plane's own node, peers that are this node or cannot be resolved, and an empty cut."""
        if target != f"node/{self._env.node}":
            return f"the target must be node/{self._env.node}, not {target}"
        asked = NetworkPartitionParams.model_validate(params)
        reason = self.unavailable()
        if reason is not None:
            return reason
        if asked.interface is not None and asked.interface not in (name for _, name in socket.if_nameindex()):
            return f"there is no interface {asked.interface} on this node"
        try:
            self._cut(asked)
            return None if asked.force else control_plane_here(self._env, self._lookup)
        except InjectError as error:
            return str(error)

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:  # noqa: ARG002
        """The table's name and content, with names resolved, and where to knock for evidence."""
        asked = NetworkPartitionParams.model_validate(params)
        cut = self._cut(asked)
        found = doors(cut.cut, endpoints.local_addresses(self._env.procfs), self._env.procfs)
        return {
            "table": nft.table_name(fault_id),
            "rules": cut.body(),
            "loss_percent": cut.loss_percent,
            "interface": cut.interface,
            "doors": ",".join(f"{protocol} {address} {port}" for protocol, address, port in found),
            "kept": " ".join(f"{n}:{'/'.join(s.ports)}" for s in cut.kept for n in s.networks),
        }

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:  # noqa: ARG002
        """The paths to the peers: two faults on one path would count each other's drops as their own."""
        asked = NetworkPartitionParams.model_validate(params)
        ports = asked.ports.split(",") if asked.ports else []
        if asked.peers in (None, _ALL):
            spoken = ("tcp", "udp") if asked.protocol == "any" else (asked.protocol,)
            return frozenset(f"path:{way}/{port}" for way in spoken for port in ports) or frozenset({"path:all"})
        held = set[str]()
        for end in endpoints.parse_list(str(asked.peers)):
            each = [replace(end, ports=span) for span in ports] if ports and end.ports is None else [end]
            held |= {f"path:{endpoints.shown(one)}" for one in each}
        return frozenset(held)

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """The input of nft, and the table's removal."""
        return nft.commands(str(entry.payload["table"]), str(entry.payload["rules"]))

    def inject(self, entry: JournalEntry) -> None:
        """One transaction: there is all of it or nothing."""
        if entry.boot_id != self._env.boot_id:
            raise InjectError("this was planned before a reboot")
        nft.apply(str(entry.payload["table"]), str(entry.payload["rules"]))

    def evidence(self, entry: JournalEntry) -> Evidence:
        """Packets that the table's counters saw dropped, while peers are knocked at."""
        table = str(entry.payload["table"])
        found = _doors(entry)
        interface = entry.payload.get("interface")
        knocks = _knocks(entry, len(found))
        deadline = time.monotonic() + _WAIT_S
        with contextlib.ExitStack() as held:
            for door in found:
                for knocking in knock(door, knocks, str(interface) if interface else None):
                    held.enter_context(knocking)
            counted = nft.counters(table)
            while not _dropped(counted) and time.monotonic() < deadline:
                time.sleep(_STEP_S)
                counted = nft.counters(table)
        return Evidence(
            _dropped(counted) > 0,
            {
                "dropped_packets_in": counted["dropped_in"].packets,
                "dropped_packets_out": counted["dropped_out"].packets,
                "seen_packets": counted["seen_in"].packets + counted["seen_out"].packets,
                "dropped_bytes": counted["dropped_in"].bytes + counted["dropped_out"].bytes,
                "kept": entry.payload.get("kept"),
            },
        )

    def undo(self, entry: JournalEntry) -> None:
        """Removes the table, also one that was saved and restored over a reboot."""
        if not nft.gone_with_boot(entry, self._env.boot_id):
            nft.remove(str(entry.payload["table"]))

    def verify(self, entry: JournalEntry) -> bool:
        """The kernel has no such table."""
        return nft.gone_with_boot(entry, self._env.boot_id) or not nft.exists(str(entry.payload["table"]))

    def _cut(self, asked: NetworkPartitionParams) -> Cut:
        kept = () if asked.include_brokers else agents_own(self._env, self._lookup)
        cut = grouped(self._selectors(asked, kept))
        return Cut(
            cut=cut,
            kept=kept,
            inward=asked.direction != "out",
            outward=asked.direction != "in",
            loss_percent=asked.loss_percent,
            reject=asked.action == "reject",
            interface=asked.interface,
        )

    def _selectors(self, asked: NetworkPartitionParams, kept: tuple[Selector, ...]) -> Iterator[Selector]:
        everybody = (Endpoint(),) if asked.peers in (None, _ALL) else endpoints.parse_list(str(asked.peers))
        ports = tuple(asked.ports.split(",")) if asked.ports else ()
        protocol = None if asked.protocol == "any" else asked.protocol
        own = endpoints.local_addresses(self._env.procfs)
        for peer in everybody:
            networks = endpoints.networks_of(peer, self._lookup)
            for network in networks:
                address = network.network_address
                if network.is_loopback or (network.num_addresses == 1 and address in own):
                    raise InjectError(f"{peer.host} is this node itself; a partition is from somebody else")
                if reason := endpoints.no_peer(network):
                    raise InjectError(reason)
            if peer.protocol and protocol and peer.protocol != protocol:
                raise InjectError(f"{peer.protocol}/{peer.ports} and protocol {protocol} leave nothing to cut")
            selector = Selector(networks, (peer.ports,) if peer.ports else ports, peer.protocol or protocol)
            if is_kept(selector, kept):
                raise InjectError(f"{peer.host} is the agent's own way to its brokers; include_brokers: true cuts it")
            yield selector


def _dropped(counted: Mapping[str, nft.Counter]) -> int:
    return counted["dropped_in"].packets + counted["dropped_out"].packets


def _doors(entry: JournalEntry) -> tuple[Door, ...]:
    found = (door.split(" ") for door in str(entry.payload.get("doors") or "").split(",") if door)
    return tuple((protocol, address, int(port)) for protocol, address, port in found)


def _knocks(entry: JournalEntry, number_of_doors: int) -> int:
    """How often to knock at each door, so that a loss that is there is seen."""
    kept = 1.0 - float(entry.payload.get("loss_percent") or 100) / 100.0
    needed = math.ceil(math.log(_UNSEEN) / math.log(kept)) if kept > 0 else 1
    return max(1, min(math.ceil(needed / max(number_of_doors, 1)), _MOST_KNOCKS // max(number_of_doors, 1)))


STRATEGY = NetworkPartition
