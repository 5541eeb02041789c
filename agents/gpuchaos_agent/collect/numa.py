"""NUMA nodes from sysfs: free memory, and how fast pages are allocated near and far.

Node ids are sparse (0, 8, 250-255 on POWER9), node 0 may be offline, and nodes without CPUs or without memory
are normal: the list of online nodes is asked, never counted to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gpuchaos_agent.collect import files
from gpuchaos_agent.collect.base import Group, Places, Reading, Sources
from gpuchaos_agent.collect.counters import Rates
from gpuchaos_stream.events.frame import GroupLayout, Kind

#: Below the root of sysfs.
NODES: Final = "devices/system/node"

METRICS: Final = ("memory_free_bytes", "local_rate", "remote_rate")

_FREE: Final = re.compile(r"^Node \d+ MemFree:\s+(\d+) kB", re.MULTILINE)
_NODE: Final = re.compile(r"node(\d+)\Z")


class NumaCollector:
    """Reads `<sysfs>/devices/system/node`."""

    name = "numa"
    kinds: tuple[Kind, ...] = ("numa",)

    def __init__(self, sysfs: Path) -> None:
        self._root = sysfs / NODES
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
        nodes = online(self._root)
        if not nodes:
            return Reading(absent={"numa": f"no NUMA nodes in {self._root}"})
        self._rates.keep(nodes)
        rows = [self._row(node, now) for node in nodes]
        ids = tuple(str(node) for node in nodes)
        group = Group(GroupLayout(kind="numa", ids=ids, metrics=METRICS), tuple(zip(*rows, strict=True)))
        return Reading(groups=(group,), places=Places(numa=ids))

    def close(self) -> None:
        """Nothing is held open."""

    def _row(self, node: int, now: float) -> tuple[float | None, ...]:
        root = self._root / f"node{node}"
        free = _FREE.search(files.text(root / "meminfo") or "")
        pages = numastat(files.text(root / "numastat"))
        return (
            float(free[1]) * 1024 if free else None,
            self._rates.rate((node, "local"), pages.get("local_node"), now),
            self._rates.rate((node, "other"), pages.get("other_node"), now),
        )


def online(root: Path) -> tuple[int, ...]:
    """The online nodes under `devices/system/node`; where the list is missing, the node directories there are."""
    listed = files.id_list(files.text(root / "online"))
    if listed:
        return listed
    return tuple(sorted(int(match[1]) for match in map(_NODE.match, files.names(root)) if match))


def cpus(root: Path) -> dict[int, frozenset[int]]:
    """The CPUs of each online node that has any (`nodeN/cpulist`; `has_cpu` is missing or empty on old kernels)."""
    found = {node: frozenset(files.id_list(files.text(root / f"node{node}/cpulist"))) for node in online(root)}
    return {node: ids for node, ids in found.items() if ids}


def device_node(value: float | None, nodes: tuple[int, ...]) -> int | None:
    """The NUMA node that a device's `numa_node` file names. -1 is unknown, unless only one node is online."""
    if value is not None and value >= 0:
        return int(value)
    return nodes[0] if len(nodes) == 1 else None


def numastat(content: str | None) -> dict[str, float]:
    """`name value` lines as numbers; what is no such line is left out."""
    pairs = (line.split() for line in (content or "").splitlines())
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
