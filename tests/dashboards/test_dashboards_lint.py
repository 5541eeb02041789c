"""Dashboards are what the code makes, and nothing is wrong with them; the lint finds each kind of mistake."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from gpuchaos_dashboards import FOLDER, PAGES, rendered, series
from gpuchaos_dashboards.lint import World, problems
from gpuchaos_dashboards.queries import filled, names, panels

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
LABELS: Final = series.documented((DOCS / "metrics.md").read_text())
WORLD: Final = World(LABELS, frozenset(PAGES), frozenset(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")))

Dashboard = dict[str, Any]


@pytest.mark.parametrize("uid", PAGES)
def test_the_file_of_a_dashboard_is_what_the_code_makes(uid: str) -> None:
    assert (FOLDER / f"{uid}.json").read_text() == rendered(uid), "run `make dashboards`"


def test_there_is_no_file_of_a_dashboard_that_nothing_makes() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(PAGES)


def test_the_command_says_which_file_is_old_and_ends_with_1(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, gpuchaos_dashboards as d, gpuchaos_dashboards.__main__ as m;"
        f"m.FOLDER = pathlib.Path({str(tmp_path)!r});"
        "first = m.main([]); m.main(['--write']); sys.exit(10 * first + m.main(['--check']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(FOLDER)},
        check=False,
    )
    assert (done.returncode, done.stderr.count("run `make dashboards`")) == (10, len(PAGES)), done.stderr
    assert (tmp_path / "gpuchaos-loop.json").read_text() == rendered("gpuchaos-loop")


@pytest.mark.parametrize("uid", PAGES)
def test_nothing_is_wrong_with_a_dashboard(uid: str) -> None:
    assert problems(json.loads(rendered(uid)), WORLD) == []


@pytest.fixture
def loop() -> Dashboard:
    """A dashboard to put a mistake into."""
    dashboard: Dashboard = json.loads(rendered("gpuchaos-loop"))
    assert problems(dashboard, WORLD) == []
    return copy.deepcopy(dashboard)


def panel(dashboard: Dashboard, kind: str = "timeseries") -> dict[str, Any]:
    return next(each for each in panels(dashboard) if each["type"] == kind)


def ask(expr: str, kind: str = "timeseries") -> Callable[[Dashboard], None]:
    def put(dashboard: Dashboard) -> None:
        panel(dashboard, kind)["targets"][0]["expr"] = expr

    return put


def variable(name: str, **fields: Any) -> Callable[[Dashboard], None]:
    def put(dashboard: Dashboard) -> None:
        next(each for each in dashboard["templating"]["list"] if each["name"] == name).update(fields)

    return put


def on_panel(change: Callable[[dict[str, Any]], object], kind: str = "timeseries") -> Callable[[Dashboard], None]:
    return lambda dashboard: change(panel(dashboard, kind))  # type: ignore[return-value]


def defaults(change: Callable[[dict[str, Any]], object], kind: str = "timeseries") -> Callable[[Dashboard], None]:
    return on_panel(lambda each: change(each["fieldConfig"]["defaults"]), kind)


def many(dashboard: Dashboard) -> None:
    variable("cluster", multi=True)(dashboard)


MISTAKES: Final[dict[str, tuple[Callable[[Dashboard], object], str]]] = {
    "old schema": (lambda d: d.update(schemaVersion=36), "schemaVersion is 36"),
    "editable": (lambda d: d.update(editable=True), "can be edited"),
    "no uid": (lambda d: d.update(uid=""), "no uid"),
    "no text": (lambda d: d.update(panels=[p for p in d["panels"] if p["type"] != "text"]), "how to read it"),
    "a null": (on_panel(lambda p: p["options"].update(legend=None)), "options.legend is null"),
    "id twice": (lambda d: panel(d).update(id=panel(d, "stat")["id"]), "have the id"),
    "no title": (on_panel(lambda p: p.update(title="")), "no title"),
    "no description": (on_panel(lambda p: p.pop("description")), "no description"),
    "no unit": (defaults(lambda f: f.pop("unit")), "no unit"),
    "unknown unit": (defaults(lambda f: f.update(unit="seconds")), "unit 'seconds' is not known"),
    "unknown transformation": (
        on_panel(lambda p: p.update(transformations=[{"id": "pivot"}]), "table"),
        "transformation 'pivot' is not known",
    ),
    "no empty state": (defaults(lambda f: f.pop("noValue")), "when there is nothing"),
    "no thresholds": (defaults(lambda f: f.pop("thresholds")), "no thresholds"),
    "falling thresholds": (
        defaults(lambda f: f.update(thresholds={"steps": [{"value": None}, {"value": 2}, {"value": 1}]})),
        "do not rise",
    ),
    "no query": (on_panel(lambda p: p.update(targets=[])), "no query"),
    "no refId": (on_panel(lambda p: p["targets"][0].update(refId="")), "refId"),
    "another source": (on_panel(lambda p: p["targets"][0].update(datasource={"uid": "x"})), "data source is not"),
    "stale number": (on_panel(lambda p: p["targets"][0].update(instant=False), "stat"), "ask for this moment"),
    "unknown panel": (on_panel(lambda p: p.update(type="graph")), "type graph is not known"),
    "no options": (on_panel(lambda p: p["options"].pop("legend")), "options legend are missing"),
    "outside": (on_panel(lambda p: p["gridPos"].update(x=20, w=8)), "outside of the grid"),
    "overlap": (on_panel(lambda p: p["gridPos"].update(y=0, x=0)), "overlap"),
    "not PromQL": (ask("sum(("), "gpuchaos-loop/Experiments by status/A"),
    "unknown variable": (ask('up{a="$nobody"}'), "there is no variable 'nobody'"),
    "unknown metric": (ask("sum(gpuchaos_nothing)"), "does not define 'gpuchaos_nothing'"),
    "bare counter": (ask("sum by (topic) (gpuchaos_records_total)"), "is a counter"),
    "fixed window": (ask("sum(rate(gpuchaos_frames_total[5m]))"), "use $__rate_interval"),
    "a series a node": (ask("gpuchaos_node_load1"), "12,500 series"),
    "a series a GPU": (ask("max by (node, gpu) (gpuchaos_gpu_power_watts)"), "100,000 series"),
    "a row a node": (ask("max by (node) (gpuchaos_node_load1)", "table"), "12,500 series"),
    "several by equality": (many, "write =~"),
    "not refreshed": (variable("cluster", refresh=0), "is not refreshed"),
    "other values": (variable("cluster", query={"query": "metrics(.*)"}), "does not ask for label_values"),
    "label that is none": (
        variable("cluster", query={"query": "label_values(gpuchaos_breaker_tripped, node)"}),
        "has no label node",
    ),
    "chosen later": (
        variable("cluster", query={"query": 'label_values(gpuchaos_gpus{cluster="$docs"}, cluster)'}),
        "which is not chosen before it",
    ),
    "unused": (
        lambda d: d["templating"]["list"].append({"name": "spare", "type": "textbox"}),
        "$spare is used nowhere",
    ),
    "no source variable": (variable("datasource", type="custom"), "no variable chooses the data source"),
    "dead dashboard": (
        defaults(lambda f: f.update(links=[{"title": "x", "url": "/d/gpuchaos-gone"}])),
        "dashboard gpuchaos-gone",
    ),
    "dead runbook": (
        on_panel(lambda p: p["options"].update(content="${docs}/runbooks/GPUChaosNothing.md"), "text"),
        "docs/runbooks/GPUChaosNothing.md",
    ),
    "no way out": (lambda d: d.update(links=[]), "other dashboards"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_lint_finds(mistake: str, loop: Dashboard) -> None:
    put, said = MISTAKES[mistake]
    put(loop)
    found = problems(loop, WORLD)
    assert any(said in line for line in found), found


def test_a_bar_needs_a_good_and_a_bad_side() -> None:
    dashboard: Dashboard = json.loads(rendered("gpuchaos-slo"))
    bar = panel(dashboard, "bargauge")["fieldConfig"]["defaults"]
    bar["thresholds"]["steps"] = bar["thresholds"]["steps"][:1]
    assert any("no good and no bad side" in line for line in problems(dashboard, WORLD))


@pytest.mark.parametrize(
    ("expr", "most"),
    [
        ("gpuchaos_breaker_tripped", 1),
        ('gpuchaos_cell_power{cluster="c"}', None),
        ("gpuchaos_gpu_power_watts", 12_500 * 8 * 2_000),
        ('gpuchaos_rdma_port_active{node="n"}', 8),
        ('max by (gpu) (gpuchaos_gpu_power_watts{cell="c", node="n"})', 8),
        ('avg by (node) (gpuchaos_gpu_power_watts{cell="c"})', 32),
        ("topk(15, max by (node, gpu) (gpuchaos_gpu_power_watts))", 15),
        ("cluster_cell_rail:gpuchaos_rdma_port_active:avg", 391 * 8),
        ("count(gpuchaos_node_load1) or vector(0)", 2),
        ("histogram_quantile(0.5, sum by (le, phase) (rate(gpuchaos_recovery_seconds_bucket[1m])))", 14 * 3),
        ("gpuchaos_gpus and gpuchaos_node_load1", 1),
    ],
)
def test_how_many_series_a_query_answers_with_is_known_beforehand(expr: str, most: int | None) -> None:
    if most is None:
        with pytest.raises(KeyError, match="gpuchaos_cell_power"):
            series.most(expr, LABELS)
    else:
        assert series.most(expr, LABELS) == most


def test_variables_are_found_and_filled_in_each_of_their_forms() -> None:
    text = 'a{b="$one", c=~"${two:regex}"}[$__rate_interval] ${three}'
    assert names(text) == {"one", "two", "three"}
    assert filled(text, {"one": "1", "two": "2", "three": "3"}) == 'a{b="1", c=~"2"}[1m] 3'


@pytest.mark.parametrize("uid", PAGES)
def test_a_dashboard_is_small_enough_for_a_config_map(uid: str) -> None:
    assert len(rendered(uid).encode()) < 200_000
