"""The numbers that an anomaly states: value, what was expected, how far off in deviations and in relation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuchaos_stream.detect.config import MEAN_DEVIATION_TO_SIGMA, DetectConfig
from gpuchaos_stream.detect.peers import Group, Verdict
from gpuchaos_stream.detect.table import Rows
from gpuchaos_stream.detect.window import Cell


@dataclass(frozen=True, slots=True)
class Look:
    """A close look at some metrics (indexes) of one group at one tick. `time` is the cell's event time then."""

    cell: Cell
    group: Group
    metrics: Rows
    verdict: Verdict
    tick: int
    time: float


class Numbers(NamedTuple):
    """`score` counts robust deviations; `effect` is relative to `expected`, None where nothing was expected."""

    value: float | None
    expected: float | None
    score: float
    effect: float | None


def of_device(look: Look, m: int, n: int, config: DetectConfig) -> Numbers:
    """Of the `n`-th device in row `m` of the verdict: against its peers where those speak, else its own past."""
    verdict, metric = look.verdict, int(look.metrics[m])
    of_number = bool(look.group.rules.number[metric, 0])
    peer = bool(verdict.peer_bad[m, n]) or (of_number and not verdict.past_bad[m, n])
    if peer and np.isfinite(verdict.center[m, 0]):
        expected, sigma = float(verdict.center[m, 0]), float(verdict.spread[m, 0])
    else:
        expected, sigma = float(verdict.mean[m, n]), MEAN_DEVIATION_TO_SIGMA * float(verdict.dev[m, n])
    return _distance(look, m, float(verdict.x[m, n]), (expected, sigma), config)


def of_group(look: Look, m: int, config: DetectConfig) -> Numbers:
    """Of the group as a whole: medians over its bad devices, or over all once none is bad."""
    verdict = look.verdict
    bad = verdict.past_bad[m]
    if not bad.any():
        bad = ~np.isnan(verdict.x[m])
    value, expected, dev = (float(np.median(part[m][bad])) for part in (verdict.x, verdict.mean, verdict.dev))
    return _distance(look, m, value, (expected, MEAN_DEVIATION_TO_SIGMA * dev), config)


def number(value: float | np.floating) -> float | None:
    """Six decimals of a finite value, else None."""
    return round(float(value), 6) if np.isfinite(value) else None


def _distance(look: Look, m: int, value: float, healthy: tuple[float, float], config: DetectConfig) -> Numbers:
    metric, rules = int(look.metrics[m]), look.group.rules
    expected, sigma = healthy
    if rules.event[metric, 0]:
        expected = 0.0
    scale = max(sigma, float(rules.floor[metric, 0]) / config.deviations, 1e-9)
    off = abs(value - expected)
    effect = off / abs(expected) if abs(expected) > 1e-9 else None
    return Numbers(number(value), number(expected), off / scale if np.isfinite(off) else 0.0, effect)
