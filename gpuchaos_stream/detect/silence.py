"""Nodes that say nothing: missing telemetry is a fact, never a healthy value."""

from __future__ import annotations

from typing import Final

from gpuchaos_stream.detect.config import DetectConfig
from gpuchaos_stream.detect.layout import clean
from gpuchaos_stream.detect.lifecycle import Lifecycle
from gpuchaos_stream.detect.window import Cell, Node
from gpuchaos_stream.events.base import Severity

METRIC: Final = "telemetry_stale"
#: From so many nodes on, a cell that falls silent as a whole is one anomaly of the cell.
_WHOLE_CELL: Final = 4


def check(cell: Cell, now: float, life: Lifecycle, config: DetectConfig) -> list[Node]:
    """Opens an anomaly for each node that fell silent; returns those silent for so long that they are forgotten.

    A node is silent when nothing of it arrived for `stale_after` by the caller's time, or when its last frame
    is that far behind the cell's clock, which is how a silence shows while a backlog is read.
    """
    clock = cell.clock()
    silent, gone = [], []
    for node in cell.nodes.values():
        if node.stale:
            if now - node.arrived > config.forget_after:
                gone.append(node)
            elif not cell.silent and now - cell.returned > config.stale_after:
                silent.append(node)
        elif now - node.arrived > config.stale_after or clock - node.last > config.stale_after:
            silent.append(node)
    for node in silent:
        cell.live -= not node.stale
        node.stale = True
    if cell.live == 0 and len(silent) >= _WHOLE_CELL and len(silent) == len(cell.nodes):
        cell.silent = True
        last = max(node.last for node in silent)
        _open(cell, None, last, life, config)
    elif not cell.silent:
        for node in sorted(silent, key=lambda n: n.name):
            _open(cell, node, node.last, life, config)
    return gone


def back(cell: Cell, node: Node, time: float, life: Lifecycle) -> None:
    """Takes a node's return to note. The anomaly of a whole cell ends with the first that returns; nodes that
    stay away for `stale_after` more are then named one by one, by `check`.
    """
    node.stale = False
    cell.live += 1
    life.close((cell.cluster, cell.name, "node", node.name, METRIC), time=time, end=time)
    if cell.silent:
        cell.silent, cell.returned = False, node.arrived
        life.close((cell.cluster, cell.name, "cell", cell.name, METRIC), time=time, end=time)


def _open(cell: Cell, node: Node | None, last: float, life: Lifecycle, config: DetectConfig) -> None:
    what, name = ("cell", cell.name) if node is None else ("node", node.name)
    life.open(
        (cell.cluster, cell.name, what, name, METRIC),
        cluster=cell.cluster,
        entity=f"{what}/{clean(name)}",
        metric=METRIC,
        start=last + 1.0,  # the first frame that did not come
        time=last + config.stale_after,
        severity=Severity.ERROR,
        node=node.name if node else None,
        cell=cell.name,
        detail={"last_seen": last},
    )
