"""`nvidia-smi -L`: GPUs and their MIG instances.

Before driver 470 an instance is named `MIG-GPU-<uuid of its GPU>/<gi>/<ci>`, since then `MIG-<uuid>`, from which
the GPU cannot be told; the indent of the line says it in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, Final

from gpuchaos_agent.read.base import Conclusion, Sample

NAME: Final = "smi-list"
SUMMARY: Final = "nvidia-smi -L"

_GPU: Final = re.compile(
    r"GPU (?P<index>\d{1,3}): (?P<model>[^(\n]{1,100}) \(UUID: (?P<uuid>GPU-[0-9a-f-]{8,64})\)\s*\Z"
)
_MIG: Final = re.compile(
    r"\s+MIG (?P<profile>\S{1,32})\s+Device\s+(?P<number>\d{1,2}): \(UUID: (?P<uuid>MIG-[0-9A-Za-z/-]{8,80})\)\s*\Z"
)
_OLD: Final = re.compile(r"MIG-GPU-[0-9a-f-]{8,64}/(\d{1,3})/(\d{1,3})\Z")


def likelihood(sample: Sample) -> float:
    """Sure where every line is a GPU's or an instance's."""
    lines = sample.lines
    if not lines or not _GPU.match(lines[0]):
        return 0.0
    return 0.95 if all(_GPU.match(line) or _MIG.match(line) for line in lines) else 0.5


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """One line for the node, one a GPU, one an instance."""
    found: list[Conclusion] = []
    gpu = ""
    for line in stream.read(1 << 20).decode("utf-8", "replace").splitlines():
        if card := _GPU.match(line):
            gpu = card["index"]
            found.append(Conclusion(device=f"GPU{gpu}", details={"model": card["model"], "uuid": card["uuid"]}))
        elif instance := _MIG.match(line):
            old = _OLD.match(instance["uuid"])
            found.append(
                Conclusion(
                    device=f"GPU{gpu}/MIG{instance['number']}",
                    details={
                        "profile": instance["profile"],
                        "uuid": instance["uuid"],
                        "gpu_index": int(gpu) if gpu else None,
                        "gpu_instance": int(old[1]) if old else None,
                        "compute_instance": int(old[2]) if old else None,
                    },
                )
            )
    mig = sum("profile" in one.details for one in found)
    yield Conclusion(details={"gpus": len(found) - mig, "mig": mig})
    yield from found
