"""An index of places: finds what could be related without looking at everything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from gpuchaos_stream.topology.place import EVERY, Place, Through


class Nearby:
    """Ids by what their places share. Two that share nothing of `through` have no relation through it."""

    def __init__(self) -> None:
        self._at: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._places: dict[str, tuple[Place, Collection[Through]]] = {}

    def put(self, each: str, place: Place, through: Collection[Through] = EVERY) -> bool:
        """Puts `each` at `place`, to be found through `through`. Returns whether it was elsewhere before."""
        if self._places.get(each) == (place, through):
            return False
        self.drop(each)
        self._places[each] = (place, through)
        for key in _keys(place, through):
            self._at[key].add(each)
        return True

    def drop(self, each: str) -> None:
        """Takes `each` out."""
        known = self._places.pop(each, None)
        for key in _keys(*known) if known else ():
            self._at[key].discard(each)
            if not self._at[key]:
                del self._at[key]

    def find(self, place: Place, through: Collection[Through] = EVERY) -> set[str]:
        """All that share something with `place`, by what both are to be found through."""
        found: set[str] = set()
        for key in _keys(place, through):
            found |= self._at.get(key, frozenset())
        return found


def _keys(place: Place, through: Collection[Through]) -> Iterator[tuple[str, str]]:
    if "entity" in through:
        yield "entity", place.entity
    if place.node is not None and ("node" in through or "owner" in through):
        yield "node", place.node
    for level, names in (
        ("job", place.jobs),
        ("domain", place.domains),
        ("rail", place.rails),
        ("cell", place.cells),
        ("rack", place.racks),
    ):
        if level in through:
            for name in names:
                yield level, name
