"""The order in which a cluster's nodes are drawn: by cell, rack and name, as people count."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, TypeVar

_T = TypeVar("_T")
_DIGITS: Final = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Where:
    """What of a node's place the map needs. `rails` are its ports' rails by port name."""

    cell: str
    rack: str
    rails: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """The nodes `start` to `end` (exclusive) of a layout. `racks` as (name, start, end), empty if there is but one."""

    name: str
    rack: str | None
    start: int
    end: int
    racks: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """All nodes in their order. `version` rises with each change: numbers of nodes of another one mean nothing.

    `ports` says of nodes `start` to `end` (exclusive) on which of the `rails`, by their numbers, each has a port.
    """

    version: int = 0
    nodes: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    rails: tuple[str, ...] = ()
    ports: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    index: Mapping[str, int] = field(default_factory=dict)


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A key by which `c2` comes before `c10`."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in _DIGITS.split(name) if part)


def column(rail: str, cell: str) -> str:
    """The column of a rail: its name without that of its cell, so that `c0-r3` and `c1-r3` stand under one head."""
    rest = rail.removeprefix(cell)
    short = rest.lstrip("-_./")
    return short if short and short != rest else rail


def lay_out(places: Mapping[str, Where], version: int) -> Layout:
    """The layout of the nodes in `places`."""
    order = sorted(places, key=lambda name: (natural(places[name].cell), natural(places[name].rack), natural(name)))
    cells = []
    start = 0
    for name, members in groupby(order, key=lambda node: places[node].cell):
        racks = tuple(_runs((places[node].rack for node in members), start))
        end = racks[-1][2]
        only = racks[0][0] if len(racks) == 1 else ""
        cells.append(Cell(name, only or None, start, end, racks if len(racks) > 1 else ()))
        start = end
    rails = sorted({column(r, place.cell) for place in places.values() for r in place.rails.values()}, key=natural)
    at = {rail: number for number, rail in enumerate(rails)}
    ports = (tuple(sorted({at[column(r, places[n].cell)] for r in places[n].rails.values()})) for n in order)
    return Layout(
        version=version,
        nodes=tuple(order),
        cells=tuple(cells),
        rails=tuple(rails),
        ports=tuple((begin, end, those) for those, begin, end in _runs(ports, 0)),
        index={name: number for number, name in enumerate(order)},
    )


def _runs(names: Iterable[_T], start: int) -> Iterable[tuple[_T, int, int]]:
    for name, run in groupby(names):
        end = start + sum(1 for _ in run)
        yield name, start, end
        start = end
