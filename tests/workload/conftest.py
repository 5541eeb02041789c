"""Runs of the workload that are ended with their test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from workload_kit import Run, Start, alive


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run in the test's folder; afterwards no process of it is left."""
    runs: list[Run] = []

    def begin(*words: str, folder: Path | None = None) -> Run:
        runs.append(Run(folder or tmp_path / "run", *words))
        return runs[-1]

    yield begin
    for run in runs:
        pids = [rank["pid"] for rank in run.state().get("ranks", [])]
        run.end()
        assert [pid for pid in pids if alive(pid) and not _ends(pid)] == []


def _ends(pid: int) -> bool:
    deadline = time.monotonic() + 5.0
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)
