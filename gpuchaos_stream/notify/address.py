"""Which addresses may be connected to: the name is looked up once, and what was judged is what is connected to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: IPv6 that carries an IPv4 address in its last four bytes (RFC 6052).
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class RefusedAddressError(ValueError):
    """A receiver's name leads to where nothing may be sent."""


def refusal(address: Address, *, allow_private: bool) -> str | None:
    """Why nothing may be sent to `address`, or None.

    Link-local addresses (a cloud's metadata service), multicast and "any" are refused whatever is allowed.
    """
    real = _inner(address)
    if real.is_link_local or real.is_multicast or real.is_unspecified:
        return f"{real} is link-local, multicast or no host"
    if not real.is_global and not allow_private:
        return f"{real} is a private address; set allow_private: true if that is meant"
    return None


async def resolve(host: str, port: int, *, allow_private: bool) -> str:
    """The one address to connect to.

    Raises:
        RefusedAddressError: one of the name's addresses is refused: a name that leads to both is not trusted.
        OSError: it cannot be looked up.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(each[4][0]).split("%", 1)[0]) for each in found]
    for address in addresses:
        reason = refusal(address, allow_private=allow_private)
        if reason:
            raise RefusedAddressError(reason)
    return str(addresses[0])


def _inner(address: Address) -> Address:
    """The IPv4 address within an IPv6 one that only wraps it."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return ipaddress.IPv4Address(address.packed[-4:])
    return address
