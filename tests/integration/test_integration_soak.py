"""Longer runs, before an issue is closed (`make soak`): kills at random moments, the seeds in the tests' names."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from integration_watch import Watch
from test_integration_kills import CLUSTER, SIM, SPREADING, assert_true_ttr, one_halt

from gpuchaos_stream.events.experiment import Status, Verdict
from gpuchaos_stream.stream.house import READY, House

pytestmark = [pytest.mark.soak, pytest.mark.broker, pytest.mark.timeout(600)]

#: Rules without the breaker: one experiment after the other is halted here, which it would rightly stop.
RULES = Path(__file__).parents[2] / "rules" / "hard-limits.yaml"


@pytest.mark.parametrize("seed", range(4))
async def test_worker_killed_at_random_moments_halts_each_experiment_once(house: House, seed: int) -> None:
    chance = random.Random(seed)
    worker = house.worker("worker", "--rules", str(RULES)).wait_for(READY)
    house.sim(*SIM).wait_for(READY)
    async with Watch(house.settings) as watch:
        await watch.read_on(6.0)
        for _ in range(3):
            experiment = await watch.start(house, SPREADING, CLUSTER)
            for _ in range(2):
                await watch.read_on(chance.uniform(0.0, 12.0))
                worker.kill()
                await watch.read_on(chance.uniform(0.0, 4.0))
                worker.start().wait_for(READY)
            await watch.until(lambda e=experiment: watch.reached(e, Status.FINISHED), "it finishes", 150.0)
            state = one_halt(watch, experiment)
            assert state.verdict is Verdict.HALTED
            assert_true_ttr(watch, state)
            await watch.read_on(8.0)
        await watch.commits_reach_the_end("gpuchaos")
