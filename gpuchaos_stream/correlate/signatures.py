"""What each cause does to others: the knowledge that attribution rests on, as data.

A cause is an injected fault (`process-stop`) or a hard fact that nobody asked for (`gpu_lost`). What a cause is
not expected to do is not charged to it, however near and however soon: a GPU that falls off the bus while a
process is stopped has fallen off by itself.
"""

from __future__ import annotations

from typing import Final

from gpuchaos_stream.correlate.expectation import (
    AFTERMATH,
    BACK_S,
    COALESCE_S,
    DATABASE,
    DEVICE,
    HARDWARE_STALL,
    JOB,
    NVLINK_PEERS,
    PORT_DOWN,
    PORT_PAIN,
    STORAGE,
    WATCHDOG_S,
    Expectation,
    Signature,
    dead,
    gpu_facts,
    named,
    signature,
    silent,
    stall,
    via,
)

# -- the faults that are injected -------------------------------------------------------------------------------

_INJECTED: Final[dict[str, tuple[Expectation, ...]]] = {
    "process-stop": (
        # Other ranks of the job stop when its watchdog ends them, or when more was stopped than was asked for.
        Expectation(
            named("running"),
            named("process", "job"),
            via("entity", "job"),
            60.0,
            WATCHDOG_S,
            1.0,
            "the process is stopped",
        ),
        *stall(10.0, 120.0, 0.95),
    ),
    # The record speaks for itself (its mark); the program on that GPU may be ended by whoever believes it.
    "memory-corruption": (
        Expectation(
            named(
                "injected",
                "spoof_or_injected",
                "gpu_ecc_dbe",
                "gpu_ecc_contained",
                "gpu_ecc_uncontained",
                "gpu_row_remap_pending",
                "gpu_row_remap_failure",
                "gpu_memory_repair_pending",
                "gpu_channel_reset",
                "gpu_unknown_xid",
            ),
            named("gpu", "node"),
            DEVICE,
            COALESCE_S,
            60.0,
            1.0,
            "the record that was written",
            marked=True,
        ),
        # The machine-check plane aims at the node itself, the record of a GPU's error never does.
        Expectation(
            named("mce_corrected", "mem_ce"),
            named("node"),
            via("entity"),
            COALESCE_S,
            60.0,
            0.95,
            "the machine check that was injected",
        ),
        *dead(15.0, 120.0),
    ),
    "network-partition": (
        silent(5.0, 60.0),
        STORAGE,
        DATABASE,
        *stall(30.0, BACK_S, 0.9),
    ),
    "rdma-link": (PORT_DOWN, PORT_PAIN, *stall(15.0, BACK_S, 0.95)),
    "numa-misalignment": (
        Expectation(
            named("numa_misaligned_ratio"), named("process"), DEVICE, 5.0, 30.0, 1.0, "its CPUs are off its GPU's node"
        ),
        Expectation(named("remote_rate"), named("numa"), DEVICE, 5.0, 120.0, 0.95, "pages come from the other node"),
        *stall(20.0, 300.0, 0.9),
    ),
    "power-cycle": (silent(5.0, 60.0), PORT_DOWN, PORT_PAIN, *dead(10.0, BACK_S, 0.95)),
    "storage-disconnect": (STORAGE, *stall(60.0, BACK_S, 0.85)),
    "database-outage": (DATABASE, *stall(60.0, BACK_S, 0.75)),
    "service-latency": (
        Expectation(
            named("collective_timeout", "db_unreachable"),
            named("process", "node", "job"),
            JOB,
            60.0,
            BACK_S,
            0.75,
            "calls to the slow service run into their time-outs",
        ),
        *stall(30.0, 300.0, 0.8),
    ),
    "certificate-expiry": (
        Expectation(
            named("cert_expired", "db_unreachable"),
            named("process", "node", "job"),
            via("entity", "owner", "node", "job", "cell"),
            10.0,
            300.0,
            0.95,
            "clients refuse the certificate",
        ),
        *stall(60.0, BACK_S, 0.7),
    ),
}

# -- hard facts that nobody asked for: a real failure explains what follows it, and no experiment does -----------

_OBSERVED: Final[dict[str, tuple[Expectation, ...]]] = {
    "gpu_lost": (
        gpu_facts("gpu_lost", "gpu_gsp_timeout", "gpu_gsp_error", "pcie_aer_fatal", *AFTERMATH),
        NVLINK_PEERS,
        *HARDWARE_STALL,
    ),
    "gpu_gsp_timeout": (gpu_facts("gpu_gsp_timeout", "gpu_gsp_error", *AFTERMATH), NVLINK_PEERS, *HARDWARE_STALL),
    "gpu_gsp_error": (gpu_facts("gpu_gsp_error", "gpu_gsp_timeout", *AFTERMATH), NVLINK_PEERS, *HARDWARE_STALL),
    "gpu_pmu_halt": (gpu_facts("gpu_pmu_halt", "gpu_mmu_fault", *AFTERMATH), *HARDWARE_STALL),
    "gpu_ecc_dbe": (
        gpu_facts(
            "gpu_ecc_dbe",
            "gpu_ecc_contained",
            "gpu_ecc_uncontained",
            "gpu_row_remap_pending",
            "gpu_row_remap_failure",
            "gpu_retirement_failure",
            "gpu_memory_repair_pending",
            "ecc_uncorrected_rate",
            "remapped_rows_pending",
            *AFTERMATH,
        ),
        *HARDWARE_STALL,
    ),
    "gpu_ecc_contained": (
        gpu_facts(
            "gpu_ecc_contained",
            "gpu_ecc_dbe",
            "gpu_row_remap_pending",
            "gpu_memory_repair_pending",
            "ecc_uncorrected_rate",
            "remapped_rows_pending",
            *AFTERMATH,
        ),
        *HARDWARE_STALL,
    ),
    "gpu_ecc_uncontained": (
        gpu_facts(
            "gpu_ecc_uncontained",
            "gpu_ecc_dbe",
            "gpu_row_remap_pending",
            "gpu_row_remap_failure",
            "ecc_uncorrected_rate",
            "remapped_rows_pending",
            *AFTERMATH,
        ),
        *HARDWARE_STALL,
    ),
    "gpu_nvlink_error": (gpu_facts(*AFTERMATH), NVLINK_PEERS, *HARDWARE_STALL),
    "nvswitch_link_fatal": (
        gpu_facts(*AFTERMATH, through=via("entity", "owner", "node", "domain")),
        NVLINK_PEERS,
        *HARDWARE_STALL,
    ),
    "pcie_aer_fatal": (gpu_facts("gpu_lost", "nic_fatal", "nvme_lost", "pcie_aer_fatal"), *HARDWARE_STALL),
    "mem_ue": (gpu_facts("mem_ue", "app_segfault"), *HARDWARE_STALL),
    "nic_fatal": (PORT_DOWN, PORT_PAIN, *stall(15.0, BACK_S, 0.9)),
    "nic_fw_hang": (PORT_DOWN, PORT_PAIN, *stall(15.0, BACK_S, 0.9)),
    "nic_link_down": (PORT_DOWN, PORT_PAIN, *stall(15.0, BACK_S, 0.9)),
    "port_down": (PORT_DOWN, PORT_PAIN, *stall(15.0, BACK_S, 0.9)),
    "nvme_lost": (STORAGE, *stall(60.0, BACK_S, 0.8)),
    "fs_readonly": (STORAGE, *stall(60.0, BACK_S, 0.8)),
    "cpu_soft_lockup": HARDWARE_STALL,
    "nfs_unresponsive": (STORAGE, *stall(60.0, BACK_S, 0.8)),
    "oom_kill": dead(5.0, 120.0),
    "worker_killed": dead(5.0, 120.0),
    "telemetry_stale": (silent(5.0, 30.0), *dead(10.0, 120.0, 0.85)),
    "device_missing": (silent(5.0, 30.0), *dead(10.0, 120.0, 0.85)),
}

#: Seconds by which a fact is noticed after it happened, where that is more than the clocks' slack.
_LEADS: Final[dict[str, float]] = {"telemetry_stale": 5.0, "device_missing": 3.0}

INJECTED: Final = {cause: signature(cause, expected) for cause, expected in _INJECTED.items()}
OBSERVED: Final = {cause: signature(cause, expected, _LEADS.get(cause, 0.0)) for cause, expected in _OBSERVED.items()}

#: For a fault that is not in the table: its job stalls, and nothing of what hardware says.
_UNKNOWN: Final = stall(15.0, 300.0, 0.8)


def injected(fault: str) -> Signature:
    """Signature of an injected fault. An unknown one stalls jobs: harm that is not counted could not be halted."""
    return INJECTED.get(fault) or signature(fault, _UNKNOWN)


#: How much of the weight is left at each number of hops. A job's collectives carry a fault almost undamped;
#: a shared leaf switch or rack is a much weaker reason.
CLOSENESS: Final[tuple[float, ...]] = (1.0, 1.0, 0.95, 0.9, 0.75, 0.6)
