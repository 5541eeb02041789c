"""What the detector judges by: thresholds with their sources, and tables of which metric is judged how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.frame import Kind

#: Standard deviation of a normal distribution over its median absolute deviation.
MAD_TO_SIGMA: Final = 1.4826
#: Standard deviation of a normal distribution over its mean absolute deviation, sqrt(pi / 2).
MEAN_DEVIATION_TO_SIGMA: Final = 1.2533

#: Entity kind of each frame kind, where it is not the same word.
ENTITY_KIND: Final[dict[Kind, str]] = {"rdma": "port"}

#: Labels that part peers, beside `job`. Without a role the last pipeline stage, slower by design, is a
#: false alarm (ByteDance trace ST: ungrouped peers blame stage 3, grouped by stage max z = 0.7).
ROLE_LABEL: Final = "role"

#: 0/1 metrics: judged against the device's own past alone, for an unused port is no broken one.
STATE_METRICS: Final[frozenset[tuple[Kind, str]]] = frozenset(
    {("rdma", "port_active"), ("nvlink", "link_active"), ("process", "running")}
)

#: Metrics that mean something only while another of the same device is 1: an idle port carries nothing.
NEEDS_ACTIVE: Final[dict[Kind, str]] = {"rdma": "port_active"}

#: Kinds whose devices do not come and go with jobs: one that vanishes from the layout is a fact.
HARDWARE: Final[frozenset[Kind]] = frozenset({"gpu", "rdma", "numa", "nvlink"})

#: Severity of the event rates, whose any increment is a fact (metrics.py, `event`).
EVENT_SEVERITY: Final[dict[str, Severity]] = {
    "ecc_uncorrected_rate": Severity.ERROR,
    "link_downed_rate": Severity.ERROR,
    "remapped_rows_pending": Severity.ERROR,
}

#: Node-level values of a `CellSummary`: (kind, metric) → aggregates over the node's devices of that kind.
SUMMARY: Final[dict[tuple[Kind, str], tuple[str, ...]]] = {
    ("node", "cpu_busy_ratio"): ("mean",),
    ("node", "memory_available_ratio"): ("min",),
    ("node", "pressure_memory_ratio"): ("max",),
    ("gpu", "utilization_ratio"): ("mean", "min"),
    ("gpu", "power_watts"): ("mean",),
    ("gpu", "temperature_celsius"): ("max",),
    ("gpu", "sm_clock_hertz"): ("min",),
    ("gpu", "ecc_uncorrected_rate"): ("max",),
    ("rdma", "port_active"): ("min",),
    ("rdma", "rx_bytes_rate"): ("mean",),
    ("rdma", "tx_bytes_rate"): ("mean",),
    ("numa", "remote_rate"): ("max",),
    ("process", "running"): ("min",),
    ("process", "steps_rate"): ("min",),
    ("process", "step_time_seconds"): ("max",),
    ("process", "progress_age_seconds"): ("max",),
    ("process", "numa_misaligned_ratio"): ("max",),
}

#: Per job, over its processes in the cell: name → (metric, aggregate). `ranks` and `ranks_running` are added: how many
#: there are, and run. A process that does not run makes no progress: its age is left out.
JOB_SUMMARY: Final[dict[str, tuple[str, str]]] = {
    "steps_rate": ("steps_rate", "min"),
    "step_time_seconds": ("step_time_seconds", "median"),
    "running": ("running", "min"),
    "progress_age_seconds": ("progress_age_seconds", "max"),
}


@dataclass(frozen=True, slots=True)
class DetectConfig:
    """Thresholds of the detect stage. Times in seconds, counts in ticks (one tick is one second of event time).

    A number is bad when it is off, in its metric's bad direction, by more than `deviations` robust standard
    deviations and the metric's floor and `effect` of what was expected. Both gates are needed: among peers
    that agree to the last digit a healthy worker reached z = 9.3 (ByteDance trace AR).
    """

    deviations: float = 6.0
    effect: float = 0.10
    min_peers: int = 4
    persist: int = 3
    persist_state: int = 2
    persist_of: int = 4
    close_after: int = 5
    warmup: int = 30
    state_warmup: int = 3
    grace: int = 10
    lateness: float = 1.0
    stale_after: float = 3.0
    future: float = 5.0
    update_every: float = 5.0
    settle: int = 3
    learn_every: int = 5
    horizon: int = 60
    refresh_every: int = 30
    refresh_young: int = 5
    accept_after: float = 600.0
    forget_after: float = 3600.0
    mass_share: float = 0.5

    def __post_init__(self) -> None:
        """Refuses what the eight-tick histories cannot hold."""
        if not (1 <= self.persist <= self.persist_of <= 8 and self.close_after <= 8 and self.settle >= 1):
            raise ValueError("persist <= persist_of <= 8, close_after <= 8 and settle >= 1 are needed")
