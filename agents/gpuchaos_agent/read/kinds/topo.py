"""`nvidia-smi topo -m`: how each GPU and NIC reaches each other, and which CPUs are near.

The table is separated by tabs and begins with one; ` X ` is the device itself; two tabs stand before
`GPU NUMA ID`; rows of NICs end without affinity, and empty cells at a row's end are left out. `NIC0` is a name of
the table, which the legend resolves (`NIC0: mlx5_0`). SYS between two GPUs does not mean two sockets: drivers
without peer-to-peer say so as well.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.read.base import Conclusion, Sample
from gpuchaos_agent.read.guess import plain

NAME: Final = "topo"
SUMMARY: Final = "nvidia-smi topo -m"

_GPU: Final = re.compile(r"GPU\d{1,3}\Z")
_LINK: Final = re.compile(r"(?:X|SYS|NODE|PHB|PXB|PIX|NV\d{1,2})\Z")
_LEGEND: Final = re.compile(r"\s*(NIC\d{1,3}):\s*(\S{1,64})\s*\Z")
_CPUS: Final = re.compile(r"\d[\d,-]{0,400}\Z")
_AFFINITIES: Final = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


def likelihood(sample: Sample) -> float:
    """Sure where a header names GPUs and affinities, and a row begins with a GPU and its relation to itself."""
    lines = sample.lines
    header = next((n for n, line in enumerate(lines) if _is_header(line)), None)
    if header is None:
        return 0.0
    return 0.95 if any(_GPU.match(line.split("\t")[0].strip()) for line in lines[header + 1 :]) else 0.3


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """One line for the node, one a GPU (affinity, the NICs behind the same bridge), one a NIC."""
    lines = plain(stream.read(1 << 20).decode("utf-8", "replace")).splitlines()
    names = {found[1]: found[2] for line in lines if (found := _LEGEND.match(line))}
    start = next((n for n, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        return
    columns = _columns(lines[start])
    rows = list(_rows(lines[start + 1 :], columns))
    gpus = [row for row in rows if _GPU.match(row[0])]
    nics = [column for column in columns if not _GPU.match(column)]
    near = {name: [names.get(nic, nic) for nic in nics if links.get(nic) == "PIX"] for name, links, _ in gpus}
    by_node: dict[str, list[str]] = defaultdict(list)
    for name, _, affinity in gpus:
        by_node[affinity.get("NUMA Affinity", "")].append(name)
    yield Conclusion(
        details={
            "gpus": len(gpus),
            "nics": len(nics),
            "numa": ",".join(f"{node}:{_span(found)}" for node, found in by_node.items() if node) or "unknown",
            "pix_pairs": ",".join(f"{gpu}-{nic}" for gpu, found in near.items() for nic in found),
        }
    )
    for name, links, affinity in gpus:
        yield Conclusion(
            device=name,
            details={
                "cpus": affinity.get("CPU Affinity"),
                "numa_node": affinity.get("NUMA Affinity"),
                "nics": ",".join(near[name]),
                "nvlink_peers": sum(1 for other, link in links.items() if link.startswith("NV") and other != name),
            },
        )
    for nic in nics:
        yield Conclusion(device=names.get(nic, nic), details={"column": nic})


def _is_header(line: str) -> bool:
    cells = [cell.strip() for cell in line.split("\t")]
    return "GPU0" in cells and "CPU Affinity" in cells


def _columns(header: str) -> list[str]:
    cells = [cell.strip() for cell in header.split("\t")]
    return [cell for cell in cells if cell and cell not in _AFFINITIES]


def _rows(lines: list[str], columns: list[str]) -> Iterator[tuple[str, dict[str, str], dict[str, str]]]:
    """Name, relation by column, and affinity by name of each row. A row may be shorter than the header."""
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")]
        if cells[0] not in columns:
            continue
        links = [cell for cell in cells[1 : 1 + len(columns)] if _LINK.match(cell)]
        rest = cells[1 + len(links) :]
        affinity = {"CPU Affinity": rest[0]} if rest and _CPUS.match(rest[0]) else {}
        if len(rest) > 1 and _CPUS.match(rest[1]):
            affinity["NUMA Affinity"] = rest[1]
        yield cells[0], dict(zip(columns, links, strict=False)), affinity


def _span(names: list[str]) -> str:
    """`GPU0-3` of GPU0, GPU1, GPU2, GPU3."""
    numbers = [int(name.removeprefix("GPU")) for name in names]
    whole = len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"GPU{numbers[0]}-{numbers[-1]}" if whole else ",".join(names)
