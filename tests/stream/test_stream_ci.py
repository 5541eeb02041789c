"""What CI demands of the test suite itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"
#: Where pytest finds the laboratory that the suite knows.
EXAMPLES = Path(__file__).parents[2] / "examples"

SUITE = """
import pytest

@pytest.mark.skip(reason="no luck today")
def test_without_luck(): ...

@pytest.mark.skip(reason="no NVIDIA GPU here")
def test_without_gpu(): ...

def test_inside():
    pytest.skip("tool is missing")

@pytest.mark.xfail(reason="known")
def test_known():
    raise ValueError
"""


MODULE = "import pytest\npytest.skip('no module', allow_module_level=True)"


def outcome(folder: Path, ci: str, suite: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_suite.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    env = {**os.environ, "CI": ci, "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[-1]


def test_in_ci_a_skipped_test_is_a_failed_one_unless_it_lacks_a_gpu(tmp_path: Path) -> None:
    last = outcome(tmp_path, "true", SUITE)
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in last  # the error is the mark, seen before the test began


def test_in_ci_a_skipped_module_is_an_error(tmp_path: Path) -> None:
    assert "1 error" in outcome(tmp_path, "true", MODULE)


def test_elsewhere_a_skip_is_a_skip(tmp_path: Path) -> None:
    assert "3 skipped, 1 xfailed" in outcome(tmp_path, "", SUITE)
