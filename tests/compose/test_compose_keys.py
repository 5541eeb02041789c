"""`deploy/make-keys.sh`: what is missing is made, in whatever state it finds the volumes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from compose_check import ROOT

from gpuchaos_stream.events.signing import KeyRing, Signer

ROLES = ("control", "operator")


def make(keys: Path) -> None:
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "KEYS": str(keys)}
    done = subprocess.run(["sh", ROOT / "deploy/make-keys.sh"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ended_half_way_it_goes_on_where_it_was(tmp_path: Path) -> None:
    for name in ("ring", *ROLES, "grafana"):
        (tmp_path / name).mkdir()
    half = (sys.executable, "-m", "gpuchaos_stream.cli", "keys", "make", "--role=control", f"--dir={tmp_path / 'ring'}")
    subprocess.run(half, check=True, capture_output=True)
    begun = Signer.load(tmp_path / "ring/control.json").key_id
    (tmp_path / "operator/tokens.new").write_text("operator:half")
    make(tmp_path)
    made = {role: Signer.load(tmp_path / role / f"{role}.json").key_id for role in ROLES}
    assert made["control"] == begun
    assert {key.key_id for key in KeyRing.load(tmp_path / "ring/keyring.json").keys} == set(made.values())
    assert "half" not in (tmp_path / "operator/tokens").read_text()
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        "keyring.json",
        "control.json",
        "operator.json",
        "tokens",
        "admin-password",
    }
