"""What a simulated cluster is made of: nodes in racks, cells, rails and NVLink domains, and the jobs on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.base import stable_id

#: Local ids of a node's NUMA nodes: two sockets, as in the usual 8-GPU server.
NUMA_NODES: Final = ("0", "1")
#: Pid of the rank on GPU 0. A restarted rank has the same pid, as in its container's own pid namespace.
FIRST_PID: Final = 4100


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The size and shape of a simulated cluster.

    Nodes are spread evenly over `cells`. In each cell jobs (gangs) of `job_nodes` nodes are placed from the
    first node on, the last one smaller, and `spares` nodes stay idle. NIC i of every node of a cell is on
    rail i of it. Times are in seconds: `step_s` is one training step, `restart_s` the bounds of a job's
    restart from its checkpoint, `resume_s` those of its first step after a stall,
    `watchdog_s` those of noticing that a rank died, `collective_timeout_s` the longest stall (PyTorch's
    default for NCCL is 600).
    """

    cluster: str = "sim"
    nodes: int = 64
    cells: int = 4
    gpus: int = 8
    nodes_per_rack: int = 4
    nodes_per_domain: int = 4
    job_nodes: int = 8
    spares: int = 2
    step_s: float = 1.0
    restart_s: tuple[float, float] = (6.0, 10.0)
    resume_s: tuple[float, float] = (0.3, 1.5)
    watchdog_s: tuple[float, float] = (1.5, 3.0)
    collective_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuses sizes that make no cluster.

        Raises:
            UserError: with the field and what it may be.
        """
        for name in ("nodes", "cells", "gpus", "nodes_per_rack", "nodes_per_domain", "job_nodes"):
            if getattr(self, name) < 1:
                raise UserError("simulated cluster", f"{name} is {getattr(self, name)}", "it must be at least 1")
        if self.cells > self.nodes:
            raise UserError("simulated cluster", f"{self.cells} cells for {self.nodes} nodes", "use fewer cells")
        if self.spares < 0 or self.step_s <= 0:
            raise UserError("simulated cluster", "spares or step_s is negative", "make it positive")


@dataclass(frozen=True, slots=True)
class Site:
    """Where one node stands. `row` is its row in every array of the simulation."""

    row: int
    name: str
    cell: str
    rack: str
    domain: str


class Places:
    """The fixed part of a cluster: its nodes and the jobs' first placement."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        sites: list[Site] = []
        jobs: list[tuple[str, tuple[int, ...]]] = []
        digits = max(3, len(str(spec.nodes - 1)))
        for cell_number in range(spec.cells):
            first = cell_number * spec.nodes // spec.cells
            last = (cell_number + 1) * spec.nodes // spec.cells
            cell = f"c{cell_number}"
            for row in range(first, last):
                at = row - first
                rack, domain = at // spec.nodes_per_rack, at // spec.nodes_per_domain
                sites.append(Site(row, f"n{row:0{digits}d}", cell, f"{cell}-k{rack}", f"{cell}-d{domain}"))
            jobs.extend(_gangs(spec, cell, first, last))
        self.sites = tuple(sites)
        self.jobs = tuple(jobs)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Row of each node's name."""
        return {site.name: site.row for site in self.sites}

    def gpu_ids(self) -> tuple[str, ...]:
        """Local ids of a node's GPUs."""
        return tuple(str(index) for index in range(self.spec.gpus))

    def port_ids(self) -> tuple[str, ...]:
        """Local ids of a node's RDMA ports; port i is the one beside GPU i."""
        return tuple(f"mlx5_{index}" for index in range(self.spec.gpus))

    def pids(self) -> tuple[str, ...]:
        """Pids of a node's ranks; rank i uses GPU i."""
        return tuple(str(FIRST_PID + index) for index in range(self.spec.gpus))

    def rail(self, site: Site, port: int) -> str:
        """Name of the rail (leaf switch) of a port."""
        return f"{site.cell}-r{port}"

    def numa_of(self, device: int) -> int:
        """NUMA node of GPU or port `device`: the first half sits at socket 0."""
        return 0 if device < (self.spec.gpus + 1) // 2 else 1

    def pci(self, device: int) -> str:
        """PCI address of GPU `device`, in the kernel's words."""
        return f"0000:{0x18 + 0x11 * device:02x}:00.0"

    def uuid(self, site: Site, device: int) -> str:
        """A GPU UUID that is the same in every run."""
        text = stable_id(self.spec.cluster, site.name, device)
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:]}"


def _gangs(spec: ClusterSpec, cell: str, first: int, last: int) -> list[tuple[str, tuple[int, ...]]]:
    gangs: list[tuple[str, tuple[int, ...]]] = []
    end = max(first + 1, last - spec.spares)
    for number, start in enumerate(range(first, end, spec.job_nodes)):
        gangs.append((f"train-{cell}-{number}", tuple(range(start, min(start + spec.job_nodes, end)))))
    return gangs
