"""What a cause is expected to do to others: the type, and the groups of expectations that several causes share.

Delays come from the published failure studies: hardware facts follow each other within 5 s (Delta, arXiv
2503.11901), a collective waits for its watchdog of 10 to 30 min (ByteRobust, arXiv 2509.16293), a cause lies
at most 10 min back (Meta RSC, arXiv 2410.21680); telemetry is judged after 1 to 4 frames of 1 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuchaos_stream.topology.place import Through

#: A hard fact follows its cause within this many seconds (Delta: 5 s), and a slow log within the other.
COALESCE_S: Final = 5.0
BACK_S: Final = 600.0
WATCHDOG_S: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """One thing that a cause is expected to do.

    `names` are metrics or fault names, `kinds` the kinds of entity on which they show, `through` the relations
    by which the cause gets there. Up to `typical_s` after the cause it is as expected as it can be, after
    `latest_s` not at all. `weight` (0..1) is how sure an expert would be, seeing it at the typical time on the
    cause's own entity. `marked` asks for a record that names itself an injection.
    """

    names: frozenset[str]
    kinds: frozenset[str]
    through: frozenset[Through]
    typical_s: float
    latest_s: float
    weight: float
    why: str
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """All that one cause is expected to do, found by name and kind of entity.

    `lead_s` is how long before its own observation a cause may have acted: lost telemetry is noticed late. It
    is 0 for an injection, whose start is known. `latest_s` and `through` sum up the expectations: the longest
    delay of all, and every way to get anywhere.
    """

    cause: str
    index: Mapping[tuple[str, str], Expectation]
    lead_s: float
    latest_s: float
    through: frozenset[Through]

    def find(self, name: str, kind: str) -> Expectation | None:
        """What is expected of `name` on an entity of `kind`, None where nothing is."""
        return self.index.get((name, kind))


def signature(cause: str, expectations: Iterable[Expectation], lead_s: float = 0.0) -> Signature:
    """Indexes expectations by name and kind; the first that is listed counts."""
    index: dict[tuple[str, str], Expectation] = {}
    for expectation in expectations:
        for name in expectation.names:
            for kind in expectation.kinds:
                index.setdefault((name, kind), expectation)
    latest_s = max(expectation.latest_s for expectation in index.values())
    through = frozenset[Through]().union(*(expectation.through for expectation in index.values()))
    return Signature(cause, index, lead_s, latest_s, through)


def named(*names: str) -> frozenset[str]:
    """A set of names, as tables write it."""
    return frozenset(names)


def via(*through: Through) -> frozenset[Through]:
    """A set of ways of being related."""
    return frozenset(through)


# -- what is said of several causes -----------------------------------------------------------------------------

PROGRESS: Final = named("steps_rate", "step_time_seconds", "progress_age_seconds")
COMPUTE: Final = named("utilization_ratio", "power_watts", "sm_clock_hertz")
TRAFFIC: Final = named("rx_bytes_rate", "tx_bytes_rate")
COLLECTIVE: Final = named(
    "collective_timeout",
    "collective_desync",
    "peer_process_died",
    "peer_unreachable",
    "rendezvous_failed",
    "rdma_retry_exceeded",
)
WORKER: Final = named("worker_failed", "worker_killed")
OWN: Final = via("entity", "owner")
DEVICE: Final = via("entity", "owner", "node")
JOB: Final = via("entity", "owner", "node", "job")

HANGS: Final = (
    Expectation(
        COLLECTIVE, named("process", "node", "job", "gpu"), JOB, BACK_S, WATCHDOG_S, 0.9, "collectives wait for a rank"
    ),
    Expectation(
        WORKER, named("process", "node", "job", "gpu"), JOB, BACK_S, WATCHDOG_S, 0.85, "a failed collective ends ranks"
    ),
)


def stall(
    typical_s: float, latest_s: float, weight: float, through: frozenset[Through] = JOB
) -> tuple[Expectation, ...]:
    """A job waits: no steps, idle GPUs, silent links, and in the end its watchdogs."""
    return (
        Expectation(
            PROGRESS,
            named("process", "job"),
            through,
            typical_s,
            latest_s,
            weight,
            "the job waits for its slowest rank",
        ),
        Expectation(
            COMPUTE, named("gpu", "job"), through, typical_s, latest_s, weight, "GPUs idle or spin while the job waits"
        ),
        Expectation(TRAFFIC, named("port", "job"), through, typical_s, latest_s, weight, "a waiting job sends nothing"),
        Expectation(
            named("nvlink_tx_bytes_rate"),
            named("gpu", "job"),
            through,
            typical_s,
            latest_s,
            weight,
            "a waiting job sends nothing over NVLink",
        ),
        *HANGS,
    )


def dead(typical_s: float, latest_s: float, weight: float = 0.9) -> tuple[Expectation, ...]:
    """Processes end, and their job stalls."""
    return (
        Expectation(named("running"), named("process", "job"), JOB, typical_s, latest_s, weight, "processes end"),
        *stall(typical_s, latest_s, weight),
    )


def silent(typical_s: float, latest_s: float) -> Expectation:
    return Expectation(
        named("telemetry_stale", "telemetry_stuck", "device_missing"),
        named("node", "gpu", "port", "process", "numa"),
        DEVICE,
        typical_s,
        latest_s,
        1.0,
        "the node no longer answers",
    )


PORT_DOWN: Final = Expectation(
    named(
        "port_active", "port_down", "port_disabled", "nic_link_down", "nic_link_flap", "link_downed_rate", "rate_bits"
    ),
    named("port", "node"),
    OWN,
    3.0,
    30.0,
    1.0,
    "the port itself is down",
)
PORT_PAIN: Final = Expectation(
    named("out_of_sequence_rate", "ack_timeout_rate", "rcv_errors_rate", "symbol_error_rate"),
    named("port", "job"),
    via("entity", "node", "job", "rail"),
    5.0,
    120.0,
    0.9,
    "transport retries on paths to the port",
)


def storage(*names: str) -> Expectation:
    """What says that a volume is away; with it a checkpoint that could not be written, whatever the reason is."""
    return Expectation(
        named(*names, "checkpoint_write_failed"),
        named("node", "process", "job"),
        JOB,
        60.0,
        BACK_S,
        0.95,
        "storage no longer answers",
    )


def database(*names: str) -> Expectation:
    """What says that a server is away to those who work with it, wherever they run."""
    return Expectation(
        named(*names),
        named("node", "process", "job"),
        via("entity", "owner", "node", "job", "cell"),
        10.0,
        300.0,
        0.95,
        "the database cannot be reached",
    )


STORAGE: Final = storage(
    "nfs_unresponsive",
    "nfs_stale_handle",
    "nfs_lock_lost",
    "nvme_timeout",
    "nvme_lost",
    "nvme_path_failure",
    "raid_failed",
    "fs_readonly",
    "fs_full",
    "fs_error",
    "disk_io_error",
    "disk_path_failure",
    "hung_task",
)
DATABASE: Final = database("db_unreachable", "db_connection_limit", "db_write_refused")
#: A checkpoint whose writer was cut off is refused when a run resumes: minutes later, and seldom.
TORN: Final = Expectation(
    named("checkpoint_corrupt"),
    named("node", "process", "job"),
    JOB,
    BACK_S,
    WATCHDOG_S,
    0.75,
    "a checkpoint was cut while it was written",
)


def gpu_facts(*names: str, weight: float = 0.95, through: frozenset[Through] = DEVICE) -> Expectation:
    """Facts that the same failure makes the driver say within seconds."""
    return Expectation(
        named(*names),
        named("gpu", "node", "process"),
        through,
        COALESCE_S,
        60.0,
        weight,
        "one failure, told by many lines",
    )


AFTERMATH: Final = (
    "gpu_channel_reset",
    "gpu_recovery_action",
    "gpu_needs_reset",
    "gpu_reset_required",
    "gpu_peermem_invalid_context",
    "gpu_engine_exception",
    "gpu_unknown_xid",
)
NVLINK_PEERS: Final = Expectation(
    named("gpu_nvlink_error", "gpu_nvlink_contained", "nvswitch_link_error", "nvswitch_link_fatal", "link_active"),
    named("gpu", "node", "nvlink", "domain"),
    via("entity", "owner", "node", "domain"),
    COALESCE_S,
    60.0,
    0.9,
    "NVLink peers of a failed GPU report its links",
)
HARDWARE_STALL: Final = (*dead(10.0, BACK_S), silent(5.0, 60.0))
