"""Silences of experiments at an Alertmanager: when they begin, and when they end."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from notify_cases import Seen, Server, confirmed, experiment, hear, incident, opened, serving

from gpuchaos_stream.notify.delivery import Sender
from gpuchaos_stream.notify.desk import Desk

IT: Final = "  - {{name: it, type: alertmanager, url: '{url}', allow_private: true, silence: true}}"


def _alertmanager(seen: Seen) -> tuple[int, dict[str, str], bytes]:
    return (200, {}, b'{"silenceID": "s-1"}' if "silences" in seen.path else b"")


@pytest.mark.parametrize("over", [True, False])
async def test_a_silence_goes_when_the_harm_is_over_or_has_outlived_the_experiment(tmp_path: Path, over: bool) -> None:
    now = [1_790_000_000.0]

    with (
        serving(Server(behave=_alertmanager)) as server,
        opened(tmp_path, IT.format(url=server.url)) as (config, queue, notifier),
    ):
        desk = Desk(config, queue, Sender(), lambda: now[0])

        async def after(seconds: float, *events: object) -> list[str]:
            hear(notifier, queue, *events, now=now[0])
            now[0] += seconds
            before = len(server.seen)
            while await desk.step(config.receivers["it"]):
                pass
            return [f"{each.method} {each.path.rsplit('/', 1)[-1]}" for each in server.seen[before:]]

        assert "POST silences" in await after(5, experiment(), incident(attributed=True))
        assert "DELETE s-1" not in await after(5, confirmed())
        if over:
            told = await after(5, incident(attributed=True, closed=now[0]))
            assert told == ["POST alerts", "DELETE s-1"], "first that it is over"
        else:
            assert "DELETE s-1" in await after(61)
        assert queue.silences("it") == {}


async def test_a_silence_ends_where_nobody_says_any_more_that_the_experiment_runs(tmp_path: Path) -> None:
    state = experiment().model_copy(update={"ends": experiment().time + 60, "plan": {"objectives": {"ttr": 120.0}}})
    now = [state.time]

    with (
        serving(Server(behave=_alertmanager)) as server,
        opened(tmp_path, IT.format(url=server.url)) as (config, queue, notifier),
    ):
        desk = Desk(config, queue, Sender(), lambda: now[0])
        hear(notifier, queue, state, now=now[0])
        # Ten minutes after it should have recovered; until then it is renewed.
        for seconds, there in ((0, True), (60 + 120 + 599, True), (60 + 120 + 610, False), (60 + 120 + 700, False)):
            now[0] = state.time + seconds
            while await desk.step(config.receivers["it"]):
                pass
            assert bool(queue.silences("it")) is there, seconds
        assert [each.method for each in server.seen if "silence" in each.path].count("DELETE") == 1
