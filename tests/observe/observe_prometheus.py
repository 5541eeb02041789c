"""A real Prometheus for tests: it scrapes what it is told each second, with our rules, and answers queries."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from lab import waiting

from gpuchaos_stream.stream.child import Child

RULES: Final = Path(__file__).resolve().parents[2] / "rules/prometheus/gpuchaos.rules.yaml"
#: Asks a server ten times a second.
until = partial(waiting.until, every_s=0.1)


def free_port() -> int:
    """A port of loopback that nobody had a moment ago."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


class Prometheus:
    """One that runs; `url` is where it listens."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(timeout=10)

    def api(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer of its API."""
        body = self.http.get(f"{self.url}/api/v1/{path}", params=parameters).json()
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples of an expression, now: `metric` and `value` of each."""
        result: list[dict[str, Any]] = self.api("query", query=expr)["result"]
        return result

    def values(self, expr: str) -> list[float]:
        """Their values."""
        return [float(sample["value"][1]) for sample in self.query(expr)]

    def ready(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/-/ready", timeout=2).status_code == 200
        return False


@contextlib.contextmanager
def prometheus(folder: Path, targets: dict[str, int]) -> Iterator[Prometheus]:
    """Runs one that scrapes loopback ports, by job, each second."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: prometheus)")
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "prometheus.yaml"
    jobs = [{"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{at}"]}]} for name, at in targets.items()]
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config.write_text(yaml.safe_dump({"global": every, "rule_files": [str(RULES)], "scrape_configs": jobs}))
    argv = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    child = Child("prometheus", argv, log_file=folder / "prometheus.log").start()
    try:
        running = Prometheus(f"http://127.0.0.1:{port}")
        until(lambda: running.ready() or not child.running, 30, f"no Prometheus: {child.tail()}")
        assert child.running, child.tail()
        with running.http:
            yield running
    finally:
        child.kill()
