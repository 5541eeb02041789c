"""The ways that a partition leaves open: the agent's to its brokers, and the node that the control plane runs on."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject import endpoints
from gpuchaos_agent.inject.base import Env, InjectError
from gpuchaos_agent.inject.endpoints import Lookup, Network, Selector
from gpuchaos_agent.inject.network_partition_probe import ways_of
from gpuchaos_agent.kernelfs import files

#: Where the node's resolver says whom it asks; the second is behind systemd's stub.
RESOLVERS: Final = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))


def agents_own(env: Env, lookup: Lookup, resolvers: Iterable[Path] = RESOLVERS) -> tuple[Selector, ...]:
    """What has to stay open for the agent: its brokers, those they led it to, and its name servers if it needs them.

    Raises:
        InjectError: a broker's name has no address, so that its way cannot be kept.
    """
    brokers = _brokers(env, lookup)
    ports = {selector.ports for selector in brokers}
    # A broker leads its clients to the others of its cluster: there the agent is connected already.
    led_to = (Selector((_single(end),), (str(port),), "tcp") for end, port in ways_of(os.getpid(), env.procfs))
    found = [*brokers, *(way for way in led_to if way.ports in ports)]
    if any(_is_name(broker) for broker in env.brokers):
        servers = tuple(dict.fromkeys(server for path in resolvers for server in _name_servers(path)))
        found += [Selector(servers, ("53",), protocol) for protocol in ("udp", "tcp") if servers]
    return tuple(dict.fromkeys(found))


def control_plane_here(env: Env, lookup: Lookup) -> str | None:
    """Why this node is the control plane's own, or None: a broker has an address of it, or a worker runs on it."""
    own = endpoints.local_addresses(env.procfs)
    for broker in env.brokers:
        for network in endpoints.networks_of(endpoints.parse(broker), lookup):
            address = network.network_address
            if address in own or address.is_loopback:
                return f"the broker {broker} is on this node; force: true cuts the control plane's own node"
    for process in env.procfs.glob("[0-9]*"):
        words = (files.text(process / "cmdline") or "").split("\0")
        if any(Path(word).name == "gpuchaos" and words[at + 1 : at + 2] == ["worker"] for at, word in enumerate(words)):
            return f"gpuchaos worker runs on this node (process {process.name}); force: true cuts it off all the same"
    return None


def is_kept(selector: Selector, kept: Iterable[Selector]) -> bool:
    """Whether all that the selector means stays open, so that there is nothing to cut."""
    open_ways = [way for way in kept if way.ports == selector.ports]
    return bool(selector.networks) and all(
        any(network in way.networks for way in open_ways) for network in selector.networks
    )


def _brokers(env: Env, lookup: Lookup) -> list[Selector]:
    found = []
    for broker in env.brokers:
        try:
            endpoint = endpoints.parse(broker)
        except ValueError as error:
            raise InjectError(f"the way to the agent's own brokers cannot be told: {error}") from error
        ports = (endpoint.ports,) if endpoint.ports else ()
        found.append(Selector(endpoints.networks_of(endpoint, lookup), ports, "tcp"))
    return found


def _is_name(broker: str) -> bool:
    host = endpoints.parse(broker).host or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _name_servers(path: Path) -> list[Network]:
    found = []
    for line in (files.text(path) or "").splitlines():
        words = line.split()
        if words[:1] == ["nameserver"] and len(words) > 1:
            try:
                found.append(ipaddress.ip_network(words[1].partition("%")[0]))
            except ValueError:
                continue
    return [network for network in found if not network.is_loopback]


def _single(address: endpoints.Address) -> Network:
    return ipaddress.ip_network(address)
