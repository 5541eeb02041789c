from __future__ import annotations

import json
import os
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from workload_kit import Start, free_port


def cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_page_tells_what_the_command_tells_and_prometheus_reads_it(start: Start) -> None:
    port = free_port()
    run = start("--status-port", str(port), "--tls")
    run.until_step(12)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10) as reply:
        page = json.load(reply)
    assert page.keys() == run.status().keys()
    assert (page["state"], page["data_lost"], page["database"]) == ("running", 0, {"state": "none"})
    assert [rank["alive"] for rank in page["ranks"]] == [True] * 4
    assert all(rank["age"] < 30 for rank in page["ranks"])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        families = {family.name: family for family in text_string_to_metric_families(reply.read().decode())}
    assert families["workload_step"].samples[0].value >= 10
    assert len(families["workload_certificate_seconds_left"].samples) == 4
    assert "workload_database_up" not in families
    assert run.stop() == 0


def test_a_run_at_its_own_pace_is_light(start: Start) -> None:
    run = start("--tls", "--pause", "0.06", "--checkpoint-every", "50")
    run.until_step(5)
    begun, before = time.monotonic(), [cpu(run.pid(rank)) for rank in range(4)]
    run.until_more(60)
    wall = time.monotonic() - begun
    shares = [(cpu(run.pid(rank)) - used) / wall for rank, used in enumerate(before)]
    assert max(shares) < 0.25, shares
    assert run.stop() == 0


def test_a_launcher_that_was_killed_is_dead(start: Start) -> None:
    run = start()
    run.until_step(2)
    run.end()
    assert run.status()["state"] == "dead"
