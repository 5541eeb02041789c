"""Every shared case that is an input, read by `gpuchaos-agent read` without being told what it is.

The cases lie outside the project; without them this says so and is skipped. Cases that state how a library must be
used are in tests/nvml/test_nvml_cases.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from read_help import said

from gpuchaos_agent.read import guess

CASES: Final = Path(__file__).parents[2] / "../shared/cases"
EXPECTED: Final = CASES / "expected.jsonl"

pytestmark = pytest.mark.skipif(not EXPECTED.exists(), reason="the shared cases are not beside this checkout")

#: Behaviours, not inputs: prose, or an error of a library.
BEHAVIOURS: Final = "pynvml"
#: File → what is expected there and not concluded here, with the reason.
DISAGREE: Final[dict[str, dict[str, str]]] = {
    "kmsg/userspace_injected_record.kmsg": {
        "severity": "a warning: information alone opens no anomaly, and who speaks in hardware's words must be seen"
    },
    "rdma_log/mlx5_access_reg_noise.log": {"device": "nothing is said of a fault, so no device is named"},
    "dcgm/xid_62_hidden_by_45.prom": {
        "fault": "the page holds 45 alone; that it hides a 62 is known from the kernel log only, and is not guessed",
        "severity": "as above",
    },
    "app/ckpt_cannot_be_opened_enospc.log": {
        "cause": "the text says no cause; that the disk was full was reported by the person"
    },
    "dcgm/v45_na_instead_of_zero.txt": {"missing_series!": "a rule: it concludes nothing, which is what it asks for"},
    "dcgm/gpu_util_garbage_points.txt": {"values": "a list of bare numbers; the rule is tested in test_read_dcgm.py"},
    "numa/vm_single_node_minus1.txt": {
        "nodes": "notes of a person, of no tool's form; the rule is tested in test_kernelfs_numa.py",
        "pci numa_node": "as above",
        "local_cpulist": "as above",
    },
    "sysfs/soperator_flap_rule.txt": {"rule": "prose; the rule is tested in test_collect_rdma_counters.py"},
}
#: Words of the cases for what has another name or form here: file → key → (our key, our value) that mean the same.
SAME: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "hw/aer_rhel7_id_and_5digit_domain.log": {"bits": ("errors", "BadTLP,BadDLLP")},
    "rdma_log/efa_admin_timeout.log": {"device": ("bdf", "0000:00:06.0")},
    "rdma_log/netdev_watchdog_two_orders.log": {"device": ("bdf", "0000:65:00.0")},
    "xid/x45_caused_by_149_145.log": {"root_xid": ("roots", "149@0000:dc:00,145@0000:ed:00/0000:ba:00/0000:97:00")},
    "topo/h100_dgx_mlx5_columns.txt": {"pix_pairs": ("pix_pairs", ",".join(f"GPU{n}-mlx5_{n}" for n in range(8)))},
    "dcgm/throttle_bitmask_96.txt": {"reasons": ("reasons", "sw_thermal,hw_thermal")},
    "numa/intel_interleaved_cpu_ids.jsonl": {"nodes": ("total", "4")},
    "numa/power9_gpu_memory_nodes.jsonl": {
        "nodes_cpu": ("cpu_nodes", "0,8"),
        "nodes_gpu_mem": ("memory_only_nodes", "250,251,252,253,254,255"),
    },
    "sysfs/efa_unknown_link_layer.jsonl": {"devices": ("names", "efa_0")},
    "sysfs/ib_mlx4_dual_port.jsonl": {"devices": ("rdma_devices", "1")},
    "sysfs/ib_mlx5_hw_counters.jsonl": {"devices": ("rdma_devices", "1")},
    "sysfs/opa_hfi1.jsonl": {"devices": ("rdma_devices", "1")},
    # One file of irdma0 to irdma3 is in the capture.
    "sysfs/irdma_mixed_with_mlx5.jsonl": {"devices": ("names", "irdma0,mlx5_0")},
    "sysfs/port_init_no_sm.jsonl": {"severity": ("severity", "error")},
}
#: Kinds that more than one name is right for: what dmesg prints without stamps is a log daemon's line cut short.
KINDS: Final[dict[str, set[str]]] = {
    "xid": {"dmesg", "syslog", "kmsg"},
    "nvswitch": {"dmesg"},
    "hw": {"dmesg", "syslog"},
    "app": {"app"},
    "rdma_log": {"dmesg", "syslog"},
    "kmsg": {"kmsg", "dmesg", "syslog"},
    "sysfs": {"capture"},
    "numa": {"capture", "lscpu", "numastat", "numa-maps"},
    "topo": {"topo", "smi-list"},
    "dcgm": {"dcgm", "dcgmi", "smi-q"},
}
#: Files that are no recording of anything: read as text, which says nothing.
PROSE: Final = {
    "sysfs/issm_missing_false_positive.txt",
    "sysfs/soperator_flap_rule.txt",
    "numa/vm_single_node_minus1.txt",
    "dcgm/gpu_util_garbage_points.txt",
    "dcgm/unallocated_gpus_vanish.txt",
    "dcgm/xid_79_never_reported.txt",
}


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in EXPECTED.read_text().splitlines()] if EXPECTED.exists() else []


def inputs() -> list[Any]:
    return [pytest.param(row, id=row["file"]) for row in rows() if row["file"].split("/")[0] != BEHAVIOURS]


@pytest.mark.parametrize("case", inputs())
def test_cases_conclude_as_expected(case: dict[str, Any]) -> None:
    file = case["file"]
    found = said(CASES / file)
    left = {key: value for key, value in case["expect"].items() if key not in DISAGREE.get(file, {})}
    missing = [{key: value for key, value in left.items() if not holds(file, row, key, value)} for row in found]
    # What the file as a whole says may stand in several lines: none of it may be missing everywhere.
    nowhere = {key: left[key] for key in left if all(key in lacks for lacks in missing)}
    assert not nowhere, (nowhere, found)
    if left.get("fault", "none") != "none":
        named = [row for row in found if row["fault"] == left["fault"]]
        severity = SAME.get(file, {}).get("severity", ("", left.get("severity")))[1]
        if "device" in left and left["device"] != "unknown" and "device" not in SAME.get(file, {}):
            every = set().union(*(_devices(f"{r['device']} {r.get('devices', '')}") | _counted(r) for r in named))
            assert _devices(left["device"]) <= every, named
        assert any(row["severity"] == (severity or row["severity"]) for row in named), found


def holds(file: str, row: dict[str, Any], key: str, value: Any) -> bool:
    """Whether a line says what is expected under that name, in its own words where `SAME` knows them."""
    ours, expected = SAME.get(file, {}).get(key, (key, str(value)))
    mine = str(row.get(ours, ""))
    if ours == "device":
        return bool(_devices(expected) & (_devices(mine) | _devices(str(row.get("devices", ""))) | _counted(row)))
    if ours in {"xid", "sxid", "ranks"}:
        mine = str(row.get(f"{ours}s") or mine)
        return set(mine.split(",")) == set(expected.split(","))
    return mine.lower() == expected.lower()


def _devices(text: str) -> set[str]:
    """Device names in a text, PCI addresses without their function."""
    found = re.findall(
        r"[0-9a-f]{4,5}:[0-9a-f]{2}:[0-9a-f]{2}|\d+ switches|[\w#]+", re.sub(r"\(links?[\d,]+\)|\.[0-7]\b", "", text)
    )
    return set(found)


def _counted(row: dict[str, Any]) -> set[str]:
    several = [part for part in str(row.get("devices", "")).split(",") if part]
    return {f"{len(several)} switches"}


@pytest.mark.parametrize("case", inputs())
def test_cases_are_guessed_right(case: dict[str, Any]) -> None:
    file = case["file"]
    folder = file.split("/")[0]
    kind = guess.guess(CASES / file).NAME
    assert kind in ({"app"} if file in PROSE else KINDS[folder]), kind
