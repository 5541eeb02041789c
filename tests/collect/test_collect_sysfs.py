from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.collect import files, numa, pci
from gpuchaos_agent.collect.base import Reading
from gpuchaos_agent.collect.counters import Rates
from gpuchaos_agent.collect.node import NodeCollector
from gpuchaos_agent.collect.numa import NumaCollector
from gpuchaos_agent.collect.rdma import RdmaCollector
from gpuchaos_stream.events.metrics import METRICS


def plant(root: Path, tree: dict[str, str]) -> Path:
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def table(reading: Reading, group: int = 0) -> dict[tuple[str, str], float | None]:
    chosen = reading.groups[group]
    return {
        (device, metric): value
        for metric, column in zip(chosen.layout.metrics, chosen.columns, strict=True)
        for device, value in zip(chosen.layout.ids, column, strict=True)
    }


def numastat(local: int, other: int) -> str:
    return f"numa_hit {local}\nnuma_miss 0\nlocal_node {local}\nother_node {other}\n"


NODES = "devices/system/node"


def test_numa_rates_are_increments_per_second_of_local_and_other_pages(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            f"{NODES}/online": "0,8\n",
            f"{NODES}/node0/meminfo": "Node 0 MemTotal: 10 kB\nNode 0 MemFree: 3 kB\n",
            f"{NODES}/node0/numastat": numastat(100, 10),
            f"{NODES}/node8/numastat": numastat(5, 5),
        },
    )
    collector = NumaCollector(tmp_path)
    first = table(collector.read(10.0))
    plant(tmp_path, {f"{NODES}/node0/numastat": numastat(300, 20), f"{NODES}/node8/numastat": numastat(4, 5)})
    second = table(collector.read(12.0))
    assert first[("0", "memory_free_bytes")] == 3 * 1024
    assert first[("0", "local_rate")] is None
    assert (second[("0", "local_rate")], second[("0", "remote_rate")]) == (100.0, 5.0)
    # Node 8 has no meminfo; its counter went back, which is a reset and no rate.
    assert (second[("8", "memory_free_bytes")], second[("8", "local_rate")]) == (None, None)
    assert second[("8", "remote_rate")] == 0.0


def test_a_machine_without_numa_says_so(tmp_path: Path) -> None:
    reading = NumaCollector(tmp_path).read(0.0)
    assert reading.groups == ()
    assert "no NUMA nodes" in reading.absent["numa"]


def test_this_machines_numa_is_read() -> None:
    if not Path("/sys/devices/system/node/online").exists():
        reading = NumaCollector(Path("/sys")).read(0.0)
        assert "numa" in reading.absent
        return
    collector = NumaCollector(Path("/sys"))
    collector.read(1.0)
    reading = collector.read(2.0)
    node = reading.places.numa[0]
    assert (table(reading)[(node, "memory_free_bytes")] or 0) > 0
    assert (table(reading)[(node, "local_rate")] or 0) >= 0
    every = frozenset().union(*numa.cpus(Path("/sys") / NODES).values())
    assert os.sched_getaffinity(0) <= every


def test_minus_one_is_an_unknown_node_unless_there_is_only_one() -> None:
    assert numa.device_node(-1.0, (0, 1)) is None
    assert numa.device_node(-1.0, (3,)) == 3
    assert numa.device_node(None, (0, 1)) is None
    assert numa.device_node(1.0, (0, 1)) == 1


@given(st.sets(st.integers(0, 500), max_size=60))
def test_a_kernel_list_of_ids_is_read_back(ids: set[int]) -> None:
    parts: list[str] = []
    for number in sorted(ids):
        if parts and int(parts[-1].split("-")[-1]) == number - 1:
            parts[-1] = f"{parts[-1].split('-')[0]}-{number}"
        else:
            parts.append(str(number))
    assert files.id_list(",".join(parts) + "\n") == tuple(sorted(ids))


@given(st.text(max_size=100))
def test_what_is_no_list_of_ids_is_read_without_an_error(text: str) -> None:
    assert all(number >= 0 for number in files.id_list(text))


@given(st.lists(st.integers(0, 2**64), min_size=2, max_size=20))
def test_a_rate_is_never_negative_and_a_reset_is_unknown(values: list[int]) -> None:
    rates = Rates()
    given_out = [rates.rate("x", float(value), float(now)) for now, value in enumerate(values)]
    assert given_out[0] is None
    for before, after, rate in zip(values, values[1:], given_out[1:], strict=False):
        assert (rate is None) == (float(after) < float(before))
        assert rate is None or rate >= 0


def test_a_rate_after_an_unreadable_tick_starts_anew() -> None:
    rates = Rates()
    assert [rates.rate("x", value, now) for value, now in ((1.0, 0.0), (None, 1.0), (9.0, 2.0), (11.0, 4.0))] == [
        None,
        None,
        None,
        1.0,
    ]


def port(
    path: str, *, state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", received: str = "0"
) -> dict[str, str]:
    return {
        f"{path}/state": f"{state}\n",
        f"{path}/phys_state": "5: LinkUp\n",
        f"{path}/rate": f"{rate}\n",
        f"{path}/counters/port_rcv_data": f"{received}\n",
        f"{path}/counters/link_downed": "3\n",
        f"{path}/hw_counters/lifespan": "12\n",
        f"{path}/hw_counters/out_of_sequence": "7\n",
    }


IB = "class/infiniband"


def test_rdma_data_counters_are_words_of_four_bytes(tmp_path: Path) -> None:
    plant(tmp_path, port(f"{IB}/mlx5_0/ports/1", received="1000"))
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    plant(tmp_path, port(f"{IB}/mlx5_0/ports/1", received="1250"))
    values = table(collector.read(2.0))
    assert values[("mlx5_0", "rx_bytes_rate")] == 500.0
    assert values[("mlx5_0", "rate_bits")] == 400e9
    assert values[("mlx5_0", "link_downed_rate")] == 0.0
    assert values[("mlx5_0", "tx_bytes_rate")] is None


def test_a_port_that_is_not_active_has_no_rate(tmp_path: Path) -> None:
    plant(tmp_path, port(f"{IB}/mlx5_0/ports/1", state="1: DOWN", rate="10 Gb/sec (4X SDR)"))
    values = table(RdmaCollector(tmp_path).read(0.0))
    assert (values[("mlx5_0", "port_active")], values[("mlx5_0", "rate_bits")]) == (0.0, None)


def test_efa_counts_bytes(tmp_path: Path) -> None:
    path = f"{IB}/efa_0/ports/1"
    plant(tmp_path, {f"{path}/state": "4: ACTIVE\n", f"{path}/hw_counters/rx_bytes": "100\n"})
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    plant(tmp_path, {f"{path}/hw_counters/rx_bytes": "300\n"})
    assert table(collector.read(1.0))[("efa_0", "rx_bytes_rate")] == 200.0


def test_one_unreadable_counter_or_port_hides_no_other(tmp_path: Path) -> None:
    plant(tmp_path, port(f"{IB}/mlx5_0/ports/1"))
    plant(tmp_path, {f"{IB}/mlx5_0/ports/1/counters/symbol_error": "N/A (no PMA)\n"})
    (tmp_path / IB / "mlx5_0/ports/1/counters/port_rcv_errors").mkdir()
    (tmp_path / IB / "irdma0/ports/1").mkdir(parents=True)
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    values = table(collector.read(1.0))
    assert values[("mlx5_0", "out_of_sequence_rate")] == 0.0
    assert values[("mlx5_0", "symbol_error_rate")] is None
    assert values[("mlx5_0", "rcv_errors_rate")] is None
    assert values[("irdma0", "port_active")] is None


def test_rdma_ports_have_their_configured_rail_and_their_numa_node(tmp_path: Path) -> None:
    plant(tmp_path, {f"{NODES}/online": "0-1\n"})
    for number in (0, 2, 10):
        plant(tmp_path, port(f"{IB}/mlx5_{number}/ports/1"))
        plant(tmp_path, {f"{IB}/mlx5_{number}/device/numa_node": f"{number % 3 - 1}\n"})
    places = RdmaCollector(tmp_path, {"mlx5_2": "rail-2"}).read(0.0).places.ports
    assert [(place.name, place.rail, place.numa_node) for place in places] == [
        ("mlx5_0", None, None),
        ("mlx5_2", "rail-2", 1),
        ("mlx5_10", None, 0),
    ]


def test_absent_rdma_is_said_in_words(tmp_path: Path) -> None:
    assert "no RDMA driver loaded" in RdmaCollector(tmp_path).read(0.0).absent["rdma"]
    (tmp_path / IB).mkdir(parents=True)
    assert "no RDMA device" in RdmaCollector(tmp_path).read(0.0).absent["rdma"]


def test_node_cpu_share_is_of_the_time_between_two_reads(tmp_path: Path) -> None:
    plant(tmp_path, {"stat": "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1\n", "loadavg": "1.50 1 1 1/1 1\n"})
    collector = NodeCollector(tmp_path)
    assert table(collector.read(0.0))[("0", "cpu_busy_ratio")] is None
    plant(tmp_path, {"stat": "cpu  125 0 100 770 105 0 0 0 0 0\n"})
    values = table(collector.read(1.0))
    assert values[("0", "cpu_busy_ratio")] == pytest.approx(0.25)
    assert values[("0", "load1")] == 1.5


def test_node_pressure_and_memory_are_ratios(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "meminfo": "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n",
            "pressure/memory": "some avg10=12.50 avg60=0.00 avg300=0.00 total=0\nfull avg10=1.00 avg60=0\n",
        },
    )
    values = table(NodeCollector(tmp_path).read(0.0))
    assert values[("0", "memory_available_ratio")] == 0.25
    assert values[("0", "pressure_memory_ratio")] == 0.125
    assert values[("0", "pressure_cpu_ratio")] is None


def test_a_kernel_without_pressure_information_is_said(tmp_path: Path) -> None:
    plant(tmp_path, {"loadavg": "0.1 0 0\n"})
    assert "PSI" in NodeCollector(tmp_path).read(0.0).absent["node.pressure"]


def test_this_machine_is_read() -> None:
    collector = NodeCollector(Path("/proc"))
    collector.read(0.0)
    values = table(collector.read(1.0))
    assert 0 < (values[("0", "memory_available_ratio")] or 0) < 1
    assert (values[("0", "load1")] or 0) >= 0


def test_gpus_are_found_in_bus_order_and_bridges_are_none(tmp_path: Path) -> None:
    def device(address: str, vendor: str, kind: str) -> dict[str, str]:
        return {
            f"bus/pci/devices/{address}/vendor": f"{vendor}\n",
            f"bus/pci/devices/{address}/class": f"{kind}\n",
        }

    plant(tmp_path, device("0000:c1:00.0", "0x10de", "0x030200"))
    plant(tmp_path, device("0000:1b:00.0", "0x10de", "0x030000"))
    plant(tmp_path, device("0000:20:00.0", "0x10de", "0x068000"))
    plant(tmp_path, device("0000:00:02.0", "0x8086", "0x030000"))
    assert pci.gpus(tmp_path) == ("0000:1b:00", "0000:c1:00")


@pytest.mark.parametrize("module", ["node", "numa", "rdma", "process", "nvml"])
def test_collectors_use_only_metrics_of_the_contract(module: str) -> None:
    import importlib

    kind = {"nvml": "gpu"}.get(module, module)
    names = importlib.import_module(f"gpuchaos_agent.collect.{module}").METRICS
    assert {(kind, name) for name in names} <= set(METRICS)
    assert len(set(names)) == len(names)
