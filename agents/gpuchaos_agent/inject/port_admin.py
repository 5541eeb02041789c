"""A network interface taken down and brought back with what the kernel forgets when it goes down.

Admin-down drops every route through the interface (of all tables), its static neighbours and its IPv6 addresses; up
brings back only the connected IPv4 routes and the link-local address. Rails of RoCE live by their own tables and
global addresses, so all of that is written down first, as the commands that put it back. Addresses come first, while
the interface is still down, and in the order of the port's GID table: each gets the first free place in it, and
collective libraries name a GID by its place.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent.inject import tools
from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.kernelfs import netdevs, peek

#: sockios.h and if.h.
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
#: Words of `ip route show` that say how it stands and cannot be given.
_STANDING: Final = frozenset({"linkdown", "dead", "offload", "trap", "rt_offload", "rt_trap", "pervasive"})
#: In a command, where the interface's present name goes: it may have been renamed.
NAME: Final = "{}"
#: The place of an address that has none in the GID table.
_LAST: Final = 1 << 16

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interface:
    """One interface whose way is cut, and the `ip` commands that put back what it forgets.

    `addresses` bear the place of the address in the GID table; `up` is whether it was.
    """

    name: str
    index: int
    up: bool = True
    addresses: tuple[tuple[int, Command], ...] = ()
    commands: tuple[Command, ...] = ()


def set_up(name: str, *, up: bool) -> None:
    """As `ip link set NAME up|down`, and nothing where it is so already.

    Raises:
        InjectError: it is gone, or this agent may not.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            wanted = name.encode()
            said = fcntl.ioctl(asking, _SIOCGIFFLAGS, struct.pack("16sH14x", wanted, 0))
            flags = struct.unpack_from("16sH", said)[1]
            changed = flags | _IFF_UP if up else flags & ~_IFF_UP
            if changed != flags:
                fcntl.ioctl(asking, _SIOCSIFFLAGS, struct.pack("16sH14x", wanted, changed))
    except OSError as error:
        raise InjectError(f"interface {name} cannot be set {'up' if up else 'down'}: {error.strerror}") from error


def snapshot(sysfs: Path, name: str, gids: Mapping[tuple[str, str | None], int] | None = None) -> tuple[Interface, ...]:
    """The interface and those that stand on it (VLANs, macvlans), the lowest first.

    `gids` is the place of an address and its interface in the port's GID table.

    Raises:
        InjectError: it has something that could not be put back.
    """
    return tuple(
        Interface(
            one,
            peek.counter(f"{sysfs}/{netdevs.NET}/{one}/ifindex") or 0,
            up=netdevs.cable(sysfs, one).up is not False,
            addresses=tuple(((gids or {}).get((address, one), _LAST), command) for address, command in _addresses(one)),
            commands=(*_routes(one), *_neighbours(one)),
        )
        for one in _with_uppers(sysfs, name)
    )


def to_text(interfaces: Iterable[Interface]) -> str:
    """For the journal."""
    return json.dumps([[one.name, one.index, one.up, one.addresses, one.commands] for one in interfaces])


def from_text(text: str) -> tuple[Interface, ...]:
    """What `to_text` wrote."""
    return tuple(
        Interface(
            name,
            index,
            up,
            tuple((place, tuple(command)) for place, command in addresses),
            tuple(tuple(command) for command in commands),
        )
        for name, index, up, addresses, commands in json.loads(text or "[]")
    )


def commands(name: str, interfaces: Sequence[Interface]) -> tuple[Command, ...]:
    """What brings `name` up with all that it had, as a person would type it."""
    named = _named(name, interfaces)
    return (
        *(
            command
            for _, command in sorted(_filled(present, place) for present, one in named for place in one.addresses)
        ),
        ("ip", "link", "set", "dev", name, "up"),
        *(_fill(present, command) for present, one in named for command in one.commands),
    )


def bring_up(name: str, interfaces: Sequence[Interface]) -> None:
    """Sets `name` up and puts back what is missing of it and of what stands on it. Changes nothing that is there.

    Raises:
        InjectError: some of it could not be put back; the rest was.
    """
    named = _named(name, interfaces)
    absent = [_filled(present, place) for present, one in named for place in _missing_addresses(present, one)]
    problems = [problem for _, command in sorted(absent) if (problem := _try(command))]
    set_up(name, up=True)
    for present, one in named[1:]:
        set_up(present, up=one.up)  # a VLAN comes up with what it stands on, also where it was down
    for present, one in named:
        problems += [problem for command in missing(present, one) if (problem := _try(command))]
    if problems:
        raise InjectError("; ".join(problems))


def missing(name: str, one: Interface) -> tuple[Command, ...]:
    """The commands of an interface whose effect is not there."""
    if not one.commands and not one.addresses:
        return ()
    there = {*_routes(name), *_neighbours(name)}
    addresses = (command for _, command in _missing_addresses(name, one))
    routes = (command for command in one.commands if command not in there)
    return tuple(_fill(name, command) for command in (*addresses, *routes))


def carries_default(names: Iterable[str]) -> str | None:
    """The interface among `names` that a default route leads through, or None."""
    for family in ("-4", "-6"):
        for route in _json("ip", "-j", family, "route", "show", "default"):
            used = {route.get("dev"), *(hop.get("dev") for hop in route.get("nexthops", ()))}
            if found := used & set(names):
                return str(min(found))
    return None


def way_to(address: str) -> str | None:
    """The interface that leads to a host, None where the kernel knows none.

    Raises:
        InjectError: the name cannot be resolved.
    """
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as error:
        raise InjectError(f"{address} cannot be resolved") from error
    for host in sorted(found):
        with_zone = ipaddress.ip_address(host.partition("%")[0])
        try:
            routes = _json("ip", "-j", "route", "get", str(with_zone))
        except InjectError:
            continue
        if routes:
            return str(routes[0].get("dev"))
    return None


def _with_uppers(sysfs: Path, name: str) -> list[str]:
    """A bond or a bridge above it stays up on its own, and a member of one has no addresses that count."""
    found = [name]
    for one in found:
        root = f"{sysfs}/{netdevs.NET}/{one}"
        uppers = (link.removeprefix("upper_") for link in peek.names(root) if link.startswith("upper_"))
        found += [
            upper
            for upper in uppers
            if upper not in found
            and not any(peek.names(f"{sysfs}/{netdevs.NET}/{upper}/{kind}") for kind in ("bonding", "bridge"))
        ]
    return found


def _named(name: str, interfaces: Sequence[Interface]) -> list[tuple[str, Interface]]:
    """Each with its present name: the first may have been renamed."""
    return [(one.name if at else name, one) for at, one in enumerate(interfaces)]


def _missing_addresses(name: str, one: Interface) -> list[tuple[int, Command]]:
    there = {command for _, command in _addresses(name)} if one.addresses else set()
    return [(place, command) for place, command in one.addresses if command not in there]


def _filled(name: str, place: tuple[int, Command]) -> tuple[int, Command]:
    return place[0], _fill(name, place[1])


def _fill(name: str, command: Command) -> Command:
    return tuple(word.replace(NAME, name) for word in command)


def _try(command: Command) -> str | None:
    try:
        tools.run(command)
    except InjectError as error:
        return f"{' '.join(command)}: {error}"
    return None


def _addresses(name: str) -> list[tuple[str, Command]]:
    """IPv6 addresses and the commands that make them; the link-local one too, for its place in the GID table."""
    found: list[tuple[str, Command]] = []
    for link in _json("ip", "-j", "-6", "addr", "show", "dev", name, "permanent"):
        for one in link.get("addr_info", ()):
            flags = [flag for flag in ("nodad", "noprefixroute") if one.get(flag)]
            address = f"{one['local']}/{one['prefixlen']}"
            found.append((one["local"], ("ip", "-6", "addr", "replace", address, "dev", NAME, *flags)))
    return found


def _routes(name: str) -> list[Command]:
    found: list[Command] = []
    for family in ("-4", "-6"):
        for line in tools.run(["ip", family, "route", "show", "table", "all", "dev", name]).splitlines():
            words = [word for word in line.split() if word not in _STANDING]
            text = " ".join(words)
            # The kernel's own come back with the link, a router's with its next advertisement.
            if not words or "proto kernel" in text or "proto ra" in text:
                continue
            if "nhid" in words:
                raise InjectError(f"route {text!r} of {name} is by a nexthop object, which goes with the interface")
            if "expires" in words:
                at = words.index("expires")
                del words[at : at + 2]
            found.append(("ip", family, "route", "replace", *words, "dev", NAME))
    # Those that others are reached by come first: with a gateway, the route to it must be there.
    return sorted(found, key=lambda command: "via" in command)


def _neighbours(name: str) -> list[Command]:
    return [
        ("ip", "neigh", "replace", one["dst"], "lladdr", one["lladdr"], "dev", NAME, "nud", "permanent")
        for family in ("-4", "-6")
        for one in _json("ip", "-j", family, "neigh", "show", "dev", name, "nud", "permanent")
        if "lladdr" in one
    ]


def _json(*argv: str) -> list[dict[str, Any]]:
    said = tools.run(argv)
    try:
        found = json.loads(said or "[]")
    except ValueError as error:
        raise InjectError(f"{' '.join(argv)} said no JSON") from error
    return [one for one in found if isinstance(one, dict)]
