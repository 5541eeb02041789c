"""NUMA nodes from sysfs: free memory, and how fast pages are allocated near and far.

Node ids are sparse (0, 8, 250-255 on POWER9), node 0 may be offline, and nodes without CPUs or without memory
are normal: the list of online nodes is asked, never counted to.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

from gpuchaos_agent.collect.base import Group, Places, Reading, Sources
from gpuchaos_agent.kernelfs import files, numa_nodes
from gpuchaos_agent.kernelfs.counters import Rates
from gpuchaos_stream.events.frame import GroupLayout, Kind

METRICS: Final = ("memory_free_bytes", "local_rate", "remote_rate")


@lru_cache(maxsize=4)
def _layout(ids: tuple[str, ...]) -> GroupLayout:
    return GroupLayout(kind="numa", ids=ids, metrics=METRICS)


class NumaCollector:
    """Reads `<sysfs>/devices/system/node`."""

    name = "numa"
    kinds: tuple[Kind, ...] = ("numa",)
    ORDER = 40

    def __init__(self, sysfs: Path) -> None:
        self._root = sysfs / numa_nodes.NODES
        self._rates = Rates()

    @classmethod
    def from_sources(cls, sources: Sources) -> NumaCollector:
        """The collector of these roots."""
        return cls(sources.sysfs)

    def read(self, now: float) -> Reading:
        """Free bytes (`nodeN/meminfo`), and pages a second from `nodeN/numastat`.

        `local_rate`: `local_node`, pages got on this node by a task on one of its CPUs. `remote_rate`:
        `other_node`, pages got on this node by a task that ran elsewhere. Both count pages since boot.
        """
        nodes = numa_nodes.online(self._root)
        if not nodes:
            return Reading(absent={"numa": f"no NUMA nodes in {self._root}"})
        self._rates.keep(nodes)
        rows = [self._row(node, now) for node in nodes]
        ids = tuple(str(node) for node in nodes)
        group = Group(_layout(ids), tuple(zip(*rows, strict=True)))
        return Reading(groups=(group,), places=Places(numa=ids))

    def close(self) -> None:
        """Nothing is held open."""

    def _row(self, node: int, now: float) -> tuple[float | None, ...]:
        root = self._root / f"node{node}"
        pages = numa_nodes.numastat(files.text(root / "numastat"))
        return (
            numa_nodes.memory(self._root, node).free,
            self._rates.rate((node, "local"), pages.get("local_node"), now),
            self._rates.rate((node, "other"), pages.get("other_node"), now),
        )


COLLECTOR = NumaCollector
