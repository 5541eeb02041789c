"""The curves of the checks as inline SVG: a panel each, on the time axis that all of them share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuchaos_stream.recovery.series import MAX_GAP_S
from gpuchaos_stream.report.markup import shorten
from gpuchaos_stream.report.model import Curve, Report
from gpuchaos_stream.report.pictures import LEFT, MARKS, TOP, Axis, svg, text

_PANEL: Final = 84
_INNER: Final = 64


def curves(report: Report) -> str:
    """Every curve against its bound, the time of the fault shaded, with lines where it was detected and recovered."""
    times = [time for curve in report.curves for time, _ in curve.points]
    axis = Axis(min([0.0, *times]), max([report.end_s, *times]))
    bottom = TOP + _PANEL * len(report.curves)
    parts = [*axis.draw(bottom)]
    for bar in report.bars:
        if bar.kind == "fault":
            begin, end = axis.x(bar.start_s), axis.x(bar.end_s if bar.end_s is not None else axis.last)
            height = bottom - TOP
            parts.append(
                f'<rect class="under" x="{begin}" y="{TOP}" width="{max(end - begin, 1):.1f}" height="{height}"/>'
            )
    for index, curve in enumerate(report.curves):
        parts += _panel(axis, curve, TOP + index * _PANEL + 6)
    for name, words in MARKS:
        value = getattr(report.recovery, name)
        if value is not None and name in {"ttd", "ttr"}:
            x = axis.x(value)
            parts.append(f'<line class="mark" x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{bottom}"/>')
            parts.append(text(x + 3, bottom + 12, words, "tick", "start"))
    return svg("curves", f"What the checks of {report.experiment_id} measured", bottom + 20, parts)


def _panel(axis: Axis, curve: Curve, y: float) -> Iterator[str]:
    values: list[float] = [value for _, value in curve.points if value is not None]
    drawn: list[float] = [*values, *((curve.bound,) if curve.bound is not None else ())]
    low: float = min([0.0, *drawn])
    high: float = max([*drawn, 1e-9])

    def at(value: float) -> float:
        share: float = (value - low) / (high - low)
        return round(y + _INNER * (1 - share), 1)

    name = curve.check + (f" ({curve.source})" if curve.source else "")
    yield text(LEFT - 10, y + 14, shorten(name, 40), "lane", "end")
    if curve.bound is not None:
        line = at(curve.bound)
        yield f'<line class="bound" x1="{axis.x(axis.first)}" y1="{line}" x2="{axis.x(axis.last)}" y2="{line}"/>'
        yield text(LEFT - 10, y + 30, f"must be {curve.op} {curve.bound:.3g}", "tick", "end")
    for run in _runs(curve):
        if len(run) == 1:
            yield f'<circle class="point" cx="{axis.x(run[0][0])}" cy="{at(run[0][1])}" r="2"/>'
        else:
            path = " ".join(f"{axis.x(time)},{at(value)}" for time, value in run)
            yield f'<polyline class="curve" points="{path}"/>'


def _runs(curve: Curve) -> list[list[tuple[float, float]]]:
    """The points in pieces, cut where it was not known or nothing was heard for longer than a gap may be."""
    span = curve.points[-1][0] - curve.points[0][0] if curve.points else 0.0
    gap = max(MAX_GAP_S, 3 * span / max(len(curve.points), 1))
    runs: list[list[tuple[float, float]]] = []
    last: float | None = None
    for time, value in curve.points:
        if value is None:
            last = None
            continue
        if last is None or time - last > gap:
            runs.append([])
        runs[-1].append((time, value))
        last = time
    return runs
