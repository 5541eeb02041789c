"""How numbers and times are said, the same in every form of a report."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

#: What each recovery time is called.
GOALS: Final = {"ttd": "time to detect", "ttm": "time to mitigate", "ttr": "time to recover"}


def seconds(value: float | None) -> str:
    """`3.2 s`; `-` for none."""
    return "-" if value is None else f"{value:.1f} s"


def stamp(time: float | None) -> str:
    """UTC, to the second; `-` for none."""
    return "-" if time is None else datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def answer(met: bool | None, value: float | None, objective: float | None, *, over: bool) -> str:
    """Whether an objective was met, in a word. `over`: its experiment is finished, so that nothing more comes."""
    if met is None:
        return "no objective" if objective is None else "not measured" if over else "open"
    return "met" if met else "never" if value is None else "missed"


def number(value: float | None) -> str:
    """Without digits that say nothing; `-` for none."""
    return "-" if value is None else f"{round(value, 1):,g}" if abs(value) < 1e6 else f"{value:,.0f}"


def count(number_of: int, one: str, many: str = "") -> str:
    """`1 node`, `3 nodes`."""
    return f"{number_of} {one if number_of == 1 else many or one + 's'}"


def few(items: list[str], most: int = 5) -> str:
    """The first few, and how many more."""
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


def head(lines: list[str], most: int = 5) -> tuple[str, ...]:
    """The first few lines, and one that says how many more."""
    return (*lines[:most], *((f"and {len(lines) - most} more",) if len(lines) > most else ()))


def pairs(values: dict[str, object] | dict[str, str | float | int | bool | None]) -> str:
    """`a=1, b=2` by name."""
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items()) if value is not None)
