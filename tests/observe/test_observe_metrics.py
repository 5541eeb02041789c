"""Names of metrics: Prometheus' conventions (prometheus.io, "Metric and label naming"), and bounded labels."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gpuchaos_agent import metrics as agent
from gpuchaos_stream.notify import metrics as notifications
from gpuchaos_stream.observe import metrics as control
from gpuchaos_stream.stream import watchdog

Metric = Counter | Gauge | Histogram

ROOT: Final = Path(__file__).resolve().parents[2]
#: Module that defines metrics → how their names begin.
PAGES: Final[dict[ModuleType, str]] = {
    control: "gpuchaos_",
    watchdog: "gpuchaos_",
    agent: "gpuchaos_agent_",
    notifications: "gpuchaos_notify_",
}
#: Names that another project fixed, so that its dashboards work on ours (Sloth).
FOREIGN: Final = {"slo_period_error_budget_remaining_ratio"}
#: Endings that say what is not a base unit of Prometheus.
NOT_BASE: Final = re.compile(r"_(ms|milliseconds|minutes|hours|kb|kilobytes|megabytes|mb|percent|pct)(_total)?$")
#: Metrics that have series for a run: of so many runs at most (tests/loop/test_loop_gauges.py).
OF_A_RUN: Final = "gpuchaos_experiment_"
#: What would make a series for each node, device or run.
UNBOUNDED: Final = {"entity", "gpu", "pid", "experiment_id", "fault_id", "incident_id", "id", "anomaly_id"}


def of(page: ModuleType) -> list[Metric]:
    return [each for each in vars(page).values() if isinstance(each, Counter | Gauge | Histogram)]


ALL: Final = [pytest.param(each, prefix, id=each._name) for page, prefix in PAGES.items() for each in of(page)]


def name(metric: Metric) -> str:
    """The name as it is exposed."""
    return f"{metric._name}_total" if isinstance(metric, Counter) else metric._name


def test_every_page_has_metrics() -> None:
    assert all(len(of(page)) >= 3 for page in PAGES)


@pytest.mark.parametrize(("metric", "prefix"), ALL)
def test_a_metric_is_named_after_the_product_in_small_letters(metric: Metric, prefix: str) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name(metric))
    assert name(metric).startswith(prefix) or name(metric) in FOREIGN


@pytest.mark.parametrize(("metric", "prefix"), ALL)
def test_only_counters_end_in_total(metric: Metric, prefix: str) -> None:
    assert name(metric).endswith("_total") is isinstance(metric, Counter)
    assert "_total_" not in name(metric)


@pytest.mark.parametrize(("metric", "prefix"), ALL)
def test_units_are_base_units(metric: Metric, prefix: str) -> None:
    assert not NOT_BASE.search(name(metric))
    if isinstance(metric, Histogram):
        assert name(metric).endswith(("_seconds", "_bytes", "_ratio")), "a distribution has a unit"


@pytest.mark.parametrize(("metric", "prefix"), ALL)
def test_a_metric_says_what_it_is(metric: Metric, prefix: str) -> None:
    text = metric._documentation
    assert text[0].isupper() or text[0].isdigit()
    assert len(text.split()) >= 2


@pytest.mark.parametrize(("metric", "prefix"), ALL)
def test_labels_are_bounded_by_configuration(metric: Metric, prefix: str) -> None:
    labels = set(metric._labelnames)
    if name(metric).startswith(OF_A_RUN):
        labels -= {"experiment_id"}
    assert not labels & UNBOUNDED
    assert not labels & {"le", "quantile"}, "Prometheus' own"
    # One agent is one node: its name may be a label of the agent's info alone.
    assert "node" not in labels or metric is agent.INFO


def test_promtool_finds_nothing_to_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    registry = CollectorRegistry()
    for page in PAGES:
        for each in of(page):
            registry.register(each)
    # `frames_waiting` and the like are gauges without a unit, of which promtool has no opinion.
    done = subprocess.run(
        [promtool, "check", "metrics"], input=generate_latest(registry), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")


def _used() -> set[tuple[str, str]]:
    """What the code of both packages uses: `metrics.NAME`, or `NAME.labels(…)` at home."""
    found = set()
    for folder in ("gpuchaos_stream", "agents/gpuchaos_agent"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Attribute):
                    continue
                owner = node.value
                if isinstance(owner, ast.Name):
                    # `metrics.NAME` alone as well: gauges of a loop are named in tables and generators.
                    found |= {(path.stem, owner.id), (owner.id, node.attr)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_no_metric_is_shown_that_nobody_feeds(page: ModuleType) -> None:
    used = _used()
    module = page.__name__.rsplit(".", 1)[-1]
    names = [name for name, each in vars(page).items() if isinstance(each, Counter | Gauge | Histogram)]
    assert [name for name in names if (module, name) not in used] == []
