"""The rules for Prometheus as they are shipped, and the tables that are made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
RULES: Final = ROOT / "rules/prometheus/gpuchaos.rules.yaml"
RUNBOOKS: Final = ROOT / "docs/runbooks"

RECORDED_HEAD: Final = ("series", "made of")
ALERTS_HEAD: Final = ("alert", "severity", "after", "says")

#: Names that an expression uses and that are series: ours begin so, those of a recording rule hold a colon.
_SERIES: Final = re.compile(r"\b(?:gpuchaos_\w+|slo_\w+|sloth_slo_info|[a-z_]+(?::\w+)+)")


def rules() -> list[dict[str, Any]]:
    """Every rule, in the order of the file."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def recording() -> list[dict[str, Any]]:
    """The rules that record."""
    return [rule for rule in rules() if "record" in rule]


def alerting() -> list[dict[str, Any]]:
    """The rules that alert."""
    return [rule for rule in rules() if "alert" in rule]


def series_in(expr: str) -> set[str]:
    """Names of series that an expression reads; what stands in quotes is none."""
    return set(_SERIES.findall(re.sub(r'"[^"]*"', "", expr)))


def recorded() -> Iterable[Sequence[str]]:
    """What the recording rules make, and of what."""
    for rule in recording():
        yield f"`{rule['record']}`", ", ".join(f"`{name}`" for name in sorted(series_in(rule["expr"])))


def alerts() -> Iterable[Sequence[str]]:
    """Every alert with its page."""
    for rule in alerting():
        name, says = rule["alert"], rule["annotations"]["summary"]
        says = re.sub(r"\{\{ with .*?\{\{ else \}\}(.*?)\{\{ end \}\}", r"\1", says)
        says = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: found[1].upper(), says)
        page = rule["annotations"]["runbook_url"].removeprefix("docs/")
        yield f"[{name}]({page})", rule["labels"]["severity"], rule.get("for", "at once"), says
