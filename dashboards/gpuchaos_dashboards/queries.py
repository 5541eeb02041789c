"""What a dashboard asks of Prometheus, with something in the place of every variable."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

#: What Grafana puts in the place of its own variables, for a look at the last hour.
BUILT_IN: Final[Mapping[str, str]] = {"__rate_interval": "1m", "__interval": "15s", "__range": "1h"}
#: A variable: `$name`, `${name}` or `${name:format}`.
VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")
#: What the name of a variable's values comes from: `label_values(SELECTOR, LABEL)`.
_LABEL_VALUES: Final = re.compile(r"label_values\((.+), *(\w+)\)")


@dataclass(frozen=True, slots=True)
class Asked:
    """One query: whose, of which panel or annotation, whether it asks for this moment alone, and shows traces."""

    dashboard: str
    panel: str
    ref: str
    expr: str
    now: bool = False
    exemplars: bool = False

    def __str__(self) -> str:
        return f"{self.dashboard}/{self.panel}/{self.ref}"


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Its panels, rows and those inside closed rows included."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", ())


def asked(dashboard: Mapping[str, Any]) -> Iterator[Asked]:
    """Every query of its panels and annotations."""
    uid = dashboard["uid"]
    for panel in panels(dashboard):
        for target in panel.get("targets", ()):
            how = bool(target.get("instant")), bool(target.get("exemplar"))
            yield Asked(uid, panel.get("title", ""), target.get("refId", ""), target["expr"], *how)
    for mark in dashboard["annotations"]["list"]:
        target = mark.get("target", {})
        yield Asked(uid, mark["name"], target.get("refId", ""), target["expr"])


def choices(dashboard: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Its variables that ask Prometheus, in order: name, the selector whose series have the label, the label."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = _LABEL_VALUES.fullmatch(variable["query"]["query"])
            if found is None:
                raise ValueError(f"${variable['name']} does not ask for label_values(SELECTOR, LABEL)")
            yield variable["name"], found[1], found[2]


def names(text: str) -> set[str]:
    """Variables that a text uses, without Grafana's own."""
    found = {match[1] or match[2] for match in VARIABLE.finditer(text)}
    return {name for name in found if not name.startswith("__")}


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with values for variables; KeyError names one that has none."""
    known = {**BUILT_IN, **values}
    return VARIABLE.sub(lambda match: known[match[1] or match[2]], text)
