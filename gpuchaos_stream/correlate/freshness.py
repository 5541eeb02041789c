"""How old the telemetry of each node is. A node that was never heard is infinitely old: unknown is unsafe."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpuchaos_stream.events.observation import CellSummary

PREFIX: Final = "freshness/"


class Freshness:
    """When each node was last heard (Stateful, prefix `freshness/`, one value a cell).

    `newest` is the event time of the newest frame of all that was fed, not of what was loaded; -inf before one.
    """

    def __init__(self) -> None:
        self._cells: dict[str, dict[str, float]] = {}
        self._last: dict[str, float] = {}
        self._dirty: set[str] = set()
        self.newest = -math.inf

    def feed(self, summary: CellSummary) -> None:
        """Takes what a detect worker knows of a cell. The latest time of a node counts, in whatever order they come."""
        cell = self._cells.setdefault(summary.cell, {})
        for node, seen in summary.nodes.items():
            if seen.last > cell.get(node, -math.inf):
                cell[node] = seen.last
                self._last[node] = max(seen.last, self._last.get(node, -math.inf))
                self.newest = max(seen.last, self.newest)
                self._dirty.add(summary.cell)

    def age(self, node: str, now: float) -> float:
        """Seconds of event time since the node's last frame, never negative; infinite for an unknown node."""
        last = self._last.get(node)
        return math.inf if last is None else max(0.0, now - last)

    def stale(self, nodes: Iterable[str], now: float, limit: float) -> tuple[str, ...]:
        """Those of `nodes` that were last heard more than `limit` seconds ago, or never; sorted."""
        return tuple(sorted({node for node in nodes if self.age(node, now) > limit}))

    def forget(self, before: float) -> None:
        """Drops nodes last heard before `before`; from then on they are unknown."""
        for name, cell in list(self._cells.items()):
            gone = [node for node, last in cell.items() if last < before]
            for node in gone:
                del cell[node]
                if self._last.get(node, math.inf) < before:
                    del self._last[node]
            if gone:
                self._dirty.add(name)
            if not cell:
                del self._cells[name]

    def dirty(self) -> dict[str, bytes | None]:
        """Cells that changed since the last call."""
        changed = {
            PREFIX + cell: msgspec.json.encode(self._cells[cell]) if cell in self._cells else None
            for cell in self._dirty
        }
        self._dirty.clear()
        return changed

    def load(self, items: Mapping[str, bytes]) -> None:
        """Replaces everything by the saved cells."""
        self._cells, self._last = {}, {}
        self.newest = -math.inf
        self._dirty.clear()
        for key, value in items.items():
            if key.startswith(PREFIX):
                cell = msgspec.json.decode(value, type=dict[str, float])
                self._cells[key.removeprefix(PREFIX)] = cell
                for node, last in cell.items():
                    self._last[node] = max(last, self._last.get(node, -math.inf))
