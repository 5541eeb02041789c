"""`make demo-faults` itself: minutes of it, run by `make soak`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nine_faults import guest, here
from nine_faults.trial import EXAMPLES

pytestmark = [pytest.mark.root, pytest.mark.soak]


def run(folder: Path, *words: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit status, rows by fault, and what it complained of."""
    done = subprocess.run(
        [sys.executable, "-m", "nine_faults", "--out", str(folder / "out"), "-o", "json", *words],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, {row["fault"]: row for row in rows}, done.stderr


@pytest.mark.timeout(1500)
def test_each_of_the_nine_is_injected_detected_and_recovered_from_without_loss(tmp_path: Path) -> None:
    status, rows, complaints = run(tmp_path)
    assert status == 0, complaints
    assert set(rows) == {*here.FAULTS, *guest.FAULTS}
    assert {row["verdict"] for row in rows.values()} == {"passed"}
    assert {row["samples_lost"] for row in rows.values()} == {0}
    assert len(rows["memory-corruption"]["checkpoints_refused"]) == 1
    assert rows["memory-corruption"]["bad_weights_loaded"] == 0
    assert all(set(row["recovery_checks"].values()) == {"ok"} for row in rows.values())


@pytest.mark.timeout(900)
def test_without_checksums_the_damaged_checkpoint_is_loaded_and_the_recovery_check_fails(tmp_path: Path) -> None:
    status, rows, _ = run(tmp_path, "--only", "memory-corruption", "--no-checksums")
    row = rows["memory-corruption"]
    assert status == 1
    assert row["verdict"] == "failed"
    assert row["recovery_checks"]["no-bad-weights"] == "bad"
    assert row["bad_weights_loaded"] == 1
