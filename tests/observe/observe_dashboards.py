"""Queries of the dashboards, asked as Grafana would: variables filled with what their own queries offer."""

from __future__ import annotations

import itertools
import math
import time
from functools import cache
from typing import Any, Final

from observe_prometheus import Prometheus
from observe_site import CELL, CLUSTER, CUT, JOB, NODE, SMALL

from gpuchaos_dashboards import PAGES
from gpuchaos_dashboards.queries import Asked, asked, choices, filled

#: Every query of every dashboard.
ASKED: Final[tuple[Asked, ...]] = tuple(each for page in PAGES.values() for each in asked(page().render()))
#: What a person would choose to see the most: the values to try, each of which must be offered.
CHOSEN: Final[dict[str, tuple[str, ...]]] = {
    "cluster": (CLUSTER,),
    "cell": (CELL,),
    "node": (NODE,),
    "training_job": (JOB,),
    # One that recovered in time, and one that a person stopped.
    "experiment_id": (SMALL, CUT),
    "fault": ("process-stop",),
}
#: Queries that nothing here can answer, each with the reason.
NOTHING: Final[dict[str, str]] = {
    "gpuchaos-jobs/What holds ranks back/A": "the made-up sysfs has no cgroups, so nobody's CPU time is cut short",
}
#: Queries that the embedded broker cannot answer, each with the reason.
NEEDS_KAFKA: Final[dict[str, str]] = {
    "gpuchaos-fleet/Clock offset/A": "the embedded broker does not say when it appended a record",
}
#: How far back is looked, seconds: the site is younger.
BACK_S: Final = 900


@cache
def values_of(prometheus: Prometheus, uid: str) -> dict[str, tuple[str, ...]]:
    """Values to try for each variable of a dashboard; fails where its query does not offer them."""
    found: dict[str, tuple[str, ...]] = {}
    for name, selector, label in choices(PAGES[uid]().render()):
        first = {known: values[0] for known, values in found.items()}
        offered = prometheus.api(f"label/{label}/values", **{"match[]": filled(selector, first)})
        assert set(CHOSEN[name]) <= set(offered), f"${name} offers {offered}"
        found[name] = CHOSEN[name]
    return found


def answer(prometheus: Prometheus, what: Asked) -> list[dict[str, Any]]:
    """The series of an answer that have a number in them, for the first values that have one."""
    tried = values_of(prometheus, what.dashboard)
    for values in itertools.product(*tried.values()):
        expr = filled(what.expr, dict(zip(tried, values, strict=True)))
        if what.now:
            result = prometheus.query(expr)
        else:
            now = time.time()
            asked_for = {"query": expr, "start": f"{now - BACK_S}", "end": f"{now}", "step": "4"}
            result = prometheus.api("query_range", **asked_for)["result"]
        found = [each for each in result if any(map(_is_number, each.get("values") or [each.get("value")]))]
        if found:
            return found
    return []


def _is_number(sample: Any) -> bool:
    return math.isfinite(float(sample[1]))
