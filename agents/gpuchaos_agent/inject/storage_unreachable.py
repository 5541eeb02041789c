"""`unreachable`: the packets to and from the servers of a mount are dropped (NFS, SMB, iSCSI, NVMe over TCP, or any
that are named): nobody says no, everybody waits, as when a storage network is gone.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from typing import Final

from gpuchaos_agent.inject import endpoints, nft, storage_probe
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.endpoints import Selector
from gpuchaos_agent.inject.storage_mode import StorageDisconnectParams, same_boot, told, word
from gpuchaos_agent.inject.storage_mounts import Mount, servers
from gpuchaos_agent.inject.storage_probe import Said
from gpuchaos_agent.journal import JournalEntry

_KNOCK_S: Final = 0.3


class Unreachable:
    """See the module. The table is the fault's own, and before everybody else's rules."""

    def why_not(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None) -> str | None:
        """Needs nftables, servers that are known, and brokers that are none of them."""
        reason = nft.unavailable()
        if reason is not None:
            return reason
        try:
            cut = selectors(env, asked, mount)
        except InjectError as error:
            return str(error)
        broker = None if asked.include_brokers else broker_among(cut, env)
        if broker is not None:
            return f"{broker} is the agent's own way to Kafka; include_brokers: true would cut it as well"
        return None

    def plan(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None, fault_id: str) -> Payload:
        """The table with the addresses in it, and what answers before."""
        cut = selectors(env, asked, mount)
        return {
            "table": nft.table_name(fault_id),
            "rules": body(cut),
            "servers": ",".join(_shown(selector) for selector in cut),
        }

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """Input for nft, and the table's removal."""
        return nft.commands(word(entry, "table"), word(entry, "rules"))

    def inject(self, env: Env, entry: JournalEntry) -> None:
        """One transaction."""
        if not same_boot(env, entry):
            raise InjectError("this was planned before a reboot")
        nft.apply(word(entry, "table"), word(entry, "rules"))

    def evidence(self, env: Env, entry: JournalEntry) -> Evidence:  # noqa: ARG002
        """Packets that were dropped while the mount, or the servers, were asked; no answer came."""
        mount = entry.payload.get("mount")
        said = storage_probe.run("ask", str(mount)) if mount else knock(word(entry, "servers"))
        counted = nft.counters(word(entry, "table"))
        dropped = {f"dropped_packets_{way}": counted[f"dropped_{way}"].packets for way in ("in", "out")}
        return Evidence(
            said.hangs and sum(dropped.values()) > 0,
            {**told(entry, said), "servers": entry.payload.get("servers"), **dropped},
        )

    def undo(self, env: Env, entry: JournalEntry) -> None:
        """Removes the table."""
        if not nft.gone_with_boot(entry, env.boot_id):
            nft.remove(word(entry, "table"))
        storage_probe.settle(0.0)

    def verify(self, env: Env, entry: JournalEntry) -> bool:
        """No such table. How soon the client asks its server again is its own matter."""
        return nft.gone_with_boot(entry, env.boot_id) or not nft.exists(word(entry, "table"))


def selectors(env: Env, asked: StorageDisconnectParams, mount: Mount | None) -> tuple[Selector, ...]:
    """The servers, by address and port: those that are named, otherwise those of the mount.

    Raises:
        InjectError: they are not known.
    """
    if asked.endpoint is not None:
        named = endpoints.parse_list(asked.endpoint)
        return tuple(Selector(endpoints.networks_of(end), (end.ports,) if end.ports else ()) for end in named)
    if mount is None:
        raise InjectError("neither a mount nor an endpoint is known")
    found, reason = servers(mount, env.sysfs)
    if not found:
        raise InjectError(reason)
    return tuple(Selector((ipaddress.ip_network(server.address),), (str(server.port),), "tcp") for server in found)


def broker_among(cut: tuple[Selector, ...], env: Env) -> str | None:
    """The first of the agent's brokers that the selectors match, or None. A name that cannot be resolved matches."""
    for broker in env.brokers:
        end = endpoints.parse(broker)
        for selector in cut:
            if selector.ports and end.ports and not any(_has(span, int(end.ports)) for span in selector.ports):
                continue
            try:
                networks = endpoints.networks_of(end)
            except InjectError:
                return broker
            if any(a.version == b.version and a.overlaps(b) for a in networks for b in selector.networks):
                return broker
    return None


def body(cut: tuple[Selector, ...]) -> str:
    """The table: what goes to the servers' ports and what comes from them, here and through here."""
    out = [match for selector in cut for match in selector.matches("daddr", either_end=False)]
    into = [match for selector in cut for match in selector.matches("saddr", either_end=False)]
    chains = {"input": (("in", into),), "output": (("out", out),), "forward": (("out", out), ("in", into))}
    lines = ["  counter dropped_in { }", "  counter dropped_out { }"]
    for hook, ways in chains.items():
        lines += [f"  chain {hook} {{", f"    type filter hook {hook} priority {nft.PRIORITY}; policy accept;"]
        lines += [f'    {match}counter name "dropped_{way}" drop' for way, matches in ways for match in matches]
        lines += ["  }"]
    return "\n".join(lines)


def knock(where: str) -> Said:
    """Tries to connect to the first of the servers that has a port."""
    began = time.monotonic()
    for end in endpoints.parse_list(where):
        if end.host is None or end.ports is None or "/" in end.host:
            continue
        try:
            socket.create_connection((end.host, int(end.ports.split("-")[0])), timeout=_KNOCK_S).close()
        except TimeoutError:
            return Said("hangs", time.monotonic() - began)
        except OSError as error:
            return Said(error.strerror or type(error).__name__, time.monotonic() - began)
        return Said("ok", time.monotonic() - began)
    return Said("nobody to ask: name a server with its port", 0.0)


def _shown(selector: Selector) -> str:
    host = str(
        selector.networks[0].network_address if selector.networks[0].num_addresses == 1 else selector.networks[0]
    )
    host = f"[{host}]" if ":" in host and selector.ports else host
    return f"{host}:{selector.ports[0]}" if selector.ports else host


def _has(span: str, port: int) -> bool:
    first, _, last = span.partition("-")
    return int(first) <= port <= int(last or first)
