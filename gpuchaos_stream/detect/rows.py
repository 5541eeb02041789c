"""Which row belongs to whom: nodes come, change their layout, and leave; peer groups follow."""

from __future__ import annotations

import numpy as np

from gpuchaos_stream.detect.config import HARDWARE, DetectConfig
from gpuchaos_stream.detect.layout import Block, Layout
from gpuchaos_stream.detect.lifecycle import Lifecycle
from gpuchaos_stream.detect.peers import Group, GroupKey, Piece, Rules
from gpuchaos_stream.detect.summary import processes_of, ranks_of
from gpuchaos_stream.detect.table import Table
from gpuchaos_stream.detect.verdicts import group_key
from gpuchaos_stream.detect.window import Cell, Node
from gpuchaos_stream.events.base import Severity

#: Rows of one table whose devices of one group stand alike: (table id, devices, block) → them.
_Places = dict[tuple[int, tuple[int, ...], int], tuple[Table, Block, list[int]]]

MISSING = "device_missing"
#: Ticks for which a row that was left is not given to another node: frames under way may still name it.
_REST = 8


class Rows:
    """Tables by shape, and the pairs (metric of a peer group) by the number that tables carry."""

    def __init__(self, config: DetectConfig, lifecycle: Lifecycle) -> None:
        self._config = config
        self._life = lifecycle
        self._tables: dict[str, Table] = {}
        self._pairs: dict[int, tuple[Group, int]] = {}
        self._next_pair = 0

    def pair(self, number: int) -> tuple[Group, int] | None:
        """Group and metric index of a pair; None once it is gone."""
        return self._pairs.get(number)

    def place(self, cell: Cell, node: Node, layout: Layout, tick: int, time: float) -> None:
        """Gives `node` a row for `layout`, with the past of the devices that stayed as they were."""
        table = self._tables.get(layout.shape)
        if table is None:
            table = self._tables[layout.shape] = Table(layout, self._config)
        row = table.add(node.name, tick)
        if node.layout is not None and node.table is not None:
            self._carry(cell, node, layout, (table, row), time)
            self._leave(cell, node, tick)
        node.table, node.row, node.layout = table, row, layout
        node.layout_id, node.size = layout.layout_id, layout.width * 8
        cell.regroup = True

    def remove(self, cell: Cell, node: Node, tick: int, time: float) -> None:
        """Forgets a node: its anomalies are closed as unknown, not as healed."""
        if node.layout is not None:
            for block in node.layout.blocks:
                for device in range(len(block.ids)):
                    self._close_all(cell, block.entity(node.name, device), block.metrics, time, "node_forgotten")
            self._leave(cell, node, tick)
        del cell.nodes[node.name]
        cell.seen.pop(node.name, None)
        cell.regroup = True

    def abandon(self, cell: Cell) -> None:
        """Gives back all that a cell holds, without a word: another worker speaks for it now."""
        for group in cell.groups.values():
            for metric in range(len(group.metrics)):
                self._pairs.pop(group.base + metric, None)
        for node in cell.nodes.values():
            if node.table is not None:
                node.table.detach(node.row)
                node.table.release(node.row)
        for _, table, row in cell.left:
            table.release(row)
        self._life.drop((cell.cluster, cell.name))

    def _leave(self, cell: Cell, node: Node, tick: int) -> None:
        if node.table is not None:
            node.table.detach(node.row)
            cell.left.append((tick + _REST, node.table, node.row))

    def _carry(self, cell: Cell, node: Node, layout: Layout, into: tuple[Table, int], time: float) -> None:
        table, row = into
        old_layout, old_table = node.layout, node.table
        assert old_layout is not None  # noqa: S101  (asked by `place`)
        assert old_table is not None  # noqa: S101
        table.quarantine[row] = old_table.quarantine[node.row]
        table.times[row] = old_table.times[node.row]
        new = {(block.kind, id_): (block, device) for block in layout.blocks for device, id_ in enumerate(block.ids)}
        for old in old_layout.blocks:
            pairs: dict[int, tuple[Block, list[int], list[int]]] = {}
            for device, id_ in enumerate(old.ids):
                found = new.get((old.kind, id_))
                if found is not None and _alike(old, device, *found):
                    block, at = found
                    _, ours, theirs = pairs.setdefault(block.offset, (block, [], []))
                    ours.append(at)
                    theirs.append(device)
                else:
                    reason = "device_gone" if found is None else "moved_to_another_job"
                    self._close_all(cell, old.entity(node.name, device), old.metrics, time, reason)
                if found is None and old.kind in HARDWARE:
                    self._missing(cell, node, old.entity(node.name, device), time)
            for block, ours, theirs in pairs.values():
                metrics = np.arange(len(block.metrics))[:, None]
                columns = block.offset + metrics * len(block.ids) + np.array(ours)
                before = old.offset + metrics * len(old.ids) + np.array(theirs)
                table.copy_past(row, columns.ravel(), old_table, node.row, before.ravel())
        if node.missing:
            here = {block.entity(node.name, d) for block in layout.blocks for d in range(len(block.ids))}
            for entity in sorted(node.missing & here):
                node.missing.discard(entity)
                self._life.close((cell.cluster, cell.name, entity, MISSING), time=time, end=time)

    def _close_all(self, cell: Cell, entity: str, metrics: tuple[str, ...], time: float, reason: str) -> None:
        for metric in metrics:
            self._life.close((cell.cluster, cell.name, entity, metric), time=time, end=time, reason=reason)

    def _missing(self, cell: Cell, node: Node, entity: str, time: float) -> None:
        node.missing.add(entity)
        self._life.open(
            (cell.cluster, cell.name, entity, MISSING),
            cluster=cell.cluster,
            entity=entity,
            metric=MISSING,
            start=time,
            time=time,
            severity=Severity.ERROR,
            node=node.name,
            cell=cell.name,
        )

    def regroup(self, cell: Cell, tick: int, time: float) -> None:
        """Builds the peer groups of `cell` anew from its nodes' layouts; groups that stay keep their state."""
        cell.regroup = False
        cell.order = sorted((node for node in cell.nodes.values() if node.table is not None), key=lambda n: n.name)
        by_table: dict[Table, tuple[list[int], list[int]]] = {}
        for position, node in enumerate(cell.order):
            if node.table is not None:
                positions, rows = by_table.setdefault(node.table, ([], []))
                positions.append(position)
                rows.append(node.row)
        cell.places = [(table, np.array(at), np.array(rows)) for table, (at, rows) in by_table.items()]
        cell.refresh_at = tick
        cell.young_until = tick + 2 * self._config.warmup
        members = _members(cell)
        for key in [key for key in cell.groups if key not in members]:
            self._drop(cell, cell.groups.pop(key), time)
        for key, places in members.items():
            group = cell.groups.get(key) or self._make(cell, key)
            group.pieces = [
                _piece(table, block, rows, devices, index)
                for (_, devices, index), (table, block, rows) in places.items()
            ]
            self._number(group)
        cell.jobs = {}
        for key in sorted(cell.groups):
            if key[0] == "process" and key[1]:
                cell.jobs.setdefault(key[1], []).append(cell.groups[key])
        cell.ranks = ranks_of(cell)
        cell.processes = processes_of(cell)

    def _make(self, cell: Cell, key: GroupKey) -> Group:
        size = len(key[3])
        group = Group(key, Rules(key[0], key[3], self._config), self._next_pair)
        group.hist, group.mass_open = np.zeros(size, np.uint8), np.zeros(size, np.bool_)
        self._next_pair += size
        for metric in range(size):
            self._pairs[group.base + metric] = (group, metric)
        cell.groups[key] = group
        return group

    def _drop(self, cell: Cell, group: Group, time: float) -> None:
        for metric in range(len(group.metrics)):
            self._pairs.pop(group.base + metric, None)
            self._life.close(group_key(cell, group, metric), time=time, end=time, reason="job_gone")

    @staticmethod
    def _number(group: Group) -> None:
        judged = group.rules.judged
        for piece in group.pieces:
            numbers = (group.base + judged).astype(np.int32)
            piece.table.pair.reshape(-1)[piece.flat[judged]] = numbers[:, None]
        hot = np.zeros(len(group.metrics), np.bool_)
        everything = np.arange(len(group.metrics))
        if len(everything):
            hot |= (group.gather("hist", everything) != 0).any(axis=1) | group.gather("opened", everything).any(axis=1)
        group.hot.update(int(metric) for metric in np.flatnonzero(hot))


def _members(cell: Cell) -> dict[GroupKey, _Places]:
    """Who belongs to each group of `cell`."""
    members: dict[GroupKey, _Places] = {}
    for node in cell.order:
        assert node.layout is not None  # noqa: S101  (a row means a layout)
        assert node.table is not None  # noqa: S101
        for index, block in enumerate(node.layout.blocks):
            if not block.metrics:
                continue
            for (job, role), devices in _parted(block).items():
                key: GroupKey = (block.kind, job, role, block.metrics)
                places = members.setdefault(key, {})
                place = (id(node.table), devices, index)
                places.setdefault(place, (node.table, block, []))[2].append(node.row)
    return members


def _alike(old: Block, device: int, new: Block, at: int) -> bool:
    """Whether a device means the same in both layouts, so that its past still speaks of it."""
    return (old.metrics, old.jobs[device], old.roles[device]) == (new.metrics, new.jobs[at], new.roles[at])


def _parted(block: Block) -> dict[tuple[str, str], tuple[int, ...]]:
    parts: dict[tuple[str, str], list[int]] = {}
    for device, whose in enumerate(zip(block.jobs, block.roles, strict=True)):
        parts.setdefault(whose, []).append(device)
    return {whose: tuple(devices) for whose, devices in parts.items()}


def _piece(table: Table, block: Block, rows: list[int], devices: tuple[int, ...], index: int) -> Piece:
    metrics = np.arange(len(block.metrics))[:, None]
    columns = block.offset + metrics * len(block.ids) + np.array(devices)
    return Piece.make(table, rows, devices, index, columns)
