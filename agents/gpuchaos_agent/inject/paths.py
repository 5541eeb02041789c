"""What two faults take hold of in common: `path:` resources are traffic, and overlap as networks do.

Written as people write peers: `path:all`, `path:10.0.0.7`, `path:10.0.0.0/24`, `path:db.local:5432`, `path:tcp/5432`.
All other resources are the same or are not.
"""

from __future__ import annotations

from typing import Final

from gpuchaos_agent.inject import endpoints
from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.inject.endpoints import Endpoint, Lookup, Network

_PATH: Final = "path:"
_ALL: Final = "all"


def common(wanted: frozenset[str], held: frozenset[str], resolver: Lookup = endpoints.lookup) -> frozenset[str]:
    """Those of `wanted` that `held` has as well, wholly or in part."""
    paths = {other for other in held if other.startswith(_PATH)}
    return (wanted & held) | {
        one for one in wanted if one.startswith(_PATH) and any(_overlap(one, other, resolver) for other in paths)
    }


def _overlap(one: str, other: str, resolver: Lookup) -> bool:
    """Names are resolved now; of one that has no address nobody can say that it is another path."""
    try:
        first, second = _end(one), _end(other)
        if not _meet(first, second):
            return False
        return _share(_networks(first, resolver), _networks(second, resolver))
    except (InjectError, ValueError):
        return True


def _end(resource: str) -> Endpoint:
    text = resource.removeprefix(_PATH)
    return Endpoint() if text == _ALL else endpoints.parse(text)


def _meet(one: Endpoint, other: Endpoint) -> bool:
    if one.protocol and other.protocol and one.protocol != other.protocol:
        return False
    if one.ports is None or other.ports is None:
        return True
    (first, last), (begin, end) = _span(one.ports), _span(other.ports)
    return first <= end and begin <= last


def _span(ports: str) -> tuple[int, int]:
    first, _, last = ports.partition("-")
    return int(first), int(last or first)


def _networks(end: Endpoint, resolver: Lookup) -> tuple[Network, ...] | None:
    return None if end.host is None else endpoints.networks_of(end, resolver)


def _share(one: tuple[Network, ...] | None, other: tuple[Network, ...] | None) -> bool:
    """Everybody is everybody else: what a node says to itself is in no partition."""
    if one is None or other is None:
        return any(not network.is_loopback for network in one or other or ()) or one is other
    return any(a.version == b.version and a.overlaps(b) for a in one for b in other)
