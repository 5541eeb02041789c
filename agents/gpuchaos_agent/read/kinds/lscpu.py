"""`lscpu`: its NUMA part. Nodes without CPUs (GPU memory of a Grace Hopper, CXL) have an empty list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.read.base import Conclusion, Sample

NAME: Final = "lscpu"
SUMMARY: Final = "lscpu"

_COUNT: Final = re.compile(r"\s*NUMA node\(s\):\s+(\d{1,5})\s*\Z")
_NODE: Final = re.compile(r"\s*NUMA node(\d{1,5}) CPU\(s\):\s*([\d,-]{0,4096})\s*\Z")


def likelihood(sample: Sample) -> float:
    """Sure where both of its NUMA lines are there."""
    return 0.95 if any(map(_COUNT.match, sample.lines)) and any(map(_NODE.match, sample.lines)) else 0.0


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """One line for the machine, one a node."""
    lines = stream.read(1 << 20).decode("utf-8", "replace").splitlines()
    nodes = {found[1]: found[2] for line in lines if (found := _NODE.match(line))}
    total = next((found[1] for line in lines if (found := _COUNT.match(line))), str(len(nodes)))
    yield Conclusion(
        details={
            "total": int(total),
            "cpu_nodes": ",".join(node for node, cpus in nodes.items() if cpus),
            "memory_only_nodes": ",".join(node for node, cpus in nodes.items() if not cpus),
        }
    )
    for node, cpus in nodes.items():
        yield Conclusion(device=f"node{node}", details={"cpus": cpus})
