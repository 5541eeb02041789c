"""The collector on this machine as it is. What may happen to cards is played in `tests/nvml`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# In a process of its own: other tests load another library under the same name.
READ = """
import json, time
from pathlib import Path
from gpuchaos_agent.collect.gpu import GpuCollector
collector = GpuCollector(Path("/sys"), first_wait_s=20.0)
reading = collector.read(time.time())
collector.close()
rows = {metric: column for group in reading.groups if group.layout.kind == "gpu"
        for metric, column in zip(group.layout.metrics, group.columns)}
print(json.dumps([rows, reading.absent, [place.uuid for place in reading.places.gpus]]))
"""


def test_this_machines_gpus_are_read_where_there_are_any() -> None:
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, timeout=60, check=True)
    rows, absent, uuids = json.loads(done.stdout)
    if not rows:
        assert absent["gpu"]
        pytest.skip(f"no GPU: {absent['gpu']}")
    assert all((total or 0) > 1e9 for total in rows["memory_total_bytes"])
    assert all(uuid.startswith("GPU-") for uuid in uuids)
