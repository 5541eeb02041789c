"""A worker that is started while its broker is away waits for it, alive and not ready."""

from __future__ import annotations

import contextlib
from pathlib import Path

import httpx
from lab.waiting import until

from gpuchaos_stream.stream.brokers import LOOPBACK, RunningBroker, free_ports
from gpuchaos_stream.stream.house import READY, House


def test_a_worker_waits_for_its_broker_and_then_begins(own_kafka: RunningBroker, tmp_path: Path) -> None:
    (port,) = free_ports(LOOPBACK, 1)
    with House(tmp_path, broker=None, settings=own_kafka.settings) as house:
        own_kafka.stop()
        worker = house.worker("worker", "--status-port", str(port))
        worker.wait_for("no broker yet")
        assert _asked(port, "healthz") == (200, "ok")
        assert _asked(port, "readyz") == (503, "no broker has answered yet")
        own_kafka.restart()
        worker.wait_for(READY)
        until(lambda: _asked(port, "readyz") == (200, "ok"), 30, "it is not ready", every_s=0.1)


def _asked(port: int, path: str) -> tuple[int, str] | None:
    with contextlib.suppress(httpx.HTTPError):
        answer = httpx.get(f"http://127.0.0.1:{port}/{path}")
        return answer.status_code, answer.text.strip()
    return None
