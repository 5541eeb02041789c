"""MIG: which instances a card is cut into. A change of them is somebody's wish, not a fault."""

from __future__ import annotations

from typing import Any

from gpuchaos_agent.nvml import codes


def enabled(nvml: Any, handle: Any) -> bool:
    """Whether the card is in MIG mode now. Raises NVMLError where it cannot be."""
    return bool(nvml.nvmlDeviceGetMigMode(handle)[0])


def instances(nvml: Any, handle: Any) -> tuple[str, ...]:
    """The instances as `gpu-instance/compute-instance profile`, sorted. Raises NVMLError."""
    found = []
    for index in range(int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            ids = (int(nvml.nvmlDeviceGetGpuInstanceId(part)), int(nvml.nvmlDeviceGetComputeInstanceId(part)))
        except nvml.NVMLError as error:
            if codes.code_of(error) in codes.LOSSES or codes.code_of(error) in codes.RESTART:
                raise
            continue  # NOT_FOUND: places are given out with holes
        found.append((ids, _profile(nvml, part)))
    return tuple(f"{gi}/{ci} {profile}".rstrip() for (gi, ci), profile in sorted(found))


def _profile(nvml: Any, part: Any) -> str:
    """`1g.10gb` of `NVIDIA H100 80GB HBM3 MIG 1g.10gb`, empty where the name cannot be read."""
    try:
        name = codes.text(nvml.nvmlDeviceGetName(part))
    except (nvml.NVMLError, UnicodeDecodeError):
        return ""
    return name.rpartition("MIG ")[2].strip()[:40]
