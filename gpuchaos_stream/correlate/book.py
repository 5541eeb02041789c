"""Where each judged anomaly is filed: under its cause, its experiment, or what no fault explains."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from gpuchaos_stream.correlate.attribution import Verdict
from gpuchaos_stream.correlate.records import AnomalyRecord
from gpuchaos_stream.events.base import Severity

#: Signals that mean that the state of a node, or of a whole cell, is not known.
_SILENCE: Final = frozenset({"telemetry_stale"})


class Book:
    """Sets of anomaly ids, and what has to be shown anew since they changed.

    `causes` and `unexplained_touched` are marks for the next `changed()`, `experiments` for the next question
    about a blast radius; whoever uses a mark clears it.
    """

    def __init__(self) -> None:
        self.by_cause: defaultdict[str, set[str]] = defaultdict(set)
        self.by_experiment: defaultdict[str, set[str]] = defaultdict(set)
        self.unexplained: set[str] = set()
        self.critical: set[str] = set()
        self.silent: defaultdict[str, set[str]] = defaultdict(set)
        self.open: set[str] = set()
        self.verdicts: dict[str, Verdict] = {}
        self.causes: set[str] = set()
        self.experiments: set[str] = set()
        self.unexplained_touched: set[str] = set()
        self.regroup = False

    def file(self, record: AnomalyRecord, verdict: Verdict) -> None:
        """Files a new or changed anomaly, or one whose verdict changed."""
        anomaly_id = record.anomaly_id
        self.remove(record)
        self.verdicts[anomaly_id] = verdict
        self._mark(anomaly_id, verdict)
        if verdict.cause is None:
            self.unexplained.add(anomaly_id)
        else:
            self.by_cause[verdict.cause].add(anomaly_id)
        if verdict.experiment_id is not None:
            self.by_experiment[verdict.experiment_id].add(anomaly_id)
        elif record.weight is Severity.CRITICAL:
            self.critical.add(anomaly_id)
        if record.fact is None and record.end is None:
            self.open.add(anomaly_id)
        if record.name in _SILENCE:
            self.silent[record.entity].add(anomaly_id)

    def remove(self, record: AnomalyRecord) -> None:
        """Takes an anomaly out."""
        anomaly_id = record.anomaly_id
        verdict = self.verdicts.pop(anomaly_id, None)
        if verdict is None:
            return
        self._mark(anomaly_id, verdict)
        self.unexplained.discard(anomaly_id)
        self.critical.discard(anomaly_id)
        self.open.discard(anomaly_id)
        _discard(self.by_cause, verdict.cause, anomaly_id)
        _discard(self.by_experiment, verdict.experiment_id, anomaly_id)
        _discard(self.silent, record.entity, anomaly_id)

    def charged(self, anomaly_id: str) -> bool:
        """Whether an experiment explains it."""
        return self.verdicts[anomaly_id].experiment_id is not None

    def _mark(self, anomaly_id: str, verdict: Verdict) -> None:
        if verdict.cause is None:
            self.unexplained_touched.add(anomaly_id)
            self.regroup = True
        else:
            self.causes.add(verdict.cause)
        if verdict.experiment_id is not None:
            self.experiments.add(verdict.experiment_id)


def _discard(sets: defaultdict[str, set[str]], key: str | None, value: str) -> None:
    if key is not None and key in sets:
        sets[key].discard(value)
        if not sets[key]:
            del sets[key]
