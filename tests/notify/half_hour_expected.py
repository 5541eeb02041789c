"""What should have been told in the half hour, from the records on Kafka and from Prometheus' own record of its alerts.

Written from the tables in docs/notify.md, without a line of `gpuchaos notify`: an alert that it forgets is missed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpuchaos_stream.events.experiment import BreakerState, ExperimentState, HaltState, Status
from gpuchaos_stream.events.incident import Incident

#: Ways on which an alert reaches the receiver.
HOOK: Final = "webhook"
ALERTMANAGER: Final = "Alertmanager"

#: Ours → as Alertmanager's convention has it (docs/notify.md).
SEVERITY: Final = {"info": "info", "warning": "warning", "error": "critical", "critical": "critical"}
_BEGUN: Final = {Status.INJECTING, Status.ACTIVE, Status.UNDOING, Status.HALTING, Status.RECOVERING}


@dataclass(frozen=True, order=True)
class Key:
    """One alert on one way: what a receiver tells it by. `which` is a halt's, incident's, experiment's or cluster's."""

    way: str
    alert: str
    which: str
    severity: str = ""


@dataclass
class Episode:
    """One time that an alert was on. Times are those of the broker, or of Prometheus, epoch seconds.

    `changes`: when it became another stage or severity, which is told again. `least` is how long of it must fall into
    time in which the receiver was there for it to be told at all; None: it must not be told.
    """

    key: Key
    opened: float
    closed: float | None = None
    changes: list[float] = field(default_factory=list)
    least: float | None = 0.0
    notice: bool = False


@dataclass(frozen=True)
class _On:
    name: str
    which: str
    on: bool
    severity: str
    stage: str = ""
    experiment_id: str | None = None
    harm: bool = False


def episodes(records: Sequence[tuple[float, Any]], *, renew_s: float, least_s: float) -> list[Episode]:
    """What notify should tell on both ways. `records`: append time and event, in the order of the broker.

    Alertmanager tells what is on for `least_s` at least; harm of an experiment it keeps silent about until `renew_s`
    after the experiment's end.
    """
    ends: dict[str, float] = {}
    for at, event in records:
        if isinstance(event, ExperimentState) and event.finished is not None:
            ends.setdefault(event.id, at)  # a worker that is started again says it again
    found = list(_notices(records))
    last: dict[tuple[str, str], _On] = {}
    open_: dict[tuple[str, str], tuple[Episode, Episode]] = {}
    for at, event in records:
        for now in _alerts(event):
            here = (now.name, now.which)
            before = last.get(here)
            last[here] = now
            if here not in open_ and now.on:
                open_[here] = (_hook(now, at), _alertmanager(now, at, least_s))
                found += open_[here]
            elif here in open_ and not now.on:
                for each in open_.pop(here):
                    each.closed = at
            elif now.on and before is not None and (before.stage, before.severity) != (now.stage, now.severity):
                hook, other = open_[here]
                hook.changes.append(at)
                if SEVERITY[before.severity] != SEVERITY[now.severity]:
                    other.closed = at
                    open_[here] = (hook, _alertmanager(now, at, least_s))
                    found.append(open_[here][1])
            if now.harm and here in open_:
                open_[here][1].least = None
    for each in found:
        over = ends.get(_experiment_of(each, last), float("inf"))
        if each.least is None and each.closed is not None and each.closed > over + renew_s:
            each.least = float("inf")  # it outlived the silence: it may be told
    return found


def of_prometheus(firing: Iterable[Mapping[str, Any]], *, gap_s: float, least_s: float) -> list[Episode]:
    """What Prometheus should have told by way of Alertmanager; samples further apart than `gap_s` are two episodes."""
    found: list[Episode] = []
    for series in firing:
        key = prometheus_key(series["labels"])
        times = series["times"]
        starts = [0] + [i for i in range(1, len(times)) if times[i] - times[i - 1] > gap_s]
        for first, following in zip(starts, [*starts[1:], len(times)], strict=True):
            found.append(Episode(key, times[first], times[following - 1], least=least_s))
    return found


def prometheus_key(labels: Mapping[str, str]) -> Key:
    """The key of an alert of Prometheus'."""
    own = {name: value for name, value in labels.items() if name not in {"alertname", "severity", "signal"}}
    which = ",".join(f"{name}={value}" for name, value in sorted(own.items()))
    return Key(ALERTMANAGER, labels["alertname"], which, labels["severity"])


def _hook(now: _On, at: float) -> Episode:
    return Episode(Key(HOOK, now.name, now.which), at)


def _alertmanager(now: _On, at: float, least_s: float) -> Episode:
    return Episode(Key(ALERTMANAGER, now.name, now.which, SEVERITY[now.severity]), at, least=least_s)


def _experiment_of(episode: Episode, last: Mapping[tuple[str, str], _On]) -> str:
    on = last.get((episode.key.alert, episode.key.which))
    return (on.experiment_id if on else None) or ""


def _alerts(event: Any) -> Iterator[_On]:
    if isinstance(event, BreakerState):
        yield _On("GPUChaosBreakerTripped", event.cluster, event.tripped, "critical", event.cause)
    elif isinstance(event, Incident):
        on = event.closed is None and not event.superseded
        name = "GPUChaosExperimentHarm" if event.attributed else "GPUChaosIncident"
        severity = str(event.severity)
        yield _On(name, event.id, on, severity, "", event.experiment_id, harm=event.attributed)
    elif isinstance(event, ExperimentState):
        stuck = sorted(fault.fault_id for fault in event.faults if fault.phase == "undo_failed")
        yield _On("GPUChaosFaultNotUndone", event.id, bool(stuck), "critical", ",".join(stuck), event.id)
        for halt in event.halts:
            over = halt.confirmed or (halt.undone if event.status is Status.FINISHED else None)
            if halt.dry_run:
                continue
            escalated = halt.state is HaltState.ESCALATED
            severity = "critical" if escalated else "warning" if halt.cause.startswith("operator:") else "error"
            stage = "escalated" if escalated else "undone" if halt.undone is not None else "requested"
            yield _On("GPUChaosExperimentHalted", halt.id, over is None, severity, stage, event.id)


def _notices(records: Sequence[tuple[float, Any]]) -> Iterator[Episode]:
    told: set[Key] = set()
    for at, event in records:
        if not isinstance(event, ExperimentState):
            continue
        what = [
            *(["GPUChaosExperimentStarted"] if event.status in _BEGUN else []),
            *(["GPUChaosExperimentFinished"] if event.status is Status.FINISHED else []),
        ]
        for name in what:
            key = Key(HOOK, name, event.id)
            if key not in told:
                told.add(key)
                yield Episode(key, at, at, notice=True)
