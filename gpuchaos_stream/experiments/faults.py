"""The faults an experiment can name: the layer each really reaches, and what may therefore be claimed with it.

The claims are the first form of the fidelity check: an experiment passes for what its fault reaches, never for
what its name suggests. A claim that another fault makes good is answered with that fault's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One fault. `targets` are the kinds of entity it can be aimed at; `available` is false until an agent can do it.

    `certifies` are the claims that a plan may make; `never` are those that people expect of it and must not.
    """

    name: str
    layer: str
    targets: tuple[str, ...]
    certifies: tuple[str, ...]
    never: tuple[str, ...] = ()
    available: bool = False


_ALL: Final = (
    FaultKind(
        "process-stop",
        "one process of a job, by SIGSTOP: it keeps its memory, its GPU and its connections, and makes no progress",
        ("process",),
        ("hang-detection", "hang-recovery", "rank-attribution", "automatic-halt"),
        ("gpu-failure", "node-loss", "network-partition", "checkpoint-integrity"),
        available=True,
    ),
    FaultKind(
        "memory-corruption",
        "the telemetry plane: a marked record of an ECC error in the kernel log; no memory cell is touched",
        ("gpu",),
        ("error-detection", "error-attribution", "automatic-halt"),
        ("gpu-failure", "row-remapping", "checkpoint-integrity", "silent-data-corruption"),
        available=True,
    ),
    FaultKind(
        "network-partition",
        "the node's IP network (control plane, storage, database); RDMA passes it by",
        ("node",),
        ("node-isolation", "task-failover", "heartbeat-loss"),
        ("rdma-failure", "collective-failure"),
    ),
    FaultKind("rdma-link", "the port itself", ("port",), ("rdma-failure", "collective-failure"), ("node-isolation",)),
    FaultKind(
        "numa-misalignment",
        "a process's CPUs and memory node against its GPU's",
        ("process",),
        ("straggler-detection", "straggler-recovery"),
        ("gpu-failure",),
    ),
    FaultKind("power-cycle", "the BMC (Redfish, IPMI)", ("node",), ("node-loss", "task-failover"), ()),
    FaultKind(
        "storage-disconnect", "the volume's path", ("node",), ("checkpoint-resume", "storage-failover"), ("node-loss",)
    ),
    FaultKind(
        "database-outage", "connections to one database", ("node",), ("database-fallback",), ("storage-failover",)
    ),
    FaultKind("service-latency", "one service's path", ("node",), ("latency-tolerance",), ("node-isolation",)),
    FaultKind(
        "certificate-expiry", "the certificate a server presents", ("node",), ("certificate-renewal",), ("node-loss",)
    ),
)

#: Every fault by its name.
FAULTS: Final[dict[str, FaultKind]] = {kind.name: kind for kind in _ALL}
#: Every claim that some fault makes good → the faults that do.
CLAIMS: Final[dict[str, tuple[str, ...]]] = {
    claim: tuple(kind.name for kind in _ALL if claim in kind.certifies)
    for claim in sorted({claim for kind in _ALL for claim in kind.certifies})
}
