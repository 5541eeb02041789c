"""What must hold of every dashboard, so that nobody has to open each panel to find out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import promql_parser as promql

from gpuchaos_dashboards import series
from gpuchaos_dashboards.queries import asked, choices, filled, names, panels

Dashboard = Mapping[str, Any]

#: The most series of a query: more are no picture, and slow.
MOST_SERIES: Final = 1_000
#: As many for a heat map or a table, whose rows may be cells, or cells and rails.
MOST_ROWS: Final = 4_000
_TEXT: Final = "text"
#: Ends of names of series that only rise.
_COUNTED_UP: Final = ("_total", "_bucket", "_sum", "_count")
_RISING: Final = frozenset({"rate", "irate", "increase"})
#: Panel type → options that Grafana 11 expects of it.
OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    "stat": frozenset({"reduceOptions", "colorMode", "graphMode", "orientation", "textMode", "justifyMode"}),
    "timeseries": frozenset({"legend", "tooltip"}),
    "heatmap": frozenset({"calculate", "color", "rowsFrame", "yAxis", "cellValues"}),
    "table": frozenset({"showHeader"}),
    "state-timeline": frozenset({"legend", "mergeValues", "rowHeight", "showValue"}),
    "bargauge": frozenset({"reduceOptions", "displayMode", "orientation", "showUnfilled"}),
    "text": frozenset({"mode", "content"}),
}
#: Units that are used here, each of which Grafana 11.6 knows by this id; `suffix:…` is written as it is.
UNITS: Final = frozenset(
    {
        "none", "short", "percentunit", "s", "celsius", "bytes", "Bps", "ops", "cps", "reqps", "watt", "hertz",
        "dateTimeAsIso",
    }
)  # fmt: skip
#: Transformations that are used here, likewise.
TRANSFORMATIONS: Final = frozenset({"merge", "organize", "groupingToMatrix"})
#: What Grafana 11.6 writes.
SCHEMA: Final = 41


@dataclass(frozen=True, slots=True)
class World:
    """What a dashboard may refer to: metrics with their labels, uids of dashboards, pages below docs/."""

    labels: series.Labels
    uids: frozenset[str]
    pages: frozenset[str]


def problems(dashboard: Dashboard, world: World) -> list[str]:
    """Everything that is wrong with a dashboard, each as a line that says where."""
    return [line for check in CHECKS for line in check(dashboard, world)]


def _shape(dashboard: Dashboard, _: World) -> Iterator[str]:
    if dashboard.get("schemaVersion") != SCHEMA:
        yield f"schemaVersion is {dashboard.get('schemaVersion')}, not {SCHEMA}"
    if dashboard.get("editable", True):
        yield "it can be edited where it is shown, and the edit is lost"
    for name in ("uid", "title", "description", "tags"):
        if not dashboard.get(name):
            yield f"no {name}"
    if not any(panel["type"] == _TEXT for panel in panels(dashboard)):
        yield "no panel says how to read it"
    yield from (f"{where} is null" for where in _nulls(dashboard, ""))


def _nulls(value: Any, where: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _nulls(each, f"{where}.{name}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _nulls(each, f"{where}[{number}]")
    elif value is None and not where.endswith("steps[0].value"):  # the lowest threshold is open below
        yield where


def _panels(dashboard: Dashboard, _: World) -> Iterator[str]:
    ids = Counter(panel.get("id") for panel in panels(dashboard))
    yield from (f"{count} panels have the id {number}" for number, count in ids.items() if count > 1 or not number)
    for panel in panels(dashboard):
        if panel["type"] == "row":
            continue
        where = f"panel {panel.get('title') or panel.get('id')!r}"
        if not panel.get("title"):
            yield f"{where}: no title"
        if panel["type"] not in OPTIONS:
            yield f"{where}: a panel of type {panel['type']} is not known here"
            continue
        if missing := OPTIONS[panel["type"]] - set(panel.get("options", {})):
            yield f"{where}: options {', '.join(sorted(missing))} are missing"
        if panel["type"] != _TEXT:
            yield from (f"{where}: {line}" for line in _numbers(panel))


def _numbers(panel: Mapping[str, Any]) -> Iterator[str]:
    if len(panel.get("description", "")) < 10:
        yield "no description"
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    if not defaults.get("unit"):
        yield "no unit"
    if not defaults.get("noValue"):
        yield "no text for when there is nothing"
    yield from _known(panel)
    yield from _thresholds(panel["type"], defaults)
    yield from _targets(panel)


def _known(panel: Mapping[str, Any]) -> Iterator[str]:
    """What Grafana would not understand."""
    config = panel.get("fieldConfig", {})
    properties = (each for override in config.get("overrides", ()) for each in override["properties"])
    units = [
        config.get("defaults", {}).get("unit", ""),
        *(each["value"] for each in properties if each["id"] == "unit"),
    ]
    yield from (f"unit {unit!r} is not known" for unit in units if unit not in UNITS | {""} and unit[:7] != "suffix:")
    for each in panel.get("transformations", ()):
        if each["id"] not in TRANSFORMATIONS:
            yield f"transformation {each['id']!r} is not known"


def _thresholds(kind: str, defaults: Mapping[str, Any]) -> Iterator[str]:
    steps = defaults.get("thresholds", {}).get("steps", [])
    if not steps or steps[0].get("value") is not None:
        yield "no thresholds, or the lowest is not open below"
    above = [step["value"] for step in steps[1:]]
    if above != sorted(set(above)):
        yield "thresholds do not rise"
    if kind == "bargauge" and len(steps) < 2:
        yield "a bar has no good and no bad side: thresholds are needed"


def _targets(panel: Mapping[str, Any]) -> Iterator[str]:
    targets = panel.get("targets", ())
    if not targets:
        yield "no query"
    refs = Counter(target.get("refId") for target in targets)
    yield from (f"refId {ref!r} is missing or twice" for ref, count in refs.items() if count > 1 or not ref)
    for each in (panel, *targets):
        if each.get("datasource") != {"type": "prometheus", "uid": "${datasource}"}:
            yield "its data source is not the variable"
    if panel["type"] in {"stat", "bargauge"} and not all(target.get("instant") for target in targets):
        yield "the last number of a time would be shown as now's: ask for this moment"


def _grid(dashboard: Dashboard, _: World) -> Iterator[str]:
    taken: dict[tuple[int, int], str] = {}
    for panel in panels(dashboard):
        place, title = panel["gridPos"], str(panel.get("title"))
        if place["x"] < 0 or place["x"] + place["w"] > 24 or place["w"] < 1 or place["h"] < 1:
            yield f"panel {title!r} is outside of the grid"
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = taken.setdefault((x, y), title)
                if other != title:
                    yield f"panels {other!r} and {title!r} overlap"
                    break
            else:
                continue
            break


def _queries(dashboard: Dashboard, world: World) -> Iterator[str]:
    values = {variable["name"]: "x" for variable in dashboard["templating"]["list"]}
    many = {variable["name"] for variable in dashboard["templating"]["list"] if variable.get("multi")}
    wide = {panel.get("title") for panel in panels(dashboard) if panel["type"] in {"heatmap", "table"}}
    for each in asked(dashboard):
        try:
            expr = filled(each.expr, values)
            tree = promql.parse(expr)
        except KeyError as error:
            yield f"{each}: there is no variable {error}"
            continue
        except ValueError as error:
            yield f"{each}: {error}"
            continue
        yield from (f"{each}: {line}" for line in _counters(tree))
        for name in many:
            if re.search(rf'[^~]="\$\{{?{name}\b', each.expr):
                yield f'{each}: ${name} may be several: write =~"${name}"'
        if re.search(r"(rate|irate)\([^[]*\[\d", each.expr):
            yield f"{each}: a rate over a fixed time misses samples when scrapes are rarer: use $__rate_interval"
        try:
            found, bound = series.most(expr, world.labels), MOST_ROWS if each.panel in wide else MOST_SERIES
        except KeyError as error:
            yield f"{each}: docs/metrics.md does not define {error}"
            continue
        if found > bound:
            yield f"{each}: {found:,} series in a cluster of 12,500 nodes, at most {bound:,}"


def _counters(tree: Any) -> Iterator[str]:
    """Counters that are looked at as they are: they only rise, and begin anew with each process."""
    bare: list[str] = []

    def visit(each: Any) -> bool:
        if isinstance(each, promql.Call) and each.func.name in _RISING:
            inside.extend(_selected(each))
        elif isinstance(each, promql.VectorSelector) and (each.name or "").endswith(_COUNTED_UP):
            bare.append(each.name or "")
        return True

    inside: list[str] = []
    promql.walk(tree, visit)
    left = Counter(bare) - Counter(name for name in inside if name.endswith(_COUNTED_UP))
    yield from (f"{name} is a counter: take its rate or increase" for name in left)


def _selected(tree: Any) -> list[str]:
    found: list[str] = []

    def visit(each: Any) -> bool:
        if isinstance(each, promql.VectorSelector):
            found.append(each.name or "")
        return True

    promql.walk(tree, visit)
    return found


def _variables(dashboard: Dashboard, world: World) -> Iterator[str]:
    every = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    if every.get("datasource", {}).get("type") != "datasource":
        yield "no variable chooses the data source"
    try:
        asks = {name: (selector, label) for name, selector, label in choices(dashboard)}
    except ValueError as error:
        yield str(error)
        return
    known: dict[str, str] = {}
    for name, (selector, label) in asks.items():
        if every[name].get("refresh") not in {1, 2}:
            yield f"${name} is not refreshed"
        if every[name].get("datasource") != {"type": "prometheus", "uid": "${datasource}"}:
            yield f"${name}: its data source is not the variable"
        if missing := names(selector) - set(known):
            yield f"${name} uses {', '.join(sorted(missing))}, which is not chosen before it"
            continue
        (metric,) = _selected(promql.parse(filled(selector, known)))
        if label not in world.labels.get(metric, frozenset()):
            yield f"${name}: {metric} has no label {label}"
        known[name] = "x"
    used = names(_text({key: value for key, value in dashboard.items() if key != "templating"}))
    used |= {name for selector, _ in asks.values() for name in names(selector)}
    for name in set(every) - used:
        yield f"${name} is used nowhere"


def _links(dashboard: Dashboard, world: World) -> Iterator[str]:
    text = _text(dashboard)
    for uid in set(re.findall(r"/d/([\w-]+)", text)) - world.uids:
        yield f"it links to the dashboard {uid}, which there is not"
    for page in {found.split("#")[0] for found in re.findall(r"\$\{docs\}/([\w./#-]+)", text)} - world.pages:
        yield f"it links to docs/{page}, which there is not"
    if not any(link.get("type") == "dashboards" for link in dashboard.get("links", ())):
        yield "no link leads to the other dashboards"


def _text(value: Any) -> str:
    """Every text in it, one a line."""
    if isinstance(value, Mapping):
        return "\n".join(map(_text, value.values()))
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    return value if isinstance(value, str) else ""


CHECKS: Final[tuple[Callable[[Dashboard, World], Iterator[str]], ...]] = (
    _shape,
    _panels,
    _grid,
    _queries,
    _variables,
    _links,
)
