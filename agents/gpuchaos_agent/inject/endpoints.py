"""Peers as people write them (`10.0.0.7`, `db.local:5432`, `[fd00::1]:2049`, `tcp/5432`), and as nftables matches them.

Names are resolved once, when the fault is planned: the addresses are in the journal, so that the undo and the
evidence mean what was cut, not what the name says by then.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.inject.nft import one_of
from gpuchaos_agent.kernelfs import files

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
#: A name → its addresses; raises OSError where it has none.
Lookup = Callable[[str], Iterable[str]]

_PORTS: Final = re.compile(r"^(\d{1,5})(?:-(\d{1,5}))?$")
_NAME: Final = re.compile(
    r"^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$"
)
_PROTOCOLS: Final = ("tcp", "udp")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of traffic. `host` is an address, a network or a name, None for any; `ports` is `5432` or `8000-8100`."""

    host: str | None = None
    ports: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Selector:
    """What an endpoint means in packets. No networks: any address. No ports, no protocol: all there is."""

    networks: tuple[Network, ...] = ()
    ports: tuple[str, ...] = ()
    protocol: str | None = None

    def matches(self, side: str, *, either_end: bool = True) -> tuple[str, ...]:
        """What nftables matches, one expression a rule, for packets whose `side` (`saddr`, `daddr`) is the endpoint.

        A port counts at the endpoint's end alone, or with `either_end` at whichever end it is: a service of theirs
        that we use and one of ours that they use.
        """
        addresses = [""]
        if self.networks:
            four = [str(_plain(n)) for n in self.networks if n.version == 4]
            six = [str(_plain(n)) for n in self.networks if n.version == 6]
            addresses = [f"{family} {side} {one_of(found)} " for family, found in (("ip", four), ("ip6", six)) if found]
        transports = [""]
        if self.ports:
            spoken = f"meta l4proto {one_of([self.protocol] if self.protocol else _PROTOCOLS)}"
            ends = ("dport", "sport") if either_end else ("sport" if side == "saddr" else "dport",)
            transports = [f"{spoken} th {end} {one_of(self.ports)} " for end in ends]
        elif self.protocol:
            transports = [f"meta l4proto {self.protocol} "]
        return tuple(f"{address}{transport}" for address in addresses for transport in transports)


def parse(text: str) -> Endpoint:
    """One endpoint.

    Raises:
        ValueError: it is none; the text says what was expected.
    """
    text = text.strip()
    protocol, slash, rest = text.partition("/")
    if slash and protocol in _PROTOCOLS:
        return Endpoint(ports=ports(rest), protocol=protocol)
    if text.startswith("["):
        host, closed, after = text[1:].partition("]")
        if not closed or (after and not after.startswith(":")):
            raise ValueError(f"{text!r}: an IPv6 address with a port is written [fd00::1]:5432")
        return Endpoint(_host(host), ports(after[1:]) if after else None)
    if text.count(":") == 1:
        host, _, after = text.partition(":")
        return Endpoint(_host(host), ports(after))
    return Endpoint(_host(text))


def shown(end: Endpoint) -> str:
    """The endpoint as `parse` takes it."""
    if end.host is None:
        return f"{end.protocol}/{end.ports}"
    if end.ports is None:
        return end.host
    return f"[{end.host}]:{end.ports}" if ":" in end.host else f"{end.host}:{end.ports}"


def parse_list(text: str) -> tuple[Endpoint, ...]:
    """A comma list of endpoints; empty for an empty text.

    Raises:
        ValueError: as `parse`.
    """
    return tuple(parse(part) for part in text.split(",") if part.strip())


def ports(text: str) -> str:
    """`5432`, or a range `8000-8100`, in its plain form.

    Raises:
        ValueError: it is neither.
    """
    match = _PORTS.match(text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"{text!r} is no port (1 to 65535) and no range of ports like 8000-8100")
    return str(first) if first == last else f"{first}-{last}"


def lookup(name: str) -> tuple[str, ...]:
    """The addresses of a name, by the node's own resolver."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def networks_of(endpoint: Endpoint, resolver: Lookup = lookup) -> tuple[Network, ...]:
    """The networks of an endpoint, a single address being one of its own; none for any.

    Raises:
        InjectError: a name that has no address.
    """
    if endpoint.host is None:
        return ()
    try:
        return (ipaddress.ip_network(endpoint.host, strict=False),)
    except ValueError:
        pass
    try:
        return merged(ipaddress.ip_network(address) for address in resolver(endpoint.host))
    except (OSError, UnicodeError) as error:
        raise InjectError(f"{endpoint.host} cannot be resolved: {error}") from error


def merged(networks: Iterable[Network]) -> tuple[Network, ...]:
    """The same addresses without overlaps, which nftables refuses in a set."""
    listed = list(networks)
    four = ipaddress.collapse_addresses(n for n in listed if isinstance(n, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(n for n in listed if isinstance(n, ipaddress.IPv6Network))
    return (*four, *six)


def no_peer(network: Network) -> str | None:
    """Why nobody can be met at an address or in a network, or None."""
    first = network.network_address
    mapped = first.ipv4_mapped if isinstance(first, ipaddress.IPv6Address) else None
    if mapped is not None:
        return f"{_plain(network)} is IPv4 as a program shows it; on the wire it is {mapped}: write that"
    if network.is_multicast:
        return f"{_plain(network)} is a group (multicast), no peer: name its members"
    if first.is_unspecified and network.prefixlen >= 8:  # 0.0.0.0/8; everybody is /0
        return f"{_plain(network)} is nobody's address; all means everybody"
    if first == ipaddress.IPv4Address("255.255.255.255"):
        return f"{_plain(network)} is broadcast, no peer: name those who hear it"
    return None


def checked(ends: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """The endpoints, none of which is an address at which nobody can be met.

    Raises:
        ValueError: one is; the text says what to write.
    """
    found = tuple(ends)
    for end in found:
        try:
            network = ipaddress.ip_network(end.host or "", strict=False)
        except ValueError:
            continue
        reason = no_peer(network)
        if reason is not None:
            raise ValueError(reason)
    return found


def local_addresses(procfs: Path) -> frozenset[Address]:
    """The node's own addresses, loopback's as well, from `net/fib_trie` and `net/if_inet6`.

    A local address is the leaf above a `/32 host LOCAL` line; IPv6 addresses are 32 hexadecimal digits.
    """
    found = set[Address]()
    leaf = ""
    for line in (files.text(procfs / "net/fib_trie") or "").splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words[:3] == ["/32", "host", "LOCAL"]:
            found.add(ipaddress.ip_address(leaf))
    for line in (files.text(procfs / "net/if_inet6") or "").splitlines():
        found.add(ipaddress.IPv6Address(int(line.split()[0], 16)))
    return frozenset(found)


def _host(text: str) -> str:
    text = text.strip()
    try:
        return str(_plain(ipaddress.ip_network(text, strict=False)))
    except ValueError:
        pass
    # What is made of digits and dots alone was meant to be an address: a name's last label has a letter.
    if not _NAME.match(text) or re.fullmatch(r"[0-9./]*", text):
        raise ValueError(
            f"{text!r} is no address, no network and no name; write 10.0.0.7, 10.0.0.0/24, db.local:5432, "
            "[fd00::1]:2049 or tcp/5432"
        )
    return text


def _plain(network: Network) -> Address | Network:
    return network.network_address if network.num_addresses == 1 else network
