"""The table of rights, tried: root with no capability cannot do a fault, root with those of its row can."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import yaml
from helm_chart import CHART

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root: rights are taken from it")]

NEEDS: Final[dict[str, Any]] = yaml.safe_load((CHART / "files/needs.yaml").read_text())["faults"]
#: Whose things are hurt: a user that is nobody's.
USER: Final = 65534


@pytest.fixture
def job(tmp_path: Path) -> Iterator[int]:
    """A process of another user, which the agent's settings in `agent.yaml` know as a job; and its checkpoint."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    np.save(folder / "weights.npy", np.arange(4096, dtype=np.float32))
    os.chown(folder / "weights.npy", USER, USER)
    os.chown(folder, USER, USER)
    (folder / "weights.npy").chmod(0o600)
    folder.chmod(0o700)
    process = subprocess.Popen(["sleep", "600"], user=USER, group=USER, extra_groups=[])
    try:
        settings = {
            "node": "n1",
            "state_dir": str(tmp_path / "state"),
            "jobs": [{"job": "toy", "pid": process.pid}],
            "corruptible": [str(folder)],
        }
        (tmp_path / "agent.yaml").write_text(yaml.safe_dump(settings))
        yield process.pid
    finally:
        process.kill()
        process.wait()


def ordered(folder: Path, row: dict[str, Any] | None, words: str, *, within: str = "") -> str:
    """What the agent says to a fault ordered by hand, as root with a row's capabilities alone; `within` goes first."""
    given = "".join(f",+{name.lower()}" for name in (row or {}).get("capabilities", {}))
    agent = [sys.executable, "-m", "gpuchaos_agent.agent", "--config", "agent.yaml", "inject", *shlex.split(words)]
    rights = ["setpriv", f"--bounding-set=-all{given}", "--inh-caps=-all"]
    line = f"{within} exec {shlex.join([*rights, *agent, '--seconds', '0.3'])}"
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", line], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_a_process_of_another_user_is_stopped_with_kill_and_not_without(tmp_path: Path, job: int) -> None:
    words = f"process-stop process/n1/{job}"
    assert "Operation not permitted" in ordered(tmp_path, None, words)
    assert "injected" in ordered(tmp_path, NEEDS["process-stop"], words)


def test_a_checkpoint_of_another_user_is_corrupted_and_mended_with_its_row(tmp_path: Path, job: int) -> None:
    assert job
    path = tmp_path / "theirs/weights.npy"
    before = path.read_bytes()
    words = f"memory-corruption node/n1 --param plane=file --param path={path}"
    assert "Permission denied" in ordered(tmp_path, None, words)
    said = ordered(tmp_path, NEEDS["memory-corruption"]["forms"]["file"], words)
    assert "injected" in said, said
    assert "undone, and verified gone" in said
    assert path.read_bytes() == before


def test_a_volume_of_another_user_is_filled_with_its_row(tmp_path: Path, job: int) -> None:
    assert job
    volume = tmp_path / "volume"
    volume.mkdir()
    within = f"mount -t tmpfs -o size=4m,uid={USER},mode=700 none {volume};"
    words = f"storage-disconnect node/n1 --param mode=full --param path={volume}"
    assert "injected" not in ordered(tmp_path, None, words, within=within)
    said = ordered(tmp_path, NEEDS["storage-disconnect"]["forms"]["full"], words, within=within)
    assert "probe=ENOSPC" in said, said
    assert "undone, and verified gone" in said


def test_packets_are_dropped_with_net_admin_and_not_without(tmp_path: Path, job: int) -> None:
    assert job
    words = "network-partition node/n1 --param peers=10.9.9.9"
    up = "ip link set lo up;"
    assert "lacks CAP_NET_ADMIN" in ordered(tmp_path, None, words, within=up)
    said = ordered(tmp_path, NEEDS["network-partition"], words, within=up)
    assert "lacks" not in said
    assert "undone, and verified gone" in said, said
