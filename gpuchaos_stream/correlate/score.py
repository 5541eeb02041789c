"""How well one cause explains one anomaly: time × nearness × signature, each 0..1. Purely pairwise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gpuchaos_stream.correlate.expectation import Signature
from gpuchaos_stream.correlate.records import AnomalyRecord
from gpuchaos_stream.correlate.signatures import CLOSENESS
from gpuchaos_stream.topology.place import Place, Relation, relation


@dataclass(frozen=True, slots=True)
class Config:
    """What attribution is tuned by; all in seconds but `threshold`.

    `slack_s`: how much before its cause an anomaly may seem to start, for clocks are off and a frame's tick is
    rounded down to the second. `tail_s`: how long after its removal a fault explains new anomalies fully,
    `fade_s`: over how many seconds more it loses that. `group_s`: what no fault explains is one incident when
    it starts within so many seconds of each other, and within `span_s` in all.
    """

    threshold: float = 0.5
    slack_s: float = 1.5
    tail_s: float = 10.0
    fade_s: float = 30.0
    group_s: float = 10.0
    span_s: float = 600.0


#: What is left of the time score at an expectation's latest delay; in between it falls in a straight line.
_AT_LATEST: Final = 0.6
#: What is left of it at the far end of the clocks' slack, before the cause.
_AT_SLACK: Final = 0.8


@dataclass(frozen=True, slots=True)
class Cause:
    """A fault as a cause. `since` is when it began to act, `gone` when it was removed (None: it is there).

    `fault_id` is the injected fault's id, or `observed:…` for a fact that nobody asked for. `window` is the first
    and the last start of an anomaly that it could explain.
    """

    fault_id: str
    name: str
    entity: str
    place: Place
    since: float
    gone: float | None
    experiment_id: str | None
    signature: Signature
    window: tuple[float, float] = (-math.inf, math.inf)

    def holds(self, start: float) -> bool:
        """Whether its window holds `start`."""
        return self.window[0] <= start <= self.window[1]


@dataclass(frozen=True, slots=True)
class Score:
    """The parts and their product, with the reason why the product is 0 where it is."""

    time: float
    distance: float
    signature: float
    relation: Relation | None
    why: str

    @property
    def total(self) -> float:
        """The product, 0..1."""
        return self.time * self.distance * self.signature


def score(anomaly: AnomalyRecord, place: Place, cause: Cause, config: Config) -> Score:
    """How well `cause` explains `anomaly` at `place`. Cheap tests come first: most pairs have nothing in common."""
    expected = cause.signature.find(anomaly.name, anomaly.entity_kind)
    if expected is None or (expected.marked and not anomaly.marked):
        return Score(0.0, 0.0, 0.0, None, f"{cause.name} does not cause {anomaly.name}")
    delay = anomaly.start - cause.since
    time = timing(delay, expected.typical_s, expected.latest_s, config.slack_s + cause.signature.lead_s)
    if time == 0.0:
        why = "it began before the fault" if delay < 0 else f"it began more than {expected.latest_s:.0f} s after it"
        return Score(0.0, 0.0, expected.weight, None, why)
    if cause.gone is not None:
        time *= _after(anomaly.start - cause.gone, config)
        if time == 0.0:
            return Score(0.0, 0.0, expected.weight, None, "it began long after the fault was removed")
    near = relation(cause.place, place, expected.through)
    if near is None:
        return Score(time, 0.0, expected.weight, None, "nothing that the fault works through connects them")
    return Score(time, CLOSENESS[near.hops], expected.weight, near, expected.why)


def timing(delay: float, typical: float, latest: float, slack: float) -> float:
    """1 up to the typical delay, falling to `_AT_LATEST` at the latest; 0 beyond it and before `-slack`."""
    if delay < -slack or delay > latest:
        return 0.0
    if delay < 0:
        return 1.0 - (1.0 - _AT_SLACK) * (-delay / slack)
    if delay <= typical or latest <= typical:
        return 1.0
    return 1.0 - (1.0 - _AT_LATEST) * (delay - typical) / (latest - typical)


def _after(since_gone: float, config: Config) -> float:
    """1 while the fault is there and for its tail, then fading to 0."""
    if since_gone <= config.tail_s:
        return 1.0
    return max(0.0, 1.0 - (since_gone - config.tail_s) / config.fade_s)
