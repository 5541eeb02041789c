"""`/sys/devices/system/node`: which NUMA nodes there are, their CPUs, memory and distances, and where a device is.

Node ids are sparse (0, 8, 250-255 on POWER9), node 0 may be offline, and nodes without CPUs (GPU memory, CXL) or
without memory are normal: the list of online nodes is asked, never counted to. `has_cpu` and `has_memory` are
missing or empty on old kernels: a node has CPUs if its `cpulist` names some, and memory if its `meminfo` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuchaos_agent.kernelfs import files

#: Below the root of sysfs.
NODES: Final = "devices/system/node"

_NODE: Final = re.compile(r"node(\d+)\Z")
_MEMORY: Final = re.compile(r"^(?:Node \d+ )?(MemTotal|MemFree):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """`nodeN/meminfo` in bytes; None where the file does not say."""

    total: float | None
    free: float | None


@dataclass(frozen=True, slots=True)
class Nodes:
    """The online nodes of one machine.

    `cpus` holds only nodes that have any. `distance[a][b]` is ACPI's relative distance of b seen from a (10 is
    local; no latency and no bandwidth, says the kernel's own documentation); a row that could not be read is
    missing.
    """

    online: tuple[int, ...] = ()
    cpus: Mapping[int, frozenset[int]] = field(default_factory=dict)
    distance: Mapping[int, Mapping[int, int]] = field(default_factory=dict)

    @property
    def cpu_nodes(self) -> tuple[int, ...]:
        """The nodes that have CPUs, in order."""
        return tuple(self.cpus)


def read(root: Path) -> Nodes:
    """All of it; empty where there is no such tree."""
    return Nodes(online=online(root), cpus=cpus(root), distance=distances(root))


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


def distances(root: Path) -> dict[int, dict[int, int]]:
    """`nodeN/distance` of every online node.

    The columns are the online nodes in order (drivers/base/node.c walks `for_each_online_node`), not 0, 1, 2. A
    row as long as `possible` instead is read by that. A row of any other length names nobody and is left out.
    """
    nodes = online(root)
    possible = files.id_list(files.text(root / "possible"))
    found: dict[int, dict[int, int]] = {}
    for node in nodes:
        row = (files.text(root / f"node{node}/distance") or "").split()
        columns = next((ids for ids in (nodes, possible) if len(ids) == len(row)), ())
        if columns and all(value.isdecimal() for value in row):
            found[node] = dict(zip(columns, map(int, row), strict=True))
    return found


def memory(root: Path, node: int) -> NodeMemory:
    """`nodeN/meminfo`: its lines begin with `Node N`. A node of 0 bytes is normal (GPU memory that is not used)."""
    found = dict(_MEMORY.findall(files.text(root / f"node{node}/meminfo") or ""))
    total, free = (float(found[name]) * 1024 if name in found else None for name in ("MemTotal", "MemFree"))
    return NodeMemory(total=total, free=free)


def device_node(value: float | None, nodes: tuple[int, ...]) -> int | None:
    """The NUMA node that a device's `numa_node` file names. -1 is unknown, unless only one node is online."""
    if value is not None and value >= 0:
        return int(value)
    return nodes[0] if len(nodes) == 1 else None


def numastat(content: str | None) -> dict[str, float]:
    """`name value` lines as numbers of pages since boot; what is no such line is left out."""
    pairs = (line.split() for line in (content or "").splitlines())
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
