"""Grafana dashboards of GPUChaos Stream, written in Python. `python -m gpuchaos_dashboards --write` makes the JSON.

A dashboard is a file with one `page()`; `parts.py` has the panels, `queries.py` what stands for a variable, `lint.py`
what must hold of every one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpuchaos_dashboards import experiment, fleet, jobs, loop, slo
from gpuchaos_dashboards.pages import Page

#: Where the JSON is.
FOLDER: Final = Path(__file__).resolve().parents[1]

#: uid → its dashboard.
PAGES: Final[dict[str, Callable[[], Page]]] = {
    "gpuchaos-loop": loop.page,
    "gpuchaos-experiment": experiment.page,
    "gpuchaos-fleet": fleet.page,
    "gpuchaos-jobs": jobs.page,
    "gpuchaos-slo": slo.page,
}


def rendered(uid: str) -> str:
    """A dashboard as its file has it: sorted keys, so that a change is seen where it is."""
    return json.dumps(PAGES[uid]().render(), sort_keys=True, indent=2, ensure_ascii=False) + "\n"
