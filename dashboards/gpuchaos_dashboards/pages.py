"""A dashboard: its rows of panels, variables, annotations and links, and the JSON that Grafana reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from gpuchaos_dashboards.parts import PROMETHEUS, Panel, words

#: Columns of Grafana's grid.
COLUMNS: Final = 24
#: Tag of every dashboard of ours; the links at the top go to all that have it.
TAG: Final = "gpuchaos"
#: Data source of traces, and what it is asked for one.
TEMPO: Final = "tempo"


@dataclass(frozen=True, slots=True)
class Variable:
    """What a reader chooses. `query` is asked of Prometheus; `many` lets several be chosen, all at first."""

    name: str
    label: str
    query: str
    many: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Events drawn over every panel. A query whose value is a time (`moment`) marks it, others the time they last."""

    name: str
    expr: str
    color: str
    title: str
    text: str
    moment: bool = False


@dataclass
class Page:
    """A dashboard under construction: rows are added from top to bottom."""

    uid: str
    title: str
    description: str
    how_to_read: str
    variables: Sequence[Variable]
    marks: Sequence[Mark] = ()
    since: str = "now-1h"
    refresh: str = "30s"
    _panels: list[build.Row | Panel] = field(default_factory=list)
    _y: int = 0

    def __post_init__(self) -> None:
        """Begins with how to read it."""
        self._line([(words("How to read this", self.how_to_read.strip()), COLUMNS, 5)])

    def row(self, title: str, *panels: tuple[Panel, int, int]) -> None:
        """A titled row of panels, each with its width in columns of 24 and its height; what does not fit goes below."""
        self._panels.append(build.Row(title).grid_pos(models.GridPos(h=1, w=COLUMNS, x=0, y=self._y)))
        self._y += 1
        self._line(panels)

    def _line(self, panels: Sequence[tuple[Panel, int, int]]) -> None:
        x = tallest = 0
        for panel, width, height in panels:
            if x + width > COLUMNS:
                self._y, x, tallest = self._y + tallest, 0, 0
            panel.grid_pos(models.GridPos(h=height, w=width, x=x, y=self._y))
            self._panels.append(panel)
            x, tallest = x + width, max(tallest, height)
        self._y += tallest

    def render(self) -> dict[str, Any]:
        """As Grafana reads it."""
        made = (
            build.Dashboard(self.title)
            .uid(self.uid)
            .description(self.description)
            .tags([TAG])
            .time(self.since, "now")
            .refresh(self.refresh)
            .timezone("browser")
            .tooltip(models.DashboardCursorSync.CROSSHAIR)
            .readonly()
            .variables(self._variables())
            .link(
                build.DashboardLink("GPUChaos")
                .type(models.DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .as_dropdown(False)
                .include_vars(True)
                .keep_time(True)
            )
        )
        for panel in self._panels:
            if isinstance(panel, build.Row):
                made.with_row(panel)
            else:
                made.with_panel(panel)
        found: dict[str, Any] = json.loads(JSONEncoder(sort_keys=True).encode(made.build()))
        found["annotations"]["list"] = [_mark(mark) for mark in self.marks]
        for number, panel in enumerate(found["panels"], 1):
            panel["id"] = number
            _tidy(panel)
        for variable in found["templating"]["list"]:
            for name in ("auto", "auto_count", "auto_min"):  # of variables of another type
                variable.pop(name, None)
        return found

    def _variables(self) -> list[Any]:
        source = build.DatasourceVariable("datasource").label("Data source").type("prometheus")
        source.current(models.VariableOption(selected=True, text="Prometheus", value="prometheus"))
        docs = build.TextBoxVariable("docs").label("Documentation").default_value("/docs")
        docs.current(models.VariableOption(selected=True, text="/docs", value="/docs"))
        return [source, *(_variable(each) for each in self.variables), docs]


def url(uid: str, **variables: str) -> str:
    """Address of a dashboard with variables set, in the time that is looked at and on the same cluster."""
    given = {"datasource": "${datasource}", "cluster": "${cluster}"} | variables
    words_ = "&".join(f"var-{name}={value}" for name, value in given.items())
    return f"/d/{uid}?{words_}&${{__url_time_range}}"


def trace(value: str) -> str:
    """Address of a trace in Grafana's Explore, asked of Tempo; `value` is its id or what stands for it."""
    asked = {"refId": "A", "datasource": {"type": "tempo", "uid": TEMPO}, "queryType": "traceql", "query": value}
    range_ = {"from": "now-30d", "to": "now"}
    panes = json.dumps({"trace": {"datasource": TEMPO, "queries": [asked], "range": range_}}, separators=(",", ":"))
    return f"/explore?schemaVersion=1&panes={quote(panes, safe='${}._')}"


def _variable(each: Variable) -> build.QueryVariable:
    query = {"qryType": 1, "query": each.query, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
    made = build.QueryVariable(each.name).label(each.label).query(query).datasource(PROMETHEUS)
    made.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(models.VariableSort.ALPHABETICAL_ASC)
    if each.many:
        made.multi(True).include_all(True).all_value(".*")
        made.current(models.VariableOption(selected=True, text=["All"], value=["$__all"]))
    return made


def _mark(mark: Mark) -> dict[str, Any]:
    """As the Prometheus data source reads it; the builder does not know its fields."""
    return {
        "datasource": {"type": PROMETHEUS.type_val, "uid": PROMETHEUS.uid},
        "enable": True,
        "hide": False,
        "iconColor": mark.color,
        "name": mark.name,
        "tagKeys": "",
        "target": {"expr": mark.expr, "interval": "", "refId": "Anno"},
        "textFormat": mark.text,
        "titleFormat": mark.title,
        "useValueForTime": mark.moment,
    }


def _tidy(panel: dict[str, Any]) -> None:
    """Leaves out what only links of a dashboard have, and what would be the same without it."""
    if panel["type"] == "row":
        return
    panel.pop("repeatDirection", None)
    defaults: Mapping[str, Any] = panel.get("fieldConfig", {}).get("defaults", {})
    for link in defaults.get("links", ()):
        for name in set(link) - {"title", "url", "targetBlank"}:
            del link[name]
