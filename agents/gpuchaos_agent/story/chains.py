"""Chains: which faults are known to come of which, so that what follows names its cause.

The first by the records' time is the cause. A chain says what is likely, never that a fault is harmless: what
follows keeps its severity, and gets `follows` (the key of the cause's record) and `follows_fault` as evidence.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

#: Told events that are remembered as possible causes.
MOST_CAUSES: Final = 64


@dataclass(frozen=True, slots=True)
class Chain:
    """Any of `causes` is known to bring any of `effects` about within `within_s` seconds."""

    causes: frozenset[str]
    effects: frozenset[str]
    within_s: float = 60.0


_JOB_ENDS: Final = frozenset({"collective_timeout", "peer_process_died", "worker_failed", "worker_killed"})
_GPU_REFUSES: Final = frozenset({"gpu_channel_reset", "gpu_recovery_action", "gpu_reset_required", "gpu_init_failed"})
_LINKS: Final = frozenset(
    {"gpu_nvlink_error", "gpu_nvlink_contained", "nvswitch_link_error", "nvswitch_link_fatal"}
    | {"nvswitch_sourcetrack_timeout", "gpu_peermem_invalid_context"}
)

CHAINS: Final = (
    # A GPU that no longer answers: seen from its own driver, from its NVLink peers and switches, and from the job.
    Chain(
        frozenset({"gpu_lost", "gpu_pmu_halt", "gpu_gsp_timeout", "gpu_gsp_error", "gpu_ctxsw_timeout"})
        | frozenset({"gpu_scheduler_fault", "gpu_needs_reset"}),
        _GPU_REFUSES | _LINKS | _JOB_ENDS,
    ),
    # A link that went down: its ends, and whoever sent over it.
    Chain(frozenset({"gpu_nvlink_error", "nvswitch_link_fatal"}), _GPU_REFUSES | _LINKS | _JOB_ENDS),
    Chain(frozenset({"gpu_ecc_dbe", "gpu_ecc_uncontained", "gpu_ecc_contained"}), _GPU_REFUSES | _JOB_ENDS),
    # A GPU that is told to be reset refuses every call until it is.
    Chain(frozenset({"gpu_recovery_action"}), frozenset({"gpu_reset_required"})),
    # The network under RDMA. NCCL gives up after its retries (default about 30 s), its watchdog after minutes.
    Chain(
        frozenset({"nic_link_down", "nic_link_flap", "port_down", "nic_fatal", "nic_fw_hang", "nic_fw_cmd_timeout"}),
        frozenset({"rdma_retry_exceeded", "nic_tx_timeout", "nfs_unresponsive"}) | _JOB_ENDS,
    ),
    Chain(frozenset({"rdma_retry_exceeded", "collective_timeout", "peer_process_died"}), _JOB_ENDS),
    # Storage: tasks that wait for a server that is silent are reported two minutes later (hung_task_timeout_secs).
    Chain(frozenset({"nfs_unresponsive"}), frozenset({"hung_task", "checkpoint_write_failed"}), 240.0),
    Chain(
        frozenset({"nvme_lost", "nvme_timeout", "nvme_path_failure", "raid_failed"}),
        frozenset({"fs_readonly", "hung_task", "checkpoint_write_failed", "raid_failed"}),
        240.0,
    ),
    Chain(frozenset({"fs_full", "fs_readonly"}), frozenset({"checkpoint_write_failed"}) | _JOB_ENDS),
    Chain(frozenset({"checkpoint_write_failed", "app_segfault", "oom_kill"}), _JOB_ENDS),
)


@dataclass(frozen=True, slots=True)
class When:
    """A record's place in time: its own stamp (None where it has none), and which in the order of reading it was."""

    time: float | None
    order: int

    def after(self, other: When) -> float | None:
        """Seconds since `other`, 0 where only the order is known; None where it was not after it."""
        if self.time is None or other.time is None or self.time == other.time:
            return 0.0 if self.order > other.order else None
        return self.time - other.time if self.time > other.time else None


@dataclass(frozen=True, slots=True)
class _Cause:
    fault: str
    key: str
    when: When
    realm: str


class Causes:
    """Remembers what was told, and finds in it the cause of what may be a consequence. Bounded.

    `realm` keeps what a process wrote into the kernel log apart from what the hardware and programs said.
    """

    def __init__(self) -> None:
        self._told: deque[_Cause] = deque(maxlen=MOST_CAUSES)

    def note(self, fault: str, *, key: str, when: When, realm: str) -> None:
        """The event `key` was told as `fault`, for the record at `when`. Only the first time of each counts."""
        if fault in _CAUSES and not any(cause.key == key and cause.fault == fault for cause in self._told):
            self._told.append(_Cause(fault, key, when, realm))

    def look(self, fault: str, *, key: str, when: When, realm: str) -> dict[str, str]:
        """`follows` and `follows_fault` of an event that began at `when`; empty where it has no known cause."""
        chains = _OF_EFFECT.get(fault)
        if chains is None:
            return {}
        found: tuple[float, _Cause] | None = None
        for cause in self._told:
            after = when.after(cause.when)
            if after is None or cause.key == key or cause.realm != realm:
                continue
            if any(cause.fault in chain.causes and after <= chain.within_s for chain in chains):
                found = (after, cause) if found is None or after > found[0] else found
        return {} if found is None else {"follows": found[1].key, "follows_fault": found[1].fault}


_CAUSES: Final = frozenset().union(*(chain.causes for chain in CHAINS))
_OF_EFFECT: Final = {
    effect: tuple(chain for chain in CHAINS if effect in chain.effects)
    for effect in frozenset().union(*(chain.effects for chain in CHAINS))
}
