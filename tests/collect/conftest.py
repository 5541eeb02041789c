"""Leaves out the comparison with cases that are not part of the project where they are not beside it."""

from __future__ import annotations

from pathlib import Path

_CASES = Path(__file__).parents[2] / "../shared/cases"

collect_ignore_glob = [] if _CASES.is_dir() else ["*_shared_cases.py"]


def pytest_report_header() -> str:
    return "shared collector cases: " + ("compared" if _CASES.is_dir() else "absent, their comparison is left out")
