"""What is near what: the ways in which two entities can be related, as one table, and the place of an entity."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Literal

#: A way of being related. The words of signatures: a fault reaches others *through* one of these.
Through = Literal["entity", "owner", "node", "job", "domain", "rail", "cell", "rack"]


@dataclass(frozen=True, slots=True)
class Relation:
    """One way of being related: how many hops it counts and what it is called in a sentence."""

    through: Through
    hops: int
    words: str


#: Nearest first. Hops order causes, they are no physical length: a fault acts on its own device, then on what
#: holds it, then on what shares a bus, then on what waits for it in a collective or over NVLink, then on what
#: shares a leaf switch, then on what shares power and cooling.
RELATIONS: Final[tuple[Relation, ...]] = (
    Relation("entity", 0, "the same entity"),
    Relation("owner", 1, "a device and the node that holds it"),
    Relation("node", 2, "on the same node"),
    Relation("job", 3, "in the same job"),  # a collective ends when its slowest rank does
    Relation("domain", 3, "in the same NVLink domain"),
    Relation("rail", 4, "on the same rail"),
    Relation("cell", 4, "in the same cell"),
    Relation("rack", 5, "in the same rack"),
)

EVERY: Final[frozenset[Through]] = frozenset(relation.through for relation in RELATIONS)

_NOTHING: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entity sits. What spans nodes (a job, a cell) is in several cells; an unknown place is empty."""

    entity: str
    node: str | None = None
    jobs: frozenset[str] = _NOTHING
    domains: frozenset[str] = _NOTHING
    rails: frozenset[str] = _NOTHING
    cells: frozenset[str] = _NOTHING
    racks: frozenset[str] = _NOTHING


def relation(one: Place, other: Place, through: Collection[Through] = EVERY) -> Relation | None:
    """The nearest relation between two places among those of `through`, None where they have none of them."""
    for candidate in RELATIONS:
        if candidate.through in through and _HOLDS[candidate.through](one, other):
            return candidate
    return None


def _same_node(one: Place, other: Place) -> bool:
    return one.node is not None and one.node == other.node


def _owner(one: Place, other: Place) -> bool:
    return _same_node(one, other) and (one.entity.startswith("node/") or other.entity.startswith("node/"))


_HOLDS: Final[dict[Through, Callable[[Place, Place], bool]]] = {
    "entity": lambda a, b: a.entity == b.entity,
    "owner": _owner,
    "node": _same_node,
    "job": lambda a, b: not a.jobs.isdisjoint(b.jobs),
    "domain": lambda a, b: not a.domains.isdisjoint(b.domains),
    "rail": lambda a, b: not a.rails.isdisjoint(b.rails),
    "cell": lambda a, b: not a.cells.isdisjoint(b.cells),
    "rack": lambda a, b: not a.racks.isdisjoint(b.racks),
}
