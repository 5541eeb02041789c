"""The pictures of a report as inline SVG: the timeline, the recovery, and the way that harm took. No script, no font.

Sizes are in user units; colours are classes of the page's style sheet (`html.py`), so that dark, light and paper differ
there alone. What a colour says, a word or a pattern says too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpuchaos_stream.report.markup import escape, shorten
from gpuchaos_stream.report.model import Bar, Branch, Report
from gpuchaos_stream.report.words import GOALS, answer, seconds

_WIDTH: Final = 960
LEFT: Final = 300
_RIGHT: Final = 24
_ROW: Final = 26
TOP: Final = 34
#: Units of one character of a name, in a wide font (DejaVu Sans), and so how many fit left of the axis.
_CHARACTER: Final = 7.0
_LABEL: Final = int((LEFT - 14) / _CHARACTER)
#: The most entities of a branch that are drawn.
_DRAWN: Final = 8
#: The most faults of a timeline that are drawn; an experiment has up to a thousand.
_FAULTS: Final = 40
_TICKS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0)
MARKS: Final = (("ttd", "detected"), ("ttm", "mitigated"), ("ttr", "recovered"), ("confirm", "confirmed"))


class Axis:
    """Seconds to x, `first` at the left of the drawing and `last` at its right."""

    def __init__(self, first: float, last: float) -> None:
        self.first, self.last = first, max(last, first + 1.0)

    def x(self, at: float) -> float:
        """Where `at` is; what lies outside is drawn at the edge."""
        share = (min(max(at, self.first), self.last) - self.first) / (self.last - self.first)
        return round(LEFT + share * (_WIDTH - LEFT - _RIGHT), 1)

    def ticks(self) -> list[float]:
        """Round seconds, ten or fewer."""
        span = self.last - self.first
        step = next((tick for tick in _TICKS if span / tick <= 10), span / 8)
        begin = int(self.first // step)
        return [at for n in range(begin, begin + 24) if self.first <= (at := round(n * step, 3)) <= self.last]

    def draw(self, height: float) -> Iterator[str]:
        """Lines and labels of the ticks, down to `height`."""
        for at in self.ticks():
            x = self.x(at)
            yield f'<line class="grid" x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{height - 8}"/>'
            yield text(x, TOP - 12, f"{at:g} s", "tick", "middle")


def timeline(report: Report) -> str:
    """Faults, anomalies and halts as bars over time, with lines where it was detected, mitigated and recovered."""
    bars = drawn(report.bars)
    first = min([0.0, *(bar.start_s for bar in bars)])
    axis = Axis(first - 0.02 * (report.end_s - first), report.end_s)
    bottom = TOP + _ROW * max(len(bars), 1)
    height = bottom + 26
    parts = [*axis.draw(bottom + 8)]
    for index, bar in enumerate(bars):
        parts += _bar(axis, bar, TOP + index * _ROW)
    parts += _marks(axis, report, bottom)
    return svg("timeline", f"What happened when in {report.experiment_id}", height, parts)


def drawn(bars: Sequence[Bar]) -> tuple[Bar, ...]:
    """The bars of a picture: of faults the first few, of all else every one."""
    faults = [bar for bar in bars if bar.kind == "fault"]
    return (*faults[:_FAULTS], *(bar for bar in bars if bar.kind != "fault"))


def _bar(axis: Axis, bar: Bar, y: float) -> Iterator[str]:
    begin, end = axis.x(bar.start_s), axis.x(bar.end_s if bar.end_s is not None else axis.last)
    until = "not ended" if bar.end_s is None else f"until {seconds(bar.end_s)}"
    lane = f"unexplained: {bar.lane}" if bar.kind == "unexplained" else bar.lane
    yield text(LEFT - 10, y + 15, shorten(lane, _LABEL), "lane", "end")
    width = f"{max(end - begin, 3):.1f}"
    yield (
        f'<rect class="bar {bar.kind}" x="{begin}" y="{y + 3}" width="{width}" height="{_ROW - 8}" rx="3">'
        f"<title>{escape(bar.kind)}: {escape(bar.lane)}, from {seconds(bar.start_s)} {until}</title></rect>"
    )
    if bar.end_s is None:
        yield f'<path class="open {bar.kind}" d="M{end - 8} {y + 3} l8 {(_ROW - 8) / 2} l-8 {(_ROW - 8) / 2}"/>'


def _marks(axis: Axis, report: Report, bottom: float) -> Iterator[str]:
    free = -1.0
    for name, words in MARKS:
        value = getattr(report.recovery, name)
        if value is None:
            continue
        x = axis.x(value)
        yield f'<line class="mark" x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{bottom + 8}"/>'
        at = max(x, free)
        width = 7.0 * len(words) + 8
        free = at + width
        fits = at + width < _WIDTH
        yield text(at if fits else _WIDTH - 4, bottom + 21, words, "tick", "start" if fits else "end")


def recovery(report: Report) -> str:
    """Each recovery time as a bar from the injection on, against its objective; the fault and the hold beneath."""
    goals = [goal for goal in report.goals if goal.objective is not None or goal.value is not None]
    record = report.recovery
    values = [each for goal in goals for each in (goal.value, goal.objective) if each is not None]
    last = max([1.0, *values, record.confirm or 0.0])
    axis = Axis(0.0, last * 1.12)
    bottom = TOP + _ROW * max(len(goals), 1)
    parts = [*axis.draw(bottom + 8)]
    for index, goal in enumerate(goals):
        y = TOP + index * _ROW
        parts.append(text(LEFT - 10, y + 15, f"{GOALS[goal.name]} ({goal.name.upper()})", "lane", "end"))
        if goal.value is not None:
            kind = "missed" if goal.met is False else "met"
            end = axis.x(goal.value)
            parts.append(
                f'<rect class="bar {kind}" x="{axis.x(0)}" y="{y + 3}" width="{max(end - axis.x(0), 3):.1f}" '
                f'height="{_ROW - 8}" rx="3"><title>{goal.name}: {seconds(goal.value)}</title></rect>'
            )
            if goal.name == "ttr" and record.confirm is not None:
                width = axis.x(record.confirm) - end
                parts.append(
                    f'<rect class="hold" x="{end}" y="{y + 7}" width="{max(width, 1):.1f}" height="{_ROW - 16}">'
                    f"<title>held for {seconds(record.hold_s)}</title></rect>"
                )
        said = answer(goal.met, goal.value, goal.objective, over=report.finished is not None)
        if goal.objective is not None:
            x = axis.x(goal.objective)
            parts.append(f'<line class="objective" x1="{x}" y1="{y}" x2="{x}" y2="{y + _ROW - 2}"/>')
        parts.append(text(axis.x(last) + 8, y + 15, said, "tick", "start"))
    return svg("recovery", f"Recovery times of {report.experiment_id} against their objectives", bottom + 12, parts)


def spread(branches: Sequence[Branch], experiment_id: str) -> str:
    """From each target along what is shared to what broke: left, middle, right."""
    parts: list[str] = []
    y = 12.0
    for branch in branches:
        shown = branch.reached[:_DRAWN]
        more = branch.total - len(shown)
        rows = len(shown) + (1 if more else 0)
        middle = y + rows * _ROW / 2
        tie = branch.through if not branch.shared else f"{branch.through} {branch.shared}"
        parts += _box(8, middle, 250, branch.target, "target")
        parts.append(f'<path class="tie" d="M258 {middle} H330"/>')
        parts += _box(330, middle, 250, tie, "unknown" if branch.through == "unknown" else "shared")
        for index in range(rows):
            at = y + index * _ROW + _ROW / 2
            parts.append(f'<path class="tie" d="M580 {middle} C620 {middle} 620 {at} 660 {at}"/>')
            name = shown[index].entity if index < len(shown) else f"and {more} more"
            parts += _box(660, at, 290, name, "hurt")
        y += rows * _ROW + 14
    return svg("spread", f"What {experiment_id} reached beyond its targets, and along what", y + 4, parts)


def _box(x: float, middle: float, width: float, said: str, kind: str) -> Iterator[str]:
    yield f'<rect class="box {kind}" x="{x}" y="{middle - 10}" width="{width}" height="20" rx="4"/>'
    yield text(x + 8, middle + 4, shorten(said, int((width - 16) / _CHARACTER)), "name", "start")


def text(x: float, y: float, said: str, kind: str, anchor: str) -> str:
    """One piece of text; `anchor` is start, middle or end."""
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(said)}</text>'


def svg(name: str, title: str, height: float, parts: Sequence[str]) -> str:
    """A whole picture with its title; `name` is its class and must be the page's only one."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{name}" viewBox="0 0 {_WIDTH} {height:g}" role="img" '
        f'aria-labelledby="{name}-title"><title id="{name}-title">{escape(title)}</title>' + "".join(parts) + "</svg>"
    )
