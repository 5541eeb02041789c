"""The fidelity check: an experiment may claim only what its fault can really show, and must look where it shows.

A run that passes for the wrong layer is worse than none: people stop worrying. So a claim that the fault's form, or its
parameters, do not make good is refused with the reason and what does; a claim whose proof nobody in the plan looks at,
or somebody looks at in another place than the fault's, is refused with the check to add.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from gpuchaos_stream.errors import nearest
from gpuchaos_stream.experiments import shortfalls
from gpuchaos_stream.experiments.address import parse_address
from gpuchaos_stream.experiments.faults import CLAIMS, FAULTS
from gpuchaos_stream.experiments.plan import Plan, SteadyCheck
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
    "rdma-degradation": "a port that is up and slower than it was",
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
    "link-degradation": "rdma-degradation",
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

#: Claim → the fault's parameter that is the one place where its proof can be seen from outside.
SHOWN_AT: Final[dict[str, str]] = {"certificate-renewal": "address", "database-fallback": "address"}
#: Claim → the fault's parameter that says which kind of service stands there.
SPOKEN: Final[dict[str, str]] = {"database-fallback": "engine"}


def mistakes(plan: Plan) -> Iterator[Mistake]:
    """Claims that the plan must not make, and claims of which it does not look at the proof."""
    kind = FAULTS.get(plan.fault.name)
    if kind is None:
        return
    seen: set[str] = set()
    for index, written in enumerate(plan.fault.certifies):
        loc: Loc = ("fault", "certifies", index)
        claim = ALIASES.get(written, written)
        form = kind.form(plan.fault.params)
        if claim in seen:
            yield loc, f"{written!r} is claimed twice", "keep one: a run shows it once"
        elif claim not in form.certifies:
            yield _refused(loc, plan, written, claim)
        elif written != claim:
            yield loc, f"unknown claim {written!r}", f"it is called {claim!r} here"
        elif short := shortfalls.of(plan, claim):
            yield (
                loc,
                f"{plan.fault.name!r} cannot certify {claim!r} like this: {short.why}; that takes {TAKES[claim]}",
                short.instead,
            )
        elif claim in SHOWN_BY:
            yield from _unseen(loc, plan, claim)
        seen.add(claim)


def _unseen(loc: Loc, plan: Plan, claim: str) -> Iterator[Mistake]:
    """That no check looks at the proof of a claim, or none where the fault is."""
    looking = [check for check in plan.checks if set(check.kinds).intersection(SHOWN_BY[claim])]
    if not looking:
        yield (
            loc,
            f"no check looks at {claim!r}",
            f"add one of {', '.join(SHOWN_BY[claim])} to recovery or steady_state",
        )
        return
    place = str(plan.fault.params.get(SHOWN_AT.get(claim, "")) or "")
    spoken = str(plan.fault.params.get(SPOKEN.get(claim, "")) or "")
    if not place or any(_is_there(check, place, spoken) for check in looking):
        return
    asked = ((check.name, " ".join(check.kinds), check.service) for check in looking)
    said = ", ".join(f"{name!r} asks {kind} at {service.address}" for name, kind, service in asked if service)
    there = f"{spoken} at {place}" if spoken else place
    yield (
        loc,
        f"no check looks at {claim!r} where the fault is, {there}: {said}",
        f"ask there; hosts are compared as written: under another name, the check has to say same_as: {place!r}",
    )


def _is_there(check: SteadyCheck, place: str, spoken: str) -> bool:
    """Whether a check asks the service at `place`; one of the workload's own page does in any case."""
    if check.service is None:
        return True
    if spoken and spoken not in check.kinds:
        return False
    return _place(place) in {_place(check.service.address), _place(check.service.same_as or "")}


def _place(address: str) -> tuple[str, int] | None:
    """Host and port as they are compared; None for what is no address, which is another rule's mistake."""
    try:
        host, port = parse_address(address)
    except ValueError:
        return None
    try:
        return str(ip_address(host)), port
    except ValueError:
        return host.lower().rstrip("."), port


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
