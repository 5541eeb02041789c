"""Where a node sits and what it holds: the raw material of the topology."""

from __future__ import annotations

from gpuchaos_stream.events.base import Event, Wire


class GpuPlace(Wire):
    """One GPU: its index on the node, PCI address, NUMA node and the job that uses it.

    `pcie_switch` is the address of the bridge just below the root port that it hangs from: devices that share
    it reach each other without the CPU. `mig` are its instances, as `gpu-instance/compute-instance profile`.
    """

    index: str
    uuid: str = ""
    pci: str = ""
    numa_node: int | None = None
    job: str | None = None
    pcie_switch: str | None = None
    mig: tuple[str, ...] = ()


class PortPlace(Wire):
    """One RDMA port: its device name, rail (leaf switch) and NUMA node; `pcie_switch` as of a GPU."""

    name: str
    rail: str | None = None
    numa_node: int | None = None
    pcie_switch: str | None = None
    netdev: str | None = None


class NodeInfo(Event):
    """A node's place. Sent at the agent's start, on change, and every 30 s; the latest one counts.

    `faults_impossible` says of each fault that this node cannot suffer, or whose order it cannot give, why.
    """

    node: str
    cell: str
    rack: str | None = None
    leaf: str | None = None
    nvlink_domain: str | None = None
    gpus: tuple[GpuPlace, ...] = ()
    ports: tuple[PortPlace, ...] = ()
    jobs: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    agent_version: str = ""
    faults_possible: tuple[str, ...] = ()
    faults_impossible: dict[str, str] = {}
