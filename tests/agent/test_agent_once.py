"""`gpuchaos-agent --once --print` on this very machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuchaos_stream.events.frame import TelemetryFrame

NUMA = Path("/sys/devices/system/node")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    state = tmp_path_factory.mktemp("once")
    command = [sys.executable, "-m", "gpuchaos_agent.agent", "--once", "--print", "--state-dir", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_frame_is_one_of_the_contract(printed: dict[str, Any]) -> None:
    frame = TelemetryFrame.model_validate(printed["frame"])
    assert frame.layout.width == printed["numbers"]
    assert {group.kind for group in frame.layout.groups} == {group["kind"] for group in printed["groups"]}


@pytest.mark.skipif(not NUMA.is_dir(), reason="this kernel shows no NUMA nodes")
def test_numa_is_what_the_kernel_says(printed: dict[str, Any]) -> None:
    shown = {
        device["id"]: device for group in printed["groups"] if group["kind"] == "numa" for device in group["devices"]
    }
    assert set(shown) == {path.name.removeprefix("node") for path in NUMA.glob("node[0-9]*")}
    for name, device in shown.items():
        lines = (NUMA / f"node{name}" / "meminfo").read_text().splitlines()
        total = next(int(line.split()[3]) * 1024 for line in lines if "MemTotal" in line)
        assert 0 < device["memory_free_bytes"] < total


@pytest.mark.root
def test_the_position_in_the_kernel_log_is_named(printed: dict[str, Any]) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert printed["sources"]["kernel_log"]["boot_id"] == boot
    assert printed["sources"]["kernel_log"]["position"] > 0


def test_what_is_absent_is_said_in_words(printed: dict[str, Any]) -> None:
    present = {group["kind"] for group in printed["groups"]}
    for kind in ("gpu", "rdma"):
        assert (kind in present) != bool(printed["absent"].get(kind)), f"{kind} is neither there nor said to be absent"
