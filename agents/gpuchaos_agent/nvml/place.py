"""Where a card sits: its identity, PCI address, switch, and the NUMA node that it is near."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent.kernelfs import files, numa_nodes, pci, pci_tree
from gpuchaos_agent.nvml import codes
from gpuchaos_stream.events.node import GpuPlace

#: Errors that say of a card more than that it does not know the call.
_TELLING: Final = frozenset({*codes.LOSSES, *codes.RESTART})


@dataclass(frozen=True, slots=True)
class Described:
    """`memory_node` is a NUMA node of the card's own memory: it has no CPUs, and nothing can be pinned to it."""

    place: GpuPlace
    memory_node: int | None


def describe(nvml: Any, handle: Any, number: int, sysfs: Path, owners: dict[str, str]) -> Described:
    """What is known of NVML's card `number`. `owners` maps an index or a PCI address to a job.

    Raises:
        CardError: the card is lost or must be reset.
        LibraryError: the library must be started anew.
    """
    address = pci.normal(_string(nvml, lambda: nvml.nvmlDeviceGetPciInfo(handle).busId) or "")
    uuid = _string(nvml, lambda: nvml.nvmlDeviceGetUUID(handle)) or f"pci-{address or number}"
    nodes = numa_nodes.online(sysfs / numa_nodes.NODES)
    near = numa_nodes.device_node(files.number(pci.numa_file(sysfs, address)), nodes) if address else None
    own = _number(nvml, handle)
    with_cpus = numa_nodes.cpus(sysfs / numa_nodes.NODES)
    memory_node = own if own is not None and own not in with_cpus else None
    if near is None and own in with_cpus:
        near = own
    index = str(number)
    job = owners.get(index) or next(
        (job for gpu, job in owners.items() if ":" in gpu and pci.normal(gpu) == address), None
    )
    switch = pci_tree.switch_of(sysfs, address) if address else None
    place = GpuPlace(index=index, uuid=uuid, pci=address, numa_node=near, job=job, pcie_switch=switch)
    return Described(place, memory_node)


def _string(nvml: Any, ask: Any) -> str | None:
    try:
        return codes.text(ask())
    except codes.failures(nvml) as error:
        _judge(error)
        return None


def _number(nvml: Any, handle: Any) -> int | None:
    """On Grace-Blackwell this is the node of the GPU's own memory, which has no CPUs."""
    try:
        node = int(nvml.nvmlDeviceGetNumaNodeId(handle))
    except codes.failures(nvml) as error:
        _judge(error)
        return None
    return node if 0 <= node < 1 << 16 else None


def _judge(error: Exception) -> None:
    if isinstance(error, (AttributeError, UnicodeDecodeError)):
        return
    code = codes.code_of(error)
    if code in codes.LOSSES:
        raise codes.CardError(code) from error
    if code in codes.RESTART:
        raise codes.LibraryError(code) from error
