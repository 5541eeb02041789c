"""The life of anomalies: opened once, updated while they last, closed once, under ids that a replay makes again."""

from __future__ import annotations

from typing import Final

from gpuchaos_stream.events.anomaly import Anomaly, AnomalyKind, AnomalyPhase
from gpuchaos_stream.events.base import Severity, stable_id

#: What one open anomaly is known by: (cluster, cell, entity, metric, role).
Key = tuple[str, ...]
Detail = dict[str, str | float | int | bool | None]

#: Scores are cut here: among peers that agree to the last digit the distance has no meaning.
HIGHEST_SCORE: Final = 1000.0


class Lifecycle:
    """Open anomalies and the events they make. `take` hands the events over in an order of their own."""

    def __init__(self, update_every: float) -> None:
        self._update_every = update_every
        self._open: dict[Key, Anomaly] = {}
        self._updated: dict[Key, float] = {}
        self._events: list[Anomaly] = []
        self._adopted: dict[tuple[str, str | None, str, str], Anomaly] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, key: Key) -> Anomaly | None:
        """The open anomaly of `key`, as last sent."""
        return self._open.get(key)

    def open(
        self,
        key: Key,
        *,
        cluster: str,
        entity: str,
        metric: str,
        start: float,
        time: float,
        identity: tuple[object, ...] = (),
        kind: AnomalyKind = AnomalyKind.SIGNAL,
        severity: Severity = Severity.WARNING,
        score: float | None = None,
        effect: float | None = None,
        value: float | None = None,
        expected: float | None = None,
        node: str | None = None,
        cell: str | None = None,
        job: str | None = None,
        detail: Detail | None = None,
    ) -> bool:
        """Opens an anomaly unless one of `key` is open. The id is made of entity, metric, the second of `start`
        and `identity`, which parts what several cells say of one job.
        """
        if key in self._open:
            return False
        adopted = self._adopted.pop((cluster, cell, entity, metric), None)
        if adopted is not None:
            self._open[key] = adopted
            self.update(key, time=time, value=value, score=adopted.score if score is None else score, effect=effect)
            return True
        anomaly_id = stable_id(entity, metric, int(start), *identity)
        anomaly = Anomaly(
            id=stable_id(anomaly_id, AnomalyPhase.OPENED.value),
            time=time,
            cluster=cluster,
            anomaly_id=anomaly_id,
            phase=AnomalyPhase.OPENED,
            kind=kind,
            metric=metric,
            entity=entity,
            node=node,
            cell=cell,
            job=job or None,
            start=start,
            severity=severity,
            score=min(1.0 + severity.rank if score is None else score, HIGHEST_SCORE),
            effect=effect,
            value=value,
            expected=expected,
            detail=detail or {},
        )
        self._open[key] = anomaly
        self._updated[key] = time
        self._events.append(anomaly)
        return True

    def adopt(self, anomaly: Anomaly) -> None:
        """Takes over an anomaly that another worker opened: found again it goes on under its id."""
        whose = (anomaly.cluster, anomaly.cell, anomaly.entity, anomaly.metric)
        if anomaly.phase is AnomalyPhase.CLOSED:
            self._adopted.pop(whose, None)
        else:
            self._adopted[whose] = anomaly

    def give_up(self, cluster: str, cell: str, time: float) -> None:
        """Closes what was adopted of a cell and not found again, saying so: it is no proof of health."""
        for whose in [whose for whose in self._adopted if whose[:2] == (cluster, cell)]:
            key = (cluster, cell, "adopted", *whose[2:])
            self._open[key] = self._adopted.pop(whose)
            self._updated[key] = time
            self.close(key, time=time, end=time, reason="not_found_after_restart")

    def update_due(self, key: Key, time: float) -> bool:
        """Whether the open anomaly of `key` was last sent long enough ago."""
        return key in self._open and time - self._updated[key] >= self._update_every

    def update(self, key: Key, *, time: float, value: float | None, score: float, effect: float | None) -> None:
        """Says again that it lasts, with the numbers of now."""
        changed: dict[str, object] = {"value": value, "score": min(score, HIGHEST_SCORE), "effect": effect}
        self._send(key, AnomalyPhase.UPDATED, time, changed)
        self._updated[key] = time

    def close(self, key: Key, *, time: float, end: float, reason: str = "", value: float | None = None) -> None:
        """Closes the anomaly of `key`, if one is open. `end` is when it was last over."""
        before = self._open.get(key)
        if before is None:
            return
        changed: dict[str, object] = {"end": max(end, before.start)}
        if value is not None:
            changed["value"] = value
        if reason:
            changed["detail"] = {**before.detail, "closed_because": reason}
        self._send(key, AnomalyPhase.CLOSED, max(time, before.start), changed)
        del self._open[key], self._updated[key]

    def drop(self, prefix: tuple[str, ...]) -> None:
        """Forgets all open anomalies whose keys begin so, without an event."""
        for key in [key for key in self._open if key[: len(prefix)] == prefix]:
            del self._open[key], self._updated[key]

    def _send(self, key: Key, phase: AnomalyPhase, time: float, changed: dict[str, object]) -> None:
        before = self._open[key]
        mark = stable_id(before.anomaly_id, phase.value, int(time) if phase is AnomalyPhase.UPDATED else "")
        after = before.model_copy(update={**changed, "id": mark, "phase": phase, "time": time})
        if phase is AnomalyPhase.UPDATED:
            self._open[key] = after
        self._events.append(after)

    def take(self) -> list[Anomaly]:
        """The events since the last call, by time, entity, metric and phase."""
        events, self._events = self._events, []
        events.sort(key=lambda a: (a.time, a.entity, a.metric, a.phase.value, a.id))
        return events
