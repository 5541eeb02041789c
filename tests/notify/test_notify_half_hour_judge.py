"""The half hour's judge: it lets pass what is right, and finds what is missing, doubled, late or not expected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from half_hour_expected import HOOK, Episode, Key, episodes, of_prometheus
from half_hour_judge import Judgement, judge, table
from half_hour_receiver import Arrival
from notify_cases import T0, breaker, confirmed, halted, incident

from gpuchaos_stream.events.experiment import HaltState

#: The receiver was away from 100 to 400 s.
AWAY = [(T0 + 100, T0 + 400)]
#: A halt that is undone after 5 s and confirmed after 50, as its records say.
HALT: list[tuple[float, Any]] = [
    (T0, halted()),
    (T0 + 5, halted(HaltState.UNDONE, undone=T0 + 5)),
    (T0 + 50, confirmed(T0 + 50)),
]
LABELS = {"alertname": "GPUChaosExperimentHalted", "halt_id": "halt-1", "severity": "critical"}
NOTICES = [
    {"alertname": f"GPUChaosExperiment{what}", "experiment_id": "exp-1", "severity": "info"}
    for what in ("Started", "Finished")
]


def said(at: float, status: str, labels: dict[str, str] = LABELS, *, path: str = "/hook", as_: str = "") -> Arrival:
    headers = {"webhook-id": as_ or f"m-{at}-{status}-{labels['alertname']}"} if path == "/hook" else {}
    return Arrival(T0 + at, path, headers, {"alerts": [{"status": status, "labels": labels}]})


#: What a receiver is told of it that misses nothing.
RIGHT = [
    said(2, "resolved", NOTICES[0]),
    said(2, "firing"),
    said(7, "firing"),
    said(3, "firing", path="/alertmanager"),
    said(52, "resolved"),
    said(53, "resolved", path="/alertmanager"),
    said(52, "resolved", NOTICES[1]),
]


def judged(arrivals: list[Arrival], records: list[tuple[float, Any]] = HALT) -> Judgement:
    return judge(episodes(records, renew_s=60, least_s=20), arrivals, AWAY)


def test_what_is_told_once_and_resolved_after_is_right_and_stands_in_the_table() -> None:
    judgement = judged(RIGHT)
    assert judgement.complaints == []
    rows = [line.split() for line in table(judgement, T0, AWAY).splitlines()]
    assert ["webhook", "ExperimentHalted", "halt-1", "0.0", "2.0", "1", "50.0", "2.0"] in rows
    assert ["webhook", "ExperimentFinished", "exp-1", "50.0", "2.0"] in rows
    assert ["Alertmanager", "ExperimentHalted", "critical", "halt-1", "0.0", "3.0", "50.0", "3.0"] in rows


@pytest.mark.parametrize(
    ("arrivals", "complaint"),
    [
        ([each for each in RIGHT if each.body != RIGHT[4].body], "not resolved"),
        (RIGHT[:1] + RIGHT[4:5] + RIGHT[3:4] + RIGHT[5:], "resolved, but never told"),
        ([*RIGHT, said(60, "firing")], "told once more"),
        ([*RIGHT, said(60, "firing", path="/alertmanager")], "told once more"),
        ([*RIGHT, said(30, "firing"), said(31, "firing")], "told 4 times, 2 at most"),
        ([*RIGHT, said(30, "firing", path="/alertmanager")], "told 2 times, 1 at most"),
        ([*RIGHT, said(9, "firing", {**LABELS, "halt_id": "halt-2"})], "expected nothing"),
        ([*RIGHT, said(9, "resolved", NOTICES[0], as_="another")], "told once more"),
        (RIGHT[1:], "a notice that was not told"),
        ([replace(RIGHT[1], at=T0 + 45), *RIGHT[:1], *RIGHT[3:]], "told 45 s late"),
    ],
)
def test_what_is_missing_doubled_late_or_not_expected_is_found(arrivals: list[Arrival], complaint: str) -> None:
    found = judged(sorted(arrivals, key=lambda each: each.at)).complaints
    assert any(complaint in each for each in found), found


def test_a_request_that_comes_again_under_its_id_is_one() -> None:
    judgement = judged([*RIGHT[:2], RIGHT[1], *RIGHT[2:]])
    assert (judgement.complaints, judgement.repeats) == ([], 1)


def test_what_is_told_while_the_receiver_is_away_arrives_after_it_by_the_webhook_and_need_not_by_alertmanager() -> None:
    records = [(T0 + 150, incident()), (T0 + 200, incident(closed=T0 + 200))]
    labels = {"alertname": "GPUChaosIncident", "incident_id": "inc-1", "severity": "critical"}
    assert judged([said(420, "firing", labels), said(421, "resolved", labels)], records).complaints == []
    assert judged([], records).complaints == [f"{HOOK} GPUChaosIncident  inc-1: not told"]
    early = judged([said(350, "firing", labels), said(421, "resolved", labels)], records).complaints
    assert early == [f"{HOOK} GPUChaosIncident  inc-1: told while the receiver was away"]


def test_harm_under_a_silence_is_not_told_by_alertmanager() -> None:
    harm = incident(attributed=True)
    records = [*HALT, (T0 + 1, harm), (T0 + 40, harm.model_copy(update={"closed": T0 + 40}))]
    labels = {"alertname": "GPUChaosExperimentHarm", "incident_id": "inc-1", "severity": "critical"}
    hook = [said(2.5, "firing", labels), said(42, "resolved", labels)]
    records.sort(key=lambda each: each[0])
    assert judged([*RIGHT, *hook], records).complaints == []
    loud = [said(4, "firing", labels, path="/alertmanager"), said(43, "resolved", labels, path="/alertmanager")]
    (found,) = judged([*RIGHT, *hook, *loud], records).complaints
    assert "silence covers it" in found


def test_a_breaker_that_trips_again_is_told_again() -> None:
    records = [(T0, breaker(tripped=True)), (T0 + 30, breaker(tripped=False)), (T0 + 60, breaker(tripped=True))]
    found = [each for each in episodes(records, renew_s=60, least_s=20) if each.key.way == HOOK]
    assert [(each.opened - T0, each.closed and each.closed - T0) for each in found] == [(0, 30), (60, None)]


def test_an_alert_of_prometheus_is_two_where_its_samples_have_a_gap() -> None:
    labels = {"alertname": "GPUChaosNoWorker", "severity": "page", "cluster": "demo"}
    found = of_prometheus([{"labels": labels, "times": [0.0, 2.0, 4.0, 60.0, 62.0]}], gap_s=6, least_s=20)
    key = Key("Alertmanager", "GPUChaosNoWorker", "cluster=demo", "page")
    assert found == [Episode(key, 0.0, 4.0, least=20), Episode(key, 60.0, 62.0, least=20)]
