"""Half an hour of the demo cluster with faults: who should be told is told, once, though the receiver is away.

`make half-hour` runs it. `GPUCHAOS_HALF_HOUR_S` (1800) below 1500 takes a course of five minutes instead, which leaves
out what takes longer and makes nothing faster.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any, Final

import click
import pytest
from half_hour_expected import episodes, of_prometheus
from half_hour_judge import judge, table
from half_hour_receiver import Mode
from half_hour_schedule import DEMO, course
from half_hour_site import GROUP_INTERVAL_S, SCRAPE_S, Site, site
from lab.waiting import until

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.envelope import from_value
from gpuchaos_stream.events.experiment import ExperimentState
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.notify.queue import Queue
from gpuchaos_stream.stream.brokers import Kind
from gpuchaos_stream.stream.bus import Bus

pytestmark = [pytest.mark.soak, pytest.mark.broker, pytest.mark.timeout(2700)]

#: How long an alert must be on, and the receiver there, for Alertmanager to be held to telling of it; seconds.
LEAST_S: Final = 20.0
#: `renew` of notify's Alertmanager, seconds: its default.
RENEW_S: Final = 60.0
#: How long after the last step everything has to be over and told, seconds.
SETTLE_S: Final = 240.0


def test_in_half_an_hour_every_alert_arrives_once_and_is_resolved_although_the_receiver_was_away(
    tmp_path: Path, broker_kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    run = course(float(os.environ.get("GPUCHAOS_HALF_HOUR_S", "1800")))
    with site(tmp_path, broker_kind, run) as place:
        start = time.time()
        for step in run.steps:
            wait_until(place, start + step.at)
            with capsys.disabled():
                click.echo(f"{time.time() - start:7.1f}  {step.what} {shown(step.given)}")
            getattr(place, step.what)(*step.given)
        wait_until(place, start + run.length)
        until(lambda: quiet(place), SETTLE_S)
        records = asyncio.run(read(place))
        expected = episodes(records, renew_s=RENEW_S, least_s=LEAST_S)
        firing = place.firing(start - 60, time.time())
        expected += of_prometheus(firing, gap_s=3 * SCRAPE_S, least_s=LEAST_S)
        away = outages(place)
        judgement = judge(expected, place.endpoint.arrivals, away)
        with capsys.disabled():
            click.echo(f"\nthe receiver was away {[tuple(round(t - start, 1) for t in each) for each in away]}")
            click.echo(f"turned away: { {str(mode): count for mode, count in place.endpoint.turned_away.items()} }")
            click.echo(f"repeated under the same webhook-id: {judgement.repeats}\n{table(judgement, start, away)}")
        assert judgement.complaints == []
        names = {series["labels"]["alertname"] for series in firing}
        assert run.prometheus <= names <= run.prometheus | run.may
        assert unexplained(records) == sorted((each.entity.split("/")[1],) for each in run.failures), "a false alarm"
        verdicts = {event.id: event.verdict for _, event in records if isinstance(event, ExperimentState)}
        assert {name: verdict for name, verdict in verdicts.items() if name != "spread-worker-dies"} == run.verdicts
        assert {Mode.HANGS, Mode.ANSWERS_503} <= set(place.endpoint.turned_away)


def wait_until(place: Site, at: float) -> None:
    """Until a time, epoch seconds, while all parts live."""
    arrived = place.endpoint.changed
    with arrived:
        while (left := at - time.time()) > 0:
            place.check()
            arrived.wait(min(left, 1.0))


def quiet(place: Site) -> bool:
    """Whether nothing is on, nothing waits, and a while has passed since the last word."""
    place.check()
    last = max((each.at for each in place.endpoint.arrivals), default=0.0)
    if time.time() - last < 4 * GROUP_INTERVAL_S:
        return False
    queue = Queue(place.house.folder / "notify", random.Random(), reading=True)
    try:
        waiting = sum(queue.standing(name, time.time())["waiting"] for name in ("hook", "alertmanager"))
        return not waiting and not queue.count_open() and not place.alerts()
    finally:
        queue.close()


async def read(place: Site) -> list[tuple[float, Any]]:
    """All states of experiments, breakers and incidents with their append times, in the broker's order."""
    async with Bus(place.house.settings, client_id="half-hour") as bus:
        records = await bus.snapshot((topics.EXPERIMENTS.name, topics.INCIDENTS.name))
    found = [(record.timestamp / 1000, from_value(record.topic, record.value)) for record in records if record.value]
    return sorted(found, key=lambda each: each[0])


def unexplained(records: list[tuple[float, Any]]) -> list[tuple[str, ...]]:
    """The nodes of each incident on the cluster of the experiments that none of them explains, sorted."""
    last = {event.id: event for _, event in records if isinstance(event, Incident) and event.cluster == DEMO}
    return sorted(each.nodes for each in last.values() if not each.attributed and not each.superseded)


def outages(place: Site) -> list[tuple[float, float]]:
    """From when until when the receiver was away."""
    found: list[tuple[float, float]] = []
    since: float | None = None
    for at, mode in place.outages:
        if mode is Mode.UP and since is not None:
            found.append((since, at))
            since = None
        elif mode is not Mode.UP and since is None:
            since = at
    return found


def shown(given: tuple[Any, ...]) -> str:
    return " ".join(str(each["name"]) if isinstance(each, dict) else str(each) for each in given)
