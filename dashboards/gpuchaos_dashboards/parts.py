"""Panels as these dashboards use them: each has a title, a description, a unit, queries, and a text for "nothing"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import text as text_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

#: Where every panel and every variable asks.
PROMETHEUS: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

Panel = stat.Panel | timeseries.Panel | heatmap.Panel | table.Panel | statetimeline.Panel | bargauge.Panel | text.Panel
_Queried = TypeVar(
    "_Queried", stat.Panel, timeseries.Panel, heatmap.Panel, table.Panel, statetimeline.Panel, bargauge.Panel
)

#: Colour from a value on; None is the lowest.
Steps = Sequence[tuple[float | None, str]]
#: A number that says nothing good or bad.
PLAIN: Final[Steps] = ((None, "blue"),)


def bad_from(warning: float, bad: float | None = None) -> Steps:
    """Green below `warning`, orange from it, red from `bad`; red from `warning` where there is no `bad`."""
    if bad is None:
        return (None, "green"), (warning, "red")
    return (None, "green"), (warning, "orange"), (bad, "red")


def good_from(poor: float, good: float) -> Steps:
    """Red below `poor`, orange below `good`, green from it."""
    return (None, "red"), (poor, "orange"), (good, "green")


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel. `exemplars` shows traces on it; `buckets`: its series are those of a histogram, each with
    what lies below it as well.
    """

    expr: str
    legend: str = "__auto"
    exemplars: bool = False
    buckets: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What every panel says of itself. `none` stands where there is nothing to show; `links` are title → URL."""

    title: str
    description: str
    unit: str
    none: str
    steps: Steps = PLAIN
    links: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[float, tuple[str, str]] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None


def number(about: About, *queries: Query) -> stat.Panel:
    """One large number, coloured by its thresholds; that of this moment, so that none is shown where none is told."""
    panel = _dressed(stat.Panel(), about, queries)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.color_mode(
        common_models.BigValueColorMode.BACKGROUND if about.words else common_models.BigValueColorMode.VALUE
    )
    panel.graph_mode(common_models.BigValueGraphMode.NONE)
    panel.orientation(common_models.VizOrientation.AUTO)
    panel.text_mode(common_models.BigValueTextMode.AUTO)
    return panel.justify_mode(common_models.BigValueJustifyMode.AUTO)


def lines(about: About, *queries: Query, stacked: bool = False, bars: bool = False) -> timeseries.Panel:
    """Lines over time; `stacked` areas; `bars` for what happened in each step."""
    panel = _dressed(timeseries.Panel(), about, queries)
    panel.draw_style(common_models.GraphDrawStyle.BARS if bars else common_models.GraphDrawStyle.LINE)
    panel.line_width(1).fill_opacity(60 if bars else 25 if stacked else 8)
    panel.show_points(common_models.VisibilityMode.AUTO).span_nulls(False)
    mode = common_models.StackingMode.NORMAL if stacked else common_models.StackingMode.NONE
    panel.stacking(common.StackingConfig().mode(mode).group("A"))
    if len(about.steps) > 1:
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED))
    panel.legend(
        common.VizLegendOptions()
        .display_mode(common_models.LegendDisplayMode.TABLE)
        .placement(common_models.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI)
    return panel.tooltip(tooltip.sort(common_models.SortOrder.DESCENDING))


def cells(about: About, *queries: Query, low_is_bad: bool = False) -> heatmap.Panel:
    """A heat map with a row for each series: its legend on the left, time to the right, the value as colour."""
    panel = _dressed(heatmap.Panel(), about, queries).calculate(False)
    colors = (
        heatmap.HeatmapColorOptions()
        .mode(heatmap_models.HeatmapColorMode.SCHEME)
        .scheme("RdYlGn" if low_is_bad else "YlOrRd")
        .scale(heatmap_models.HeatmapColorScale.LINEAR)
        .fill("dark-orange")
        .exponent(0.5)
        .steps(64)
        .reverse(False)
    )
    if about.low is not None:
        colors.min(about.low)
    if about.high is not None:
        colors.max(about.high)
    panel.color(colors).cell_gap(0)
    panel.cell_values(heatmap.CellValues().unit(about.unit))
    if not any(query.buckets for query in queries):
        panel.filter_values(
            heatmap.FilterValueRange().le(-1)
        )  # by default a 0 is left blank, and here it may be the worst
    # One row a series: the name stands on the axis, never a number of it.
    panel.rows_frame(heatmap.RowsHeatmapOptions().layout(common_models.HeatmapCellLayout.AUTO))
    panel.y_axis(heatmap.YAxisConfig().axis_placement(common_models.AxisPlacement.LEFT).reverse(True))
    return panel.show_legend()


def grid(
    about: About,
    *queries: Query,
    hide: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    colored: Mapping[str, tuple[str, Steps]] | None = None,
    links: Mapping[str, tuple[str, str]] | None = None,
    shape: Sequence[models.DataTransformerConfig] = (),
) -> table.Panel:
    """A table. Queries are joined into its rows; `hide` and `names` are of columns, `colored` gives a column its unit
    and thresholds, `links` a title and an URL.
    """
    panel = _dressed(table.Panel(), about, queries).show_header(True)
    if shape:
        panel.transformations(list(shape))
    else:
        joined = [models.DataTransformerConfig("merge", options={})] if len(queries) > 1 else []
        hidden = {"Time": True} | dict.fromkeys(hide, True)
        options = {"excludeByName": hidden, "indexByName": {}, "renameByName": dict(names or {})}
        panel.transformations([*joined, models.DataTransformerConfig("organize", options=options)])
    # What stands for "nothing" is for the panel; a single cell is left short.
    panel.override_by_field_type("number", [models.DynamicConfigValue("noValue", "–")])
    for name, (unit, steps) in (colored or {}).items():
        panel.override_by_name(
            name,
            [
                models.DynamicConfigValue("unit", unit),
                models.DynamicConfigValue("thresholds", _threshold_values(steps)),
                models.DynamicConfigValue("custom.cellOptions", {"type": "color-background", "mode": "basic"}),
            ],
        )
    for name, (title, url) in (links or {}).items():
        link = {"title": title, "url": url, "targetBlank": False}
        panel.override_by_name(name, [models.DynamicConfigValue("links", [link])])
    return panel


def matrix(about: About, query: Query, *, row: str, column: str, link: tuple[str, str]) -> table.Panel:
    """A table with a row and a column for each value of two labels, its cells coloured by their thresholds; `link` is
    a title and an URL for the names of the rows.
    """
    options = {"rowField": row, "columnField": column, "valueField": "Value", "emptyValue": "empty"}
    shape = [models.DataTransformerConfig("groupingToMatrix", options=options)]
    first = f"{row}\\{column}"  # as the transformation calls the column of the rows' names
    panel = grid(about, query, shape=shape, links={first: link})
    panel.override_by_name(first, [models.DynamicConfigValue("custom.cellOptions", {"type": "auto"})])
    return panel.cell_options(common_models.TableColoredBackgroundCellOptions())


def states(about: About, *queries: Query) -> statetimeline.Panel:
    """What was so, from when to when: one band a series, its values as words."""
    panel = _dressed(statetimeline.Panel(), about, queries)
    panel.merge_values(True).row_height(0.85).fill_opacity(75).show_value(common_models.VisibilityMode.AUTO)
    legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.LIST)
    return panel.legend(legend.placement(common_models.LegendPlacement.BOTTOM).show_legend(True).calcs([]))


def bars(about: About, *queries: Query) -> bargauge.Panel:
    """A bar a series, as long as its value now."""
    panel = _dressed(bargauge.Panel(), about, queries)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    panel.display_mode(common_models.BarGaugeDisplayMode.BASIC).orientation(common_models.VizOrientation.HORIZONTAL)
    return panel.show_unfilled(True).value_mode(common_models.BarGaugeValueMode.TEXT)


def words(title: str, markdown: str) -> text.Panel:
    """A panel of text."""
    return text.Panel().title(title).mode(text_models.TextMode.MARKDOWN).content(markdown)


def _threshold_values(steps: Steps) -> dict[str, Any]:
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]}


def _dressed(panel: _Queried, about: About, queries: Sequence[Query]) -> _Queried:
    panel.title(about.title).description(about.description).unit(about.unit).no_value(about.none)
    panel.datasource(PROMETHEUS)
    levels = [models.Threshold(value=value, color=color) for value, color in about.steps]
    panel.thresholds(build.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(levels))
    by_level = len(about.steps) > 1 and not isinstance(panel, timeseries.Panel)
    mode = models.FieldColorModeId.THRESHOLDS if by_level else models.FieldColorModeId.PALETTE_CLASSIC
    panel.color_scheme(build.FieldColor().mode(mode))
    if about.words:
        options = {
            f"{value:g}": models.ValueMappingResult(text=text_, color=color, index=index)
            for index, (value, (text_, color)) in enumerate(about.words.items())
        }
        panel.mappings([models.ValueMap(options)])
    if about.low is not None:
        panel.min(about.low)
    if about.high is not None:
        panel.max(about.high)
    if about.links:
        panel.data_links([build.DashboardLink(title).url(url) for title, url in about.links.items()])
    for name, query in zip("ABCDEFGHIJ", queries, strict=False):
        panel.with_target(_target(name, query, panel))
    return panel


def _target(name: str, query: Query, panel: Panel) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(name).expr(query.expr).datasource(PROMETHEUS)
    target.legend_format(query.legend).exemplar(query.exemplars)
    if isinstance(panel, table.Panel):
        return target.format(PromQueryFormat.TABLE).instant()
    # The last of a time would be shown as now's, long after whoever told it has fallen silent.
    if isinstance(panel, stat.Panel | bargauge.Panel):
        return target.format(PromQueryFormat.TIME_SERIES).instant()
    return target.format(PromQueryFormat.HEATMAP if query.buckets else PromQueryFormat.TIME_SERIES).range()
