"""How far a process sits from its GPU: one number from where it may run and where its pages are.

The number is the worse of two, each a mean of how far a node is from the GPU's home: over the CPUs that the
process may run on, and over its pages. How far a node is: 0 at home, 1 at the farthest node that has CPUs, between
them by ACPI's distances, so that a neighbour on the same socket counts less than the other socket.

Why the worse one and not a mean: each leg alone puts every step's traffic on the link between the sockets (far
pages by the GPU's copies, far CPUs by launching work and looking at its end), and a step is as slow as its slowest
leg. It also makes the number a lower bound while one of the two cannot be read, and never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuchaos_agent.kernelfs.numa_nodes import Nodes


@dataclass(frozen=True, slots=True)
class Placement:
    """One process and one GPU, all 0 to 1, None where unknown.

    `misaligned` is the number; `cpu_far` and `memory_far` are plain shares of CPUs and of bytes off the GPU's
    home, whatever the distance.
    """

    misaligned: float | None = None
    cpu_far: float | None = None
    memory_far: float | None = None


def home(node: int | None, nodes: Nodes) -> int | None:
    """The node with CPUs that a GPU on `node` belongs to: itself, else the nearest one that has CPUs.

    The second is for GPUs whose memory is a node of its own (Grace Hopper, Grace Blackwell, POWER9). None where
    the node is unknown or not online, and where two nodes are equally near (POWER9 says 80 to both sockets).
    """
    if node is None or node not in nodes.online:
        return None
    if node in nodes.cpus:
        return node
    if len(nodes.cpus) == 1:
        return nodes.cpu_nodes[0]
    seen_from_gpu = nodes.distance.get(node, {})
    to_gpu = {near: nodes.distance.get(near, {}).get(node) for near in nodes.cpus}
    for view in (seen_from_gpu, to_gpu):
        known = {near: far for near in nodes.cpus if (far := view.get(near)) is not None}
        best = [near for near, far in known.items() if far == min(known.values())]
        if len(best) == 1:
            return best[0]
    return None


def farness(from_home: int, nodes: Nodes) -> dict[int, float]:
    """How far each online node is from `from_home`, 0 to 1: (d - local) / (farthest with CPUs - local).

    Nodes without CPUs that are farther still (another GPU's memory) are 1 as well. Where distances are unknown,
    or say the same of all nodes, every node but the home is 1.
    """
    row = nodes.distance.get(from_home, {})
    local = row.get(from_home, 0)
    span = max((row[node] for node in nodes.cpus if node in row), default=local) - local
    if span <= 0 or any(node not in row for node in nodes.online):
        return {node: float(node != from_home) for node in nodes.online}
    return {node: min(1.0, max(0.0, (row[node] - local) / span)) for node in nodes.online}


def placement(
    gpu_node: int | None, nodes: Nodes, *, allowed: Iterable[int] | None, pages: Mapping[int, float] | None
) -> Placement:
    """Where a process stands to its GPU.

    `allowed` are the CPUs it may run on (masks name CPUs that the machine lacks, they are ignored), `pages` the
    bytes it has on each node; either None where unknown. All unknown where the GPU's node is, and on a machine
    with CPUs on one node only: nothing can lie wrong there. Pages in the GPU's own memory node are at home.
    """
    at = home(gpu_node, nodes)
    if at is None or len(nodes.cpus) < 2:
        return Placement()
    far = farness(at, nodes)
    node_of = {cpu: node for node, ids in nodes.cpus.items() for cpu in ids}
    on = [node_of[cpu] for cpu in set(allowed or ()) if cpu in node_of]
    ours = {at, gpu_node}
    bytes_on = {node: size for node, size in (pages or {}).items() if size > 0}
    total = sum(bytes_on.values())
    cpu = sum(far[node] for node in on) / len(on) if on else None
    memory = (
        sum(size * (0.0 if node in ours else far.get(node, 1.0)) for node, size in bytes_on.items()) / total
        if total
        else None
    )
    return Placement(
        misaligned=max((value for value in (cpu, memory) if value is not None), default=None),
        cpu_far=sum(node != at for node in on) / len(on) if on else None,
        memory_far=sum(size for node, size in bytes_on.items() if node not in ours) / total if total else None,
    )
