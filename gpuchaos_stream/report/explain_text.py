"""An explanation as plain text for a terminal: nothing that an event says can move the cursor or colour a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpuchaos_stream.report.explain import Explained, Reason
from gpuchaos_stream.report.markup import clean
from gpuchaos_stream.report.words import stamp

_SPACE: Final = re.compile(r"\s+")


def text(found: Explained) -> str:
    """The whole explanation, lines ended by newlines."""
    return "".join(_one_line(line) + "\n" for line in _lines(found))


def _lines(found: Explained) -> Iterator[str]:
    verdict = f"{found.verdict}" if found.verdict else f"no verdict yet ({found.status})"
    yield f"{found.experiment_id}: {verdict}" + (f": {found.reason}" if found.reason else "")
    yield found.rule
    yield ""
    yield "What decided it"
    yield from _reasons(found.decided)
    if found.besides:
        yield ""
        yield "What was looked at besides"
        yield from _reasons(found.besides)
    yield ""
    yield "The way to it"
    for step in found.steps:
        at = stamp(step.at) if step.at is not None else "time not known"
        yield f"  {at}  {step.source} to {step.target}: {step.sentence} [{step.trigger}]"
        yield from (f"      {each}" for each in step.shown_by)
    if not found.steps:
        yield f"  it is {found.status} since it was accepted"


def _reasons(reasons: Iterable[Reason]) -> Iterator[str]:
    for reason in reasons:
        yield f"  {reason.fact}: {reason.sentence}"
        yield from (f"      {each}" for each in reason.evidence)


def _one_line(line: str) -> str:
    depth = len(line) - len(line.lstrip(" "))
    return " " * depth + _SPACE.sub(" ", clean(line)).strip()
