"""`/proc/PID/numa_maps`: where a process's memory lies, by node, and by which policies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.kernelfs import numa_maps
from gpuchaos_agent.read.base import Conclusion, Sample, lines

NAME: Final = "numa-maps"
SUMMARY: Final = "/proc/PID/numa_maps"

#: mm/mempolicy.c names the policies; "Feb 12" would be an address and a policy as well.
_LINE: Final = re.compile(r"[0-9a-f]{8,16} (?:default|prefer|bind|interleave|weighted|local)[ :=]")


def likelihood(sample: Sample) -> float:
    """Sure where every line is an address, a policy and what is known of the mapping."""
    seen = sample.lines
    return 0.95 if seen and all(map(_LINE.match, seen)) else 0.0


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """One line for the process, one a node. Pages are of the size that each line names (`kernelpagesize_kB`)."""
    policies: Counter[str] = Counter()
    held: Counter[int] = Counter()
    for text in lines(stream):
        mapping = numa_maps.parse(text)
        if mapping is None:
            continue
        policies[mapping.policy] += 1
        for node, size in numa_maps.bytes_by_node([text]).items():
            held[node] += int(size)
    yield Conclusion(
        details={
            "mappings": policies.total(),
            "policies": "; ".join(sorted(policies)),
            "nodes": ",".join(map(str, sorted(held))),
        }
    )
    total = held.total()
    for node, size in sorted(held.items()):
        yield Conclusion(
            device=f"node{node}", details={"bytes": size, "share": round(size / total, 4) if total else None}
        )
