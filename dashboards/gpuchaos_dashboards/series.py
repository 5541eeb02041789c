"""How many series a query answers with in a cluster of 12,500 nodes: no panel may draw one a node of all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import promql_parser as promql

#: Label → how many values it has in a cluster of 12,500 nodes in cells of 32 (docs/metrics.md, "How many series").
VALUES: Final[Mapping[str, int]] = {
    "cluster": 1,
    "cell": 391,
    "node": 12_500,
    "instance": 12_500,
    "job": 1,
    "gpu": 8,
    "port": 8,
    "rail": 8,
    "numa_node": 2,
    "pid": 8,
    "training_job": 2_000,
    "experiment_id": 100,
    "topic": 9,
    "partition": 64,
    "stage": 3,
    "rule": 21,
    "state": 5,
    "status": 7,
    "verdict": 5,
    "level": 7,
    "kind": 3,
    "reason": 8,
    "fault": 10,
    "target_kind": 4,
    "objective": 3,
    "phase": 3,
    "event": 6,
    "attribution": 2,
    "over": 3,
    "receiver": 10,
    "result": 4,
    "le": 14,
    "sloth_service": 10,
    "sloth_slo": 3,
    "alertname": 21,
    "alertstate": 2,
    "severity": 2,
    "collector": 20,
    "part": 10,
    "version": 1,
}
#: Labels that say more of what another label names already.
SAYS_MORE: Final[Mapping[str, frozenset[str]]] = {
    "experiment_id": frozenset({"name", "owner", "fault", "target_kind", "status", "verdict", "trace_id"}),
    "node": frozenset({"cell"}),
    "port": frozenset({"rail"}),
    "pid": frozenset({"training_job"}),
    "sloth_service": frozenset({"sloth_id", "fault"}),
    "sloth_slo": frozenset({"objective"}),
}
#: Labels that Prometheus gives whatever it scrapes.
SCRAPED: Final = frozenset({"instance", "job"})
#: Series of alerts that Prometheus makes itself.
ALERTS: Final = {"ALERTS": frozenset({"alertname", "alertstate", "severity"})}
#: Nodes of a cell.
OF_A_CELL: Final = 32
#: Aggregations whose parameter says how many remain.
_SOME: Final = ("topk", "bottomk")
#: Functions whose answer is one.
_ONE: Final = frozenset({"vector", "scalar", "time", "absent"})


#: Metric → its labels.
Labels = Mapping[str, frozenset[str]]

_TABLE: Final = re.compile(r"<!-- table: ([a-z-]+) -->\n(.*?)<!-- end -->", re.DOTALL)
_ROW: Final = re.compile(r"^\| `([\w:]+)` \|(.*)\|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Found:
    """The labels of an answer that may differ, and how many series it has at most."""

    labels: frozenset[str]
    most: int


def documented(page: str) -> dict[str, frozenset[str]]:
    """Metric → labels, of every series that the text of docs/metrics.md defines."""
    found: dict[str, frozenset[str]] = dict(ALERTS)
    for table, body in _TABLE.findall(page):
        for name, rest in _ROW.findall(body):
            columns = rest.split("|")
            if table == "recorded":
                found[name] = _recorded(name)
            elif table == "device-metrics":
                found[name] = frozenset(re.findall(r"\w+", columns[0])) | {"cluster", "cell", "node"} | SCRAPED
            elif table.endswith("-metrics") and len(columns) == 5:
                labels = frozenset(re.findall(r"\w+", columns[1])) | (SCRAPED if table == "agent-metrics" else set())
                found[name] = labels
                if columns[0].strip() == "histogram":
                    found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
    return found


def _recorded(name: str) -> frozenset[str]:
    """Labels of what a rule records, which its name begins with; those of Sloth's are always the same."""
    level, _, _ = name.partition(":")
    if level in {"slo", "sloth_slo_info"}:
        return frozenset({"cluster", "fault", "objective", "sloth_service", "sloth_slo", "sloth_id"})
    return frozenset(label for label in VALUES if f"_{label}_" in f"_{level}_")


def most(expr: str, labels: Labels) -> int:
    """How many series an expression answers with at most. `labels` are those of each metric; one that is not there
    raises KeyError.
    """
    return _most(promql.parse(expr), labels).most


def _count(labels: frozenset[str], pinned: frozenset[str]) -> int:
    free = set(labels) - pinned
    for owner, more in SAYS_MORE.items():
        if owner in labels:
            free -= more
        elif free & more - VALUES.keys():
            free = free - more | {owner} - pinned
    if "node" in free and "instance" in free:  # an agent has one address
        free.discard("instance")
    bound = {label: VALUES[label] for label in free}
    if "cell" in pinned:
        bound |= {label: OF_A_CELL for label in ("node", "instance") if label in free}
    if "node" in pinned:
        bound |= dict.fromkeys(free & {"instance"}, 1)
    return math.prod(bound.values())


def _most(expr: Any, labels: Labels) -> Found:
    if isinstance(expr, promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
        return _most(expr.expr, labels)
    if isinstance(expr, promql.MatrixSelector):
        return _most(expr.vector_selector, labels)
    if isinstance(expr, promql.VectorSelector):
        own = labels[expr.name or ""]
        return Found(own, _count(own, _pinned(expr)))
    if isinstance(expr, promql.Call):
        if expr.func.name in _ONE or not expr.args:
            return Found(frozenset(), 1)
        inner = [_most(each, labels) for each in expr.args]
        return max(inner, key=lambda each: each.most)
    if isinstance(expr, promql.AggregateExpr):
        return _aggregated(expr, labels)
    if isinstance(expr, promql.BinaryExpr):
        left, right = _most(expr.lhs, labels), _most(expr.rhs, labels)
        if str(expr.op) == "or":
            return Found(left.labels | right.labels, left.most + right.most)
        return left if str(expr.op) in {"and", "unless"} else max(left, right, key=lambda each: each.most)
    return Found(frozenset(), 1)  # a number or a text


def _aggregated(expr: Any, labels: Labels) -> Found:
    inner = _most(expr.expr, labels)
    kept = frozenset(expr.modifier.labels) if expr.modifier is not None else frozenset()
    if expr.modifier is not None and expr.modifier.type == promql.AggModifierType.Without:
        kept = inner.labels - kept
    elsewhere = _all_pinned(expr.expr)
    groups = _count(kept, elsewhere)
    if str(expr.op) in _SOME:
        return Found(inner.labels, min(inner.most, int(expr.param.val) * groups))
    return Found(kept, min(inner.most, groups))


def _pinned(selector: Any) -> frozenset[str]:
    """Labels of which a selector takes one value."""
    return frozenset(each.name for each in selector.matchers.matchers if each.op == promql.MatchOp.Equal)


def _all_pinned(expr: Any) -> frozenset[str]:
    """Labels that every selector below takes one value of."""
    found: list[frozenset[str]] = []

    def visit(each: Any) -> bool:
        if isinstance(each, promql.VectorSelector):
            found.append(_pinned(each))
        return True

    promql.walk(expr, visit)
    return frozenset.intersection(*found) if found else frozenset()
