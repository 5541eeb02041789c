"""The faults an experiment can name: the layer each really reaches, and what may therefore be claimed with it.

Some faults have forms that reach different layers (`memory-corruption` with `plane: file` changes bytes of a
file, without it a record in a log): each form is a row of its own, chosen by one parameter. An experiment passes for
what its fault's form reaches, never for what its name suggests (`fidelity.py`, `shortfalls.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpuchaos_stream.events.base import entity_node
from gpuchaos_stream.experiments import parameters


@dataclass(frozen=True, slots=True)
class Form:
    """What one form of a fault reaches. `value` of the fault's `by` parameter chooses it.

    `targets` are the kinds of entity it can be aimed at, `certifies` the claims that a plan may make, `never` those
    that people expect of it and must not; `needs` is what a node must have.
    """

    value: str
    layer: str
    targets: tuple[str, ...]
    certifies: tuple[str, ...]
    never: tuple[str, ...] = ()
    needs: str = ""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One fault. The first of `forms` is the one without the parameter `by`.

    `driver` names the parameter that says which node's agent carries it out, where that is not the target's own: a
    node without power takes back nothing.
    """

    name: str
    forms: tuple[Form, ...]
    by: str = ""
    driver: str = ""

    @property
    def available(self) -> bool:
        """Whether agents of this version can do it (`faults.json`)."""
        return self.name in parameters.SCHEMAS

    @property
    def layer(self) -> str:
        """What the form without parameters reaches."""
        return self.forms[0].layer

    @property
    def targets(self) -> tuple[str, ...]:
        """What the form without parameters can be aimed at."""
        return self.forms[0].targets

    @property
    def certifies(self) -> tuple[str, ...]:
        """Every claim that some form makes good."""
        return tuple(dict.fromkeys(claim for form in self.forms for claim in form.certifies))

    @property
    def never(self) -> tuple[str, ...]:
        """The claims that people expect of it and no form makes good."""
        named = dict.fromkeys(claim for form in self.forms for claim in form.never)
        return tuple(claim for claim in named if claim not in self.certifies)

    def form(self, params: Mapping[str, object]) -> Form:
        """The form that these parameters choose; the first one where they choose none that is known."""
        return next((form for form in self.forms if form.value == params.get(self.by)), self.forms[0])

    def agent(self, entity: str, params: Mapping[str, object]) -> str | None:
        """The node whose agent carries it out on `entity`; None where that is on no node."""
        named = params.get(self.driver) if self.driver else None
        return str(named) if named else entity_node(entity)

    def words(self, *forms: Form) -> str:
        """Its name, with the parameter that chooses one of these forms where not every form is among them."""
        if not self.by or len(forms) == len(self.forms):
            return self.name
        return f"{self.name} ({self.by}: {' or '.join(form.value for form in forms)})"

    def showing(self, claim: str) -> tuple[Form, ...]:
        """The forms that make a claim good."""
        return tuple(form for form in self.forms if claim in form.certifies)


def _one(
    name: str,
    layer: str,
    targets: tuple[str, ...],
    certifies: tuple[str, ...],
    never: tuple[str, ...],
    needs: str,
    *,
    driver: str = "",
) -> FaultKind:
    return FaultKind(name, (Form("", layer, targets, certifies, never, needs),), driver=driver)


#: Claims of storage that is away; the second one is not made good by storage that answers and says no.
_AWAY: Final = ("checkpoint-resume", "storage-failover")
_NOT_STORAGE: Final = ("node-loss", "checkpoint-integrity", "silent-data-corruption", "disk-failure")
_PORT_AWAY: Final = ("rdma-failure", "collective-failure")
_NOT_DOWN: Final = ("rdma-degradation", "node-isolation")
_NEEDS_PORT: Final = "an RDMA port, the tool for it (ip, or ibportstate), and CAP_NET_ADMIN"
_NOT_DATABASE: Final = ("storage-failover", "data-durability", "node-isolation", "database-failover")

_ALL: Final = (
    _one(
        "process-stop",
        "one process of a job, by SIGSTOP: it keeps its memory, its GPU and its connections, and makes no progress",
        ("process",),
        ("hang-detection", "hang-recovery", "rank-attribution", "automatic-halt"),
        ("gpu-failure", "node-loss", "network-partition", "checkpoint-integrity"),
        "the right to signal the job's processes; Linux 5.3",
    ),
    FaultKind(
        "memory-corruption",
        (
            Form(
                "telemetry",
                "the telemetry plane: a marked record of an ECC error in the kernel log; no memory cell is touched",
                ("gpu",),
                ("error-detection", "error-attribution", "automatic-halt"),
                ("gpu-failure", "row-remapping", "checkpoint-integrity", "silent-data-corruption"),
                "a /dev/kmsg that can be read and written",
            ),
            Form(
                "file",
                "bytes of a checkpoint or tensor file: bits of its weights are flipped; no memory cell is touched",
                ("node",),
                ("checkpoint-integrity",),
                ("gpu-failure", "row-remapping", "error-detection", "silent-data-corruption"),
                "a folder that the agent's settings name as one whose files may be changed",
            ),
            Form(
                "machine-check",
                "the kernel's machine-check path: a corrected error through mce-inject; no memory cell is touched",
                ("node",),
                ("error-detection",),
                ("gpu-failure", "row-remapping", "checkpoint-integrity", "silent-data-corruption"),
                "root, debugfs, a kernel with mce-inject",
            ),
        ),
        by="plane",
    ),
    _one(
        "network-partition",
        "the node's IP network (control plane, storage, database); RDMA passes it by",
        ("node",),
        ("node-isolation", "task-failover", "heartbeat-loss"),
        ("rdma-failure", "collective-failure", "node-loss", "gpu-failure"),
        "nftables, and CAP_NET_ADMIN",
    ),
    FaultKind(
        "rdma-link",
        (
            Form("down", "the RDMA port itself: its link is gone", ("port",), _PORT_AWAY, _NOT_DOWN, _NEEDS_PORT),
            Form(
                "flap", "the RDMA port itself: its link comes and goes", ("port",), _PORT_AWAY, _NOT_DOWN, _NEEDS_PORT
            ),
            Form(
                "degraded",
                "the RDMA port itself: its link is slower, and nothing of it fails",
                ("port",),
                ("rdma-degradation",),
                (*_PORT_AWAY, "node-isolation"),
                "an Ethernet port whose speed can be set, ethtool, and CAP_NET_ADMIN",
            ),
        ),
        by="mode",
    ),
    _one(
        "numa-misalignment",
        "a process's CPUs and memory node against its GPU's",
        ("process",),
        ("straggler-detection", "straggler-recovery"),
        ("gpu-failure",),
        "two NUMA nodes with CPUs, and CAP_SYS_NICE",
    ),
    _one(
        "power-cycle",
        "the node's power, by its management controller (Redfish, IPMI)",
        ("node",),
        ("node-loss", "task-failover"),
        ("network-partition", "gpu-failure", "hang-detection", "checkpoint-integrity"),
        "a BMC that the agent's settings name, and its password in a file",
        driver="driver",
    ),
    FaultKind(
        "storage-disconnect",
        tuple(
            Form(
                mode,
                layer,
                ("node",),
                _AWAY if away else _AWAY[:1],
                _NOT_STORAGE if away else (_AWAY[1], *_NOT_STORAGE),
                needs,
            )
            for mode, layer, away, needs in (
                (
                    "unreachable",
                    "packets to and from the volume's servers: they are dropped",
                    True,
                    "nftables, CAP_NET_ADMIN, a volume over the network",
                ),
                (
                    "hanging",
                    "the filesystem, frozen: writes wait, reads are answered",
                    True,
                    "root, fsfreeze, a filesystem of its own",
                ),
                ("readonly", "the mount, read-only: writes are refused", False, "root, a filesystem of its own"),
                ("full", "the filesystem's free space: writes are refused", False, "root, a filesystem of its own"),
                (
                    "erring",
                    "the volume's block device: it answers with errors",
                    True,
                    "root, dmsetup, a volume on the device mapper",
                ),
            )
        ),
        by="mode",
    ),
    FaultKind(
        "database-outage",
        tuple(
            Form(mode, layer, ("node",), ("database-fallback",), _NOT_DATABASE, needs)
            for mode, layer, needs in (
                ("refused", "new connections to one database: they are refused", "nftables, and CAP_NET_ADMIN"),
                ("reset", "all connections to one database: they are reset", "nftables, and CAP_NET_ADMIN"),
                ("hanging", "all connections to one database: packets are dropped", "nftables, and CAP_NET_ADMIN"),
                (
                    "exhausted",
                    "the database's own limit of connections: all of them are taken",
                    "a database that lets us connect",
                ),
            )
        ),
        by="mode",
    ),
    _one(
        "service-latency",
        "one service's path: its packets on the way out (netem), or its TCP streams (proxy); RDMA passes it by",
        ("node",),
        ("latency-tolerance",),
        ("node-isolation", "rdma-failure", "collective-failure", "storage-failover"),
        "CAP_NET_ADMIN; a kernel with netem, or nftables for the proxy",
    ),
    _one(
        "certificate-expiry",
        "the certificate that a server presents in the TLS handshake",
        ("node",),
        ("certificate-renewal",),
        ("node-loss", "network-partition", "node-isolation"),
        "write access to the server's certificate, the key of its CA, a way to reload",
    ),
)


def _offered(kind: FaultKind) -> FaultKind:
    """Without the forms that agents of this version do not have."""
    known = parameters.choices(kind.name, kind.by)
    return replace(kind, forms=tuple(form for form in kind.forms if form.value in known) or kind.forms[:1])


#: Every fault by its name.
FAULTS: Final[dict[str, FaultKind]] = {kind.name: _offered(kind) for kind in _ALL}
#: Every claim that some fault makes good → the faults that do, in words.
CLAIMS: Final[dict[str, tuple[str, ...]]] = {
    claim: tuple(kind.words(*forms) for kind in FAULTS.values() if (forms := kind.showing(claim)))
    for claim in sorted({claim for kind in FAULTS.values() for claim in kind.certifies})
}
