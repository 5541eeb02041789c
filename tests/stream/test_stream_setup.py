"""What `make demo` installs: what it needs, and nothing that only the tests need."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout whose `.venv` is made, on a machine with neither Java nor Maven nor any tool of the tests."""
    for name in (".ci/setup", "requirements/lock.txt", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "env", "cat", "cut", "dirname", "id", "sha256sum", "true"):
        (programs / name).symlink_to(str(shutil.which(name)))
    _program(programs / "python3", 'if [ "$1" = --version ]; then echo "Python 3.11.7"; fi')
    _program(programs / "apt-get", f'echo "$*" >> {tmp_path}/asked')
    _program(programs / "sudo", 'shift; exec "$@"')
    locked = b"".join((tmp_path / name).read_bytes() for name in ("requirements/lock.txt", "pyproject.toml"))
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.set-up").write_text(f"{hashlib.sha256(locked).hexdigest()} Python 3.11.7")
    return tmp_path


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
    path.chmod(0o755)


def setup(machine: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": str(machine / "bin"), "PYTHON": "python3", "CI": ""}
    command = [str(machine / ".ci/setup"), *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_a_demo_on_a_real_kafka_installs_java_and_maven_alone(machine: Path) -> None:
    done = setup(machine, "kafka")
    assert done.returncode == 0, done.stderr
    asked = (machine / "asked").read_text().splitlines()
    assert asked[-1].endswith("default-jre-headless maven")
    (machine / "bin/apt-get").unlink()
    without = setup(machine, "kafka")
    assert without.returncode == 1
    assert "install default-jre-headless maven yourself" in without.stdout


def test_a_demo_on_the_embedded_broker_installs_nothing(machine: Path) -> None:
    assert setup(machine).returncode == 0
    assert not (machine / "asked").exists()


def test_the_demo_asks_for_what_its_broker_takes() -> None:
    def steps(*words: str) -> list[str]:
        command = ["make", "--no-print-directory", "-n", "demo", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()

    assert steps("BROKER=kafka")[0] == ".ci/setup kafka"
    assert steps("BROKER=embedded")[0] == ".ci/setup"
