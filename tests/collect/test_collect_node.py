from __future__ import annotations

from pathlib import Path

import pytest
from collect_trees import plant, table

from gpuchaos_agent.collect.node import NodeCollector


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
