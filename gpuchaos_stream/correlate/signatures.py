"""The signature of each cause: of an injected fault by its form (`injections.py`), of a hard fact by its name.

A hard fact that nobody asked for (`gpu_lost`) is a cause as an injected fault (`process-stop`) is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final

from gpuchaos_stream.correlate.expectation import (
    AFTERMATH,
    BACK_S,
    HARDWARE_STALL,
    NVLINK_PEERS,
    PORT_DOWN,
    PORT_PAIN,
    STORAGE,
    Expectation,
    Signature,
    dead,
    gpu_facts,
    signature,
    silent,
    stall,
    via,
)
from gpuchaos_stream.correlate.injections import CHOOSES, FORMS, PLAIN, UNKNOWN

#: Hard facts that nobody asked for: a real failure explains what follows it, and no experiment does.
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

#: What a fault does whose form is not known: what any of its forms does.
INJECTED: Final = {cause: signature(cause, chain.from_iterable(forms.values())) for cause, forms in FORMS.items()} | {
    cause: signature(cause, expected) for cause, expected in PLAIN.items()
}
BY_FORM: Final = {
    (cause, form): signature(cause, expected) for cause, forms in FORMS.items() for form, expected in forms.items()
}
OBSERVED: Final = {cause: signature(cause, expected, _LEADS.get(cause, 0.0)) for cause, expected in _OBSERVED.items()}


def form_of(fault: str, params: Mapping[str, object] | None) -> str:
    """The form that an injection's parameters choose; empty where they are not known, or the fault has one form."""
    if params is None or fault not in CHOOSES:
        return ""
    name, otherwise = CHOOSES[fault]
    return str(params.get(name) or otherwise)


def injected(fault: str, form: str = "") -> Signature:
    """Signature of an injected fault, of one of its forms where that is known.

    An unknown fault stalls jobs: harm that is not counted could not be halted.
    """
    return BY_FORM.get((fault, form)) or INJECTED.get(fault) or signature(fault, UNKNOWN)


#: How much of the weight is left at each number of hops. A job's collectives carry a fault almost undamped;
#: a shared leaf switch or rack is a much weaker reason.
CLOSENESS: Final[tuple[float, ...]] = (1.0, 1.0, 0.95, 0.9, 0.75, 0.6)
