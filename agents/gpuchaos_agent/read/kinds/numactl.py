"""`numactl -H`: nodes, their CPUs and memory, and the distances between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.read.base import Conclusion, Sample

NAME: Final = "numactl"
SUMMARY: Final = "numactl -H"

_AVAILABLE: Final = re.compile(r"available: (\d{1,5}) nodes \(([\d,-]{1,400})\)\s*\Z")
_CPUS: Final = re.compile(r"node (\d{1,5}) cpus:((?: \d{1,5}){0,4096})\s*\Z")
_MEMORY: Final = re.compile(r"node (\d{1,5}) (size|free): (\d{1,12}) MB\s*\Z")
_HEADER: Final = re.compile(r"node((?: +\d{1,5}){1,1024})\s*\Z")
_ROW: Final = re.compile(r" *(\d{1,5}):((?: +\d{1,5}){1,1024})\s*\Z")


def likelihood(sample: Sample) -> float:
    """Sure by its first line."""
    return 0.95 if any(map(_AVAILABLE.match, sample.lines[:3])) else 0.0


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """One line for the machine, one a node. Distances come in the order of the header, not of the numbers."""
    lines = stream.read(1 << 20).decode("utf-8", "replace").splitlines()
    cpus = {found[1]: found[2].split() for line in lines if (found := _CPUS.match(line))}
    memory = {(found[1], found[2]): int(found[3]) for line in lines if (found := _MEMORY.match(line))}
    header = next((found[1].split() for line in lines if (found := _HEADER.match(line))), [])
    far = {found[1]: dict(zip(header, found[2].split(), strict=False)) for line in lines if (found := _ROW.match(line))}
    yield Conclusion(
        details={
            "total": len(cpus),
            "cpu_nodes": ",".join(node for node, found in cpus.items() if found),
            "memory_only_nodes": ",".join(
                node for node, found in cpus.items() if not found and memory.get((node, "size"), 0) > 0
            ),
        }
    )
    for node, ids in cpus.items():
        yield Conclusion(
            device=f"node{node}",
            details={
                "cpus": ",".join(ids),
                "memory_mb": memory.get((node, "size")),
                "free_mb": memory.get((node, "free")),
                "distances": ",".join(f"{other}:{distance}" for other, distance in far.get(node, {}).items()),
            },
        )
