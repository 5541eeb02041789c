"""Which frames have come and which ticks of a cell may be judged: lateness, order, repeats, silence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from gpuchaos_stream.events.codec import PackedFrame

if TYPE_CHECKING:
    from gpuchaos_stream.detect.config import DetectConfig
    from gpuchaos_stream.detect.layout import Layout
    from gpuchaos_stream.detect.peers import Group, GroupKey
    from gpuchaos_stream.detect.table import Rows, Table


@dataclass(slots=True, eq=False)
class Node:
    """One node of a cell. `arrived` is the caller's time of its last accepted frame, `last` its event time."""

    name: str
    index: int
    arrived: float
    layout: Layout | None = None
    layout_id: str = ""
    size: int = -1
    table: Table | None = None
    row: int = -1
    last: float = 0.0
    stale: bool = False
    missing: set[str] = field(default_factory=set)


class Seen(msgspec.Struct, frozen=True, gc=False):
    """`NodeSeen` as it is kept: one is made for each frame."""

    last: float
    clock_offset_s: float | None = None
    dropped: int = 0
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Ranks:
    """Processes of a cell's jobs in one table: row, number of the job in `Cell.jobs`, and where each metric of
    the job summary lies (-1: not reported, of which there are some where `gaps`). `names` are their nodes and pids.
    """

    names: list[tuple[str, str]]
    table: Table
    rows: Rows
    owner: Rows
    flat: Rows
    gaps: bool

    @classmethod
    def of(cls, names: list[tuple[str, str]], table: Table, rows: Rows, owner: Rows, flat: Rows) -> Ranks:
        """The ranks, looked through for gaps."""
        return cls(names, table, rows, owner, flat, bool((flat < 0).any()))


#: A frame that waits for its tick to be judged, and its event time.
Entry = tuple["Node", float, PackedFrame]
#: The frames of one tick that is not judged yet, by `Node.index`.
Pending = dict[int, Entry]


@dataclass(slots=True, eq=False)
class Cell:
    """One cell: its nodes, its open ticks, its peer groups.

    `jobs` are the groups of processes of each job; `processes` are `CellSummary.processes`, encoded; `order` are the
    nodes with a row, by name; `places` where each stands: (table, positions in `order`, rows).
    """

    cluster: str
    name: str
    nodes: dict[str, Node] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)
    judged: int = -1
    first: int = -1
    settled: int = 0
    live: int = 0
    fed: float = 0.0
    made: int = 0
    groups: dict[GroupKey, Group] = field(default_factory=dict)
    regroup: bool = False
    refresh_at: int = 0
    young_until: int = 0
    silent: bool = False
    returned: float = 0.0
    jobs: dict[str, list[Group]] = field(default_factory=dict)
    ranks: list[Ranks] = field(default_factory=list)
    processes: msgspec.Raw = field(default_factory=lambda: msgspec.Raw(b"{}"))
    order: list[Node] = field(default_factory=list)
    places: list[tuple[Table, Rows, Rows]] = field(default_factory=list)
    seen: dict[str, Seen] = field(default_factory=dict)
    left: list[tuple[int, Table, int]] = field(default_factory=list)

    def node(self, name: str, now: float) -> Node:
        """The node of that name, made when it is new."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = Node(name, self.made, now)
            self.made += 1
            self.live += 1
            self.settled = 0
        return node

    def clock(self) -> float:
        """Event time of this cell: the median of its live nodes' last frames, so that no one node moves it."""
        times = sorted(node.last for node in self.nodes.values() if not node.stale)
        return times[len(times) // 2] if times else -math.inf

    def ready(self, now: float, config: DetectConfig) -> list[int]:
        """The open ticks for which nothing more is awaited, in order, up to the first for which something is.

        Nothing is, when every live node reported the tick (once the set of nodes is settled), or the cell's clock
        is `lateness` past its end, or nothing at all came for so long.
        """
        found: list[int] = []
        clock = math.inf if now - self.fed > 1.0 + config.lateness else None
        for tick in sorted(self.pending):
            if self.settled + len(found) < config.settle or len(self.pending[tick]) < self.live:
                clock = self.clock() if clock is None else clock
                if clock < tick + 1 + config.lateness:
                    break
            found.append(tick)
        return found


def replace(pending: Pending, node: Node, time: float, frame: PackedFrame) -> bool:
    """Takes a node's second frame of a tick, if it is the later one; False for a repeat."""
    _, known, old = pending[node.index]
    if (time, frame.seq) <= (known, old.seq):
        return False
    pending[node.index] = (node, time, frame)
    return True
