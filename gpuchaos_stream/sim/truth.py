"""Ground truth: what really was wrong, with whom, and since when. Kept apart; no part of the loop reads it."""

from __future__ import annotations

from typing import Literal

from gpuchaos_stream.events.base import Entity, Timestamp, Wire


class Harm(Wire):
    """One thing that a good detector should notice: a metric (or fault name) on an entity, from `since` on."""

    entity: Entity
    metric: str
    since: Timestamp


class Truth(Wire):
    """One fault that really is. `ended` is when its cause went away, None while it lasts."""

    id: str
    source: Literal["injected", "organic"]
    fault: str
    entity: Entity
    node: str
    job: str | None
    experiment_id: str | None = None
    began: Timestamp
    ended: Timestamp | None = None
    harms: tuple[Harm, ...] = ()
