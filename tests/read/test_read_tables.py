"""Tables that people paste: nvidia-smi, numactl, lscpu, numastat, numa_maps."""

from __future__ import annotations

from pathlib import Path

from read_help import guessed, said, written

TOPO = (
    "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV12\tPIX\tSYS\t0-31\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tPXB\t32-63\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\n"
    "NIC1\tSYS\tPXB\tSYS\t X\n"
    "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_3\n  NIC1: mlx5_7\n"
)


def test_a_topology_table_gives_each_cards_cpus_node_and_nearest_adapter_by_its_real_name(tmp_path: Path) -> None:
    rows = said(written(tmp_path, TOPO))
    assert rows[0]["kind"] == "topo"
    assert (rows[0]["gpus"], rows[0]["nics"], rows[0]["numa"]) == (2, 2, "0:GPU0,1:GPU1")
    by_device = {row["device"]: row for row in rows}
    assert by_device["GPU0"]["nics"] == "mlx5_3"
    assert "nics" not in by_device["GPU1"], "PXB passes more than one bridge: not the nearest"
    assert (by_device["GPU1"]["cpus"], by_device["GPU1"]["numa_node"]) == ("32-63", "1")


def test_escapes_of_a_terminal_do_not_hide_a_table(tmp_path: Path) -> None:
    underlined = TOPO.replace("\tGPU0\tGPU1\tNIC0", "\t\x1b[4mGPU0\tGPU1\tNIC0", 1).replace("ID\n", "ID\x1b[0m\n", 1)
    assert said(written(tmp_path, underlined)) == said(written(tmp_path, TOPO))


def test_a_row_that_is_shorter_than_the_header_has_no_affinity_rather_than_a_wrong_one(tmp_path: Path) -> None:
    rows = said(written(tmp_path, "GPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\tX\n"))
    assert rows[0]["numa"] == "unknown"
    assert "cpus" not in rows[1]


def test_instances_of_a_divided_card_are_counted_under_it(tmp_path: Path) -> None:
    text = (
        "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-11111111-2222-3333-4444-555555555555)\n"
        "  MIG 1g.10gb     Device  0: (UUID: MIG-66666666-7777-5888-9999-aaaaaaaaaaaa)\n"
        "  MIG 2g.20gb Device 1: (UUID: MIG-GPU-11111111-2222-3333-4444-555555555555/3/0)\n"
        "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-bbbbbbbb-2222-3333-4444-555555555555)\n"
    )
    rows = said(written(tmp_path, text))
    assert (rows[0]["gpus"], rows[0]["mig"]) == (2, 2)
    assert [row["device"] for row in rows[1:]] == ["GPU0", "GPU0/MIG0", "GPU0/MIG1", "GPU1"]
    assert (rows[3]["gpu_instance"], rows[3]["compute_instance"]) == (3, 0)
    assert "gpu_instance" not in rows[2], "the new name does not tell it"


def test_nodes_without_cpus_are_not_counted_as_places_for_a_process(tmp_path: Path) -> None:
    text = (
        "NUMA:\n  NUMA node(s):          3\n  NUMA node0 CPU(s):     0-7\n  NUMA node1 CPU(s):\n  NUMA node2 CPU(s):\n"
    )
    row = said(written(tmp_path, text))[0]
    assert (row["kind"], row["total"], row["cpu_nodes"], row["memory_only_nodes"]) == ("lscpu", 3, "0", "1,2")


def test_distances_follow_the_header_where_node_numbers_have_gaps(tmp_path: Path) -> None:
    text = (
        "available: 2 nodes (0,8)\n"
        "node 0 cpus: 0 1 2 3\nnode 0 size: 1000 MB\nnode 0 free: 200 MB\n"
        "node 8 cpus:\nnode 8 size: 500 MB\nnode 8 free: 500 MB\n"
        "node distances:\nnode   0   8\n  0:  10  40\n  8:  40  10\n"
    )
    rows = said(written(tmp_path, text))
    assert (rows[0]["kind"], rows[0]["cpu_nodes"], rows[0]["memory_only_nodes"]) == ("numactl", "0", "8")
    assert rows[2]["distances"] == "0:40,8:10"


def test_a_miss_is_counted_over_all_nodes_and_devices_keep_the_node_that_is_shown_for_them(tmp_path: Path) -> None:
    text = (
        "                           node0           node1\n"
        "numa_hit                  100             200\n"
        "numa_miss                   3               4\n"
        "other_node                  9               9\n"
        "$ cat /sys/bus/pci/devices/0000:3b:00.0/numa_node\n1\n"
        "$ cat /sys/bus/pci/devices/0000:5e:00.0/numa_node\n-1\n"
    )
    rows = said(written(tmp_path, text))
    assert (rows[0]["kind"], rows[0]["nodes"], rows[0]["miss"]) == ("numastat", 2, 7)
    assert {row["device"]: row.get("numa_node") for row in rows[3:]} == {"0000:3b:00.0": 1, "0000:5e:00.0": -1}


def test_memory_of_a_process_is_told_by_node_in_bytes(tmp_path: Path) -> None:
    text = (
        "7f1100000000 default anon=10 dirty=10 N0=10 kernelpagesize_kB=4\n"
        "7f2200000000 prefer (many):0-1 anon=2 dirty=2 N1=2 kernelpagesize_kB=2048\n"
    )
    rows = said(written(tmp_path, text))
    assert (rows[0]["kind"], rows[0]["mappings"], rows[0]["nodes"]) == ("numa-maps", 2, "0,1")
    assert {row["device"]: row["bytes"] for row in rows[1:]} == {"node0": 10 * 4096, "node1": 2 * 2048 * 1024}


def test_an_ecc_mode_that_cannot_be_read_is_a_card_that_needs_a_reset_and_no_zero(tmp_path: Path) -> None:
    text = (
        "==============NVSMI LOG==============\n\nDriver Version                            : 580.10\n"
        "GPU 00000000:C1:00.0\n"
        "    ECC Mode\n"
        "        Current                           : Unknown Error\n"
        "    ECC Errors\n        Volatile\n"
        "            DRAM Uncorrectable            : N/A\n"
        "    Remapped Rows\n        Pending                           : No\n"
        "GPU 00000000:D1:00.0\n"
        "    ECC Mode\n        Current                           : Enabled\n"
        "    ECC Errors\n        Volatile\n            DRAM Uncorrectable            : 0\n"
        "    Remapped Rows\n        Pending                           : No\n"
    )
    bad, good = said(written(tmp_path, text))
    assert (bad["kind"], bad["fault"], bad["severity"], bad["device"]) == (
        "smi-q",
        "gpu_needs_reset",
        "error",
        "0000:c1:00",
    )
    assert (bad["ecc"], bad["remap_pending"], bad["action"]) == ("unreadable", False, "reset_gpu")
    assert (good["fault"], good["device"]) == ("none", "0000:d1:00")


def test_prose_about_these_tables_is_not_taken_for_one(tmp_path: Path) -> None:
    text = "nvidia-smi topo -m shows GPU0 and its CPU Affinity; numa_hit grows; GPU 0: see below (UUID: unknown)\n"
    assert guessed(tmp_path, text) == "app"
