"""The fidelity check: an experiment may claim only what its fault can really show, and must look where it shows.

A run that passes for the wrong layer is worse than none: people stop worrying. So a claim that the fault's form does
not make good is refused with the reason and the fault that does; a claim whose proof nobody in the plan looks at
is refused with the check to add.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuchaos_stream.errors import nearest
from gpuchaos_stream.experiments.faults import CLAIMS, FAULTS
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.yamlfile import Loc

Mistake = tuple[Loc, str, str]

#: Claim → what it takes to show it. Those that no fault makes good are here as well: they are asked for.
TAKES: Final[dict[str, str]] = {
    "automatic-halt": "harm that goes on, so that a limit is breached",
    "certificate-renewal": "a server that shows a certificate which does not hold",
    "checkpoint-integrity": "wrong bytes in a checkpoint, so that its checksums have something to catch",
    "checkpoint-resume": "checkpoints that cannot be reached or written, so that work goes on from an older one",
    "collective-failure": "a port that is down: collectives over RDMA pass the kernel's network, tc and nftables by",
    "data-durability": "a database that loses what it has acknowledged; no fault here makes one",
    "database-failover": "a database server that is gone for everybody; cut off from one node it goes on",
    "database-fallback": "one database that does not answer, with all else as it was",
    "disk-failure": "a disk that fails; no fault here breaks one",
    "error-attribution": "a record of an error, as the driver or the kernel writes it",
    "error-detection": "a record of an error, as the driver or the kernel writes it",
    "gpu-failure": "a GPU that fails; nothing that software injects breaks one",
    "hang-detection": "a process that lives and makes no progress",
    "hang-recovery": "a process that lives and makes no progress",
    "heartbeat-loss": "a node whose heartbeats do not arrive",
    "latency-tolerance": "one service that answers late, and does answer",
    "network-partition": "packets that do not arrive, with everything on the node running",
    "node-isolation": "a node that cannot be reached over IP",
    "node-loss": "a node without power: a process that is gone or a network that is cut leaves it running",
    "nvlink-failure": "an NVLink that fails; nothing that software injects breaks one",
    "rank-attribution": "one rank that is to blame among many that wait",
    "rdma-failure": "a port that is down: RDMA passes the kernel's network, tc and nftables by",
    "row-remapping": "a real uncorrectable error in the GPU's memory; a record of one makes no driver remap a row",
    "silent-data-corruption": "wrong results of the GPU itself; bytes flipped in a file are there for checksums to see",
    "storage-failover": "storage that does not answer",
    "straggler-detection": "one rank that is slower than its peers, and goes on",
    "straggler-recovery": "one rank that is slower than its peers, and goes on",
    "task-failover": "a node that its scheduler has lost",
    "thermal-throttling": "a GPU that is hot; no fault here heats one",
}

#: Other words for claims, as people write them.
ALIASES: Final[dict[str, str]] = {
    "ecc-detection": "error-detection",
    "failover": "task-failover",
    "gpu-loss": "gpu-failure",
    "link-failure": "rdma-failure",
    "nccl-failure": "collective-failure",
    "node-failure": "node-loss",
    "partition-tolerance": "network-partition",
    "silicon-failure": "gpu-failure",
    "xid-detection": "error-detection",
    "xid-handling": "error-detection",
}

#: Claim → the kinds of checks of which one must be in the plan: without it nobody looks where the proof is.
SHOWN_BY: Final[dict[str, tuple[str, ...]]] = {
    "certificate-renewal": ("tls",),
    "checkpoint-integrity": ("http", "promql"),
    "checkpoint-resume": ("http", "promql", "job", "telemetry"),
    "database-fallback": ("postgres", "redis", "http", "promql"),
    "hang-recovery": ("job", "telemetry", "promql", "http"),
    "straggler-recovery": ("job", "telemetry", "promql", "http"),
}


def mistakes(plan: Plan) -> Iterator[Mistake]:
    """Claims that the plan must not make, and claims of which it does not look at the proof."""
    kind = FAULTS.get(plan.fault.name)
    if kind is None:
        return
    asked = {question for check in plan.checks for question in check.kinds}
    for index, written in enumerate(plan.fault.certifies):
        loc: Loc = ("fault", "certifies", index)
        claim = ALIASES.get(written, written)
        form = kind.form(plan.fault.params)
        if claim not in form.certifies:
            yield _refused(loc, plan, written, claim)
        elif written != claim:
            yield loc, f"unknown claim {written!r}", f"it is called {claim!r} here"
        elif claim in SHOWN_BY and not asked.intersection(SHOWN_BY[claim]):
            yield (
                loc,
                f"no check looks at {claim!r}",
                f"add one of {', '.join(SHOWN_BY[claim])} to recovery or steady_state",
            )


def _refused(loc: Loc, plan: Plan, written: str, claim: str) -> Mistake:
    kind = FAULTS[plan.fault.name]
    form = kind.form(plan.fault.params)
    if claim not in TAKES:
        return loc, f"unknown claim {written!r}", nearest(written, (*form.certifies, *CLAIMS))
    named = kind.words(form)
    reason = f"{kind.name!r} cannot certify {written!r}: that takes {TAKES[claim]}"
    able = CLAIMS.get(claim, ())
    instead = (
        f"{' or '.join(able)} can" if able else f"no fault here can; this one certifies {', '.join(form.certifies)}"
    )
    return loc, reason, f"{named} reaches {form.layer}; {instead}"
