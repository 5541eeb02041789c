"""`numastat`: pages got by node since the boot, as a table; and lines of `cat .../numa_node` that people add.

The numbers are pages since the boot: a miss long ago is no fault now, and `other_node` without `numa_miss` is a
task that ran elsewhere and wanted this memory.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.read.base import Conclusion, Sample

NAME: Final = "numastat"
SUMMARY: Final = "numastat"

_HEADER: Final = re.compile(r"\s+node\d{1,5}(?:\s+node\d{1,5}){0,1024}\s*\Z")
_ROW: Final = re.compile(
    r"(numa_hit|numa_miss|numa_foreign|interleave_hit|local_node|other_node)((?:\s+\d{1,20}){1,1024})\s*\Z"
)
_ASKED: Final = re.compile(r"\$? ?cat \S{0,64}/([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])/numa_node\s*\Z")


def likelihood(sample: Sample) -> float:
    """Sure where a header of nodes and a row `numa_hit` are there."""
    lines = sample.lines
    return 0.95 if any(map(_HEADER.match, lines)) and any(map(_ROW.match, lines)) else 0.0


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """One line for the machine (`miss` is the sum over nodes), one a node, one a device whose node is shown."""
    lines = stream.read(1 << 20).decode("utf-8", "replace").splitlines()
    nodes = next((line.split() for line in lines if _HEADER.match(line)), [])
    rows = {found[1]: list(map(int, found[2].split())) for line in lines if (found := _ROW.match(line))}
    yield Conclusion(details={"nodes": len(nodes), "miss": sum(rows.get("numa_miss", []))})
    for at, node in enumerate(nodes):
        yield Conclusion(device=node, details={name: values[at] for name, values in rows.items() if at < len(values)})
    for line, answer in itertools.pairwise(lines):
        asked = _ASKED.match(line)
        if asked and re.fullmatch(r"-?\d{1,5}", answer.strip()):
            yield Conclusion(device=asked[1], details={"numa_node": int(answer)})
