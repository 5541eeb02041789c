"""The whole agent in a process of its own, on the fake library as a driver's package would install it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from nvml_fake import healthy, write


def run(folder: Path, script: Path, code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_NVML_SCRIPT": str(script)}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


READ = """
import json, time
from pathlib import Path
from gpuchaos_agent.collect.gpu import GpuCollector
collector = GpuCollector(Path("/sys"), first_wait_s=10.0, wait_s=5.0)
collector.read(time.time())
reading = collector.read(time.time())
collector.close()
print(json.dumps([[g.layout.kind, len(g.layout.ids)] for g in reading.groups]), reading.absent)
"""


def test_the_binding_finds_the_library_by_its_name_and_reads_eight_cards(nvml_folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "world", healthy(8))
    done = run(nvml_folder, tmp_path / "world", READ)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.split(" {")[0]) == [["gpu", 8], ["nvlink", 144]]


def test_a_process_ends_at_once_though_a_call_hangs(nvml_folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "world", [*healthy(2), "hang 1 nvmlDeviceGetUUID 3600"])
    done = run(nvml_folder, tmp_path / "world", READ.replace("10.0", "0.5").replace("5.0", "0.1"))
    assert done.returncode == 0, done.stderr
    assert '["gpu", 1]' in done.stdout


def test_the_real_signal_to_end_shuts_the_library_down(nvml_folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "world", healthy(2))
    code = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path
from gpuchaos_agent.collect.gpu import GpuCollector
collector = GpuCollector(Path("/sys"), first_wait_s=10.0)
collector.read(time.time())
library = ctypes.CDLL("libnvidia-ml.so.1")
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
assert library.fake_nvml_open() == 1
os.kill(os.getpid(), signal.SIGTERM)
ended.wait(10)
collector.close()
print(library.fake_nvml_open(), library.fake_nvml_inits(), library.fake_nvml_shutdowns())
"""
    done = run(nvml_folder, tmp_path / "world", code)
    assert done.stdout.split() == ["0", "1", "1"], done.stderr
