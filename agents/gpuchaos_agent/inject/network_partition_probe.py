"""Knocking at the peers of a partition: traffic may not flow by itself just when it is to be seen dropped."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject.endpoints import Address, Network, Selector
from gpuchaos_agent.kernelfs import files

#: Nobody serves it (discard, RFC 863): asked where no port is given. An answer is a reset or an ICMP error.
_NO_PORT: Final = 9
#: Peers that are knocked at; one that is cut is enough.
_MOST: Final = 16
#: Connections begun at one door, at most: more would be noticed by the service behind it.
_MOST_CONNECTIONS: Final = 128
#: TCP_ESTABLISHED of net/tcp_states.h, in the column `st` of /proc/net/tcp.
_ESTABLISHED: Final = "01"
#: RTF_GATEWAY of linux/route.h.
_GATEWAY: Final = 0x2

Door = tuple[str, str, int]


def doors(selectors: Iterable[Selector], own: frozenset[Address], procfs: Path) -> tuple[Door, ...]:
    """`(protocol, address, port)` to knock at, so that a packet that the selectors match has to leave this node.

    Of a network, and of no address at all, those are tried that this node has to do with: the ends of its
    connections, its neighbours, its gateways; then the first addresses of the network, or of those it is part of.
    """
    known = tuple(dict.fromkeys((*_connected(procfs), *_neighbours(procfs), *_gateways(procfs), *_on_link(procfs))))
    found = dict[Door, None]()
    for selector in selectors:
        port = int(selector.ports[0].split("-")[0]) if selector.ports else _NO_PORT
        for address in _of(selector.networks, known, own):
            for protocol in (selector.protocol,) if selector.protocol else ("tcp", "udp"):
                found[protocol, str(address), port] = None
    return tuple(found)[: 2 * _MOST]


def knock(door: Door, times: int, interface: str | None) -> Iterator[socket.socket]:
    """Sends to the door without waiting; the sockets that have to stay open meanwhile. Answers come or do not."""
    protocol, address, port = door
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    for _ in range(1 if protocol == "udp" else min(times, _MOST_CONNECTIONS)):
        # No route, a packet that may not leave, a refusal: all of them are for the counters to tell.
        with contextlib.suppress(OSError):
            knocking = socket.socket(family, kind)
            yield knocking
            knocking.setblocking(False)
            if interface:
                knocking.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            if protocol == "tcp":
                knocking.connect((address, port))
                continue
            for _ in range(times):
                with contextlib.suppress(OSError):
                    knocking.sendto(b"", (address, port))


def ways_of(pid: int | str, procfs: Path) -> tuple[tuple[Address, int], ...]:
    """The remote ends of the established TCP connections of a process, by its sockets' inodes."""
    inodes = set[str]()
    with contextlib.suppress(OSError):
        for descriptor in (procfs / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                kind, _, inode = str(descriptor.readlink()).partition(":")
                if kind == "socket":
                    inodes.add(inode.strip("[]"))
    return tuple((end, port) for end, port, inode in _connections(procfs) if inode in inodes)


def _of(networks: tuple[Network, ...], known: tuple[Address, ...], own: frozenset[Address]) -> list[Address]:
    if not networks:
        return [address for address in known if address not in own][:_MOST]
    found: list[Address] = []
    for network in networks:
        inside: list[Address] = [address for address in known if address in network]
        first = 1 if network.num_addresses > 2 else 0  # the network's own address is nobody's
        inside += [network[offset] for offset in range(first, min(network.num_addresses, 4))]
        found += [address for address in inside if address not in own][:4]
    return found[:_MOST]


def _connected(procfs: Path) -> Iterator[Address]:
    return (end for end, _, _ in _connections(procfs) if not end.is_loopback)


def _connections(procfs: Path) -> Iterator[tuple[Address, int, str]]:
    """Remote address, remote port, inode. Addresses are words in the byte order of the host (proc_net_tcp)."""
    for name in ("tcp", "tcp6"):
        for line in (files.text(procfs / "net" / name) or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _ESTABLISHED:
                end, _, port = fields[2].partition(":")
                yield _swapped(end), int(port, 16), fields[9]


def _swapped(digits: str) -> Address:
    words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _neighbours(procfs: Path) -> Iterator[Address]:
    for line in (files.text(procfs / "net/arp") or "").splitlines()[1:]:
        with contextlib.suppress(ValueError, IndexError):
            yield ipaddress.ip_address(line.split()[0])


def _on_link(procfs: Path) -> Iterator[Address]:
    """Two addresses of each network that needs no gateway; there need be nobody there to see a packet leave."""
    for line in (files.text(procfs / "net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and not int(fields[3], 16) & _GATEWAY:
            network = ipaddress.ip_network(f"{_swapped(fields[1])}/{_swapped(fields[7])}", strict=False)
            yield from (network[offset] for offset in (1, 2) if network.num_addresses > offset + 1)


def _gateways(procfs: Path) -> Iterator[Address]:
    for line in (files.text(procfs / "net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and int(fields[3], 16) & _GATEWAY:
            yield _swapped(fields[2])
    for line in (files.text(procfs / "net/ipv6_route") or "").splitlines():
        fields = line.split()
        if len(fields) > 8 and int(fields[8], 16) & _GATEWAY:
            yield ipaddress.IPv6Address(int(fields[4], 16))
