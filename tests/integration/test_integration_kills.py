"""The loop under kill -9, an absent broker and a changing number of workers: one halt, right times, nothing lost."""

from __future__ import annotations

from collections import Counter

import pytest
from integration_watch import Watch, ids, plan

from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.experiment import ExperimentState, HaltState, Status, Verdict
from gpuchaos_stream.events.fault import FaultPhase
from gpuchaos_stream.stream.house import READY, House

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

CLUSTER = "kills"
JOB = "train-c0-0"
SIM = ("--nodes", "12", "--cells", "1", "--cluster", CLUSTER, "--seed", "7")

#: A hang that spreads to a further node every second: past its limit of one within a few seconds.
SPREADING = plan(
    target="process/n002/4101",
    job=JOB,
    params={"spread": 5, "spread_every_s": 1.0},
    duration=40.0,
    lease=20.0,
    limits={"nodes": 1, "gpus": 8},
)


def one_halt(watch: Watch, experiment_id: str) -> ExperimentState:
    """The finished state, after asserting that exactly one halt was decided, sent and carried out."""
    state = watch.state(experiment_id)
    assert state is not None
    assert len(state.halts) == 1, state.halts
    sent = [c for c in watch.commands(CommandKind.HALT) if c.experiment_id == experiment_id]
    per_node = Counter((c.node, c.id) for c in sent)
    nodes = {node for node, _ in per_node}
    assert len(per_node) == len(nodes), f"more than one halt for a node: {per_node}"
    # A repeated command is answered again, so that a lost answer does no harm; what counts is that one id did it.
    assert len(ids(watch.faults(experiment_id=experiment_id, phase=FaultPhase.INJECTED))) == 1
    assert watch.faults(experiment_id=experiment_id, phase=FaultPhase.UNDONE)
    return state


def assert_true_ttr(watch: Watch, state: ExperimentState) -> None:
    injected = state.recovery.injected
    assert injected is not None
    assert state.recovery.ttr is not None
    true = watch.true_recovery(CLUSTER, JOB, injected, share=0.7, hold_s=3.0)
    # The pace is known once a second, and a second is floored in the independent answer.
    assert state.recovery.ttr == pytest.approx(true, abs=1.6)


@pytest.mark.soak
async def test_worker_killed_again_and_again_halts_once_and_times_rightly(house: House) -> None:
    worker = house.worker().wait_for(READY)
    house.sim(*SIM).wait_for(READY)

    def kill_and_restart() -> None:
        worker.kill()
        worker.start().wait_for(READY)

    async with Watch(house.settings) as watch:
        await watch.read_on(6.0)
        experiment = await watch.start(house, SPREADING, CLUSTER)
        for status in (Status.PENDING, Status.ACTIVE, Status.HALTING, Status.RECOVERING):
            await watch.until(lambda s=status: watch.reached(experiment, s), f"{status} is reached")
            kill_and_restart()
        await watch.until(lambda: watch.reached(experiment, Status.FINISHED), "it finishes", 90.0)
        await watch.read_on(3.0)
        state = one_halt(watch, experiment)
        assert state.verdict is Verdict.HALTED
        assert state.halts[0].state in {HaltState.UNDONE, HaltState.CONFIRMED}
        assert_true_ttr(watch, state)
        await watch.commits_reach_the_end("gpuchaos")


async def test_worker_killed_at_the_halt_command_halts_once(house: House) -> None:
    worker = house.worker().wait_for(READY)
    house.sim(*SIM).wait_for(READY)
    async with Watch(house.settings) as watch:
        await watch.read_on(6.0)
        experiment = await watch.start(house, SPREADING, CLUSTER)
        # The command is out, the state that remembers it may not be: the narrowest place of all.
        await watch.until(lambda: watch.commands(CommandKind.HALT), "a halt is sent")
        worker.kill()
        worker.start().wait_for(READY)
        await watch.until(lambda: watch.reached(experiment, Status.FINISHED), "it finishes", 90.0)
        state = one_halt(watch, experiment)
        assert state.verdict is Verdict.HALTED
        await watch.commits_reach_the_end("gpuchaos")


async def test_second_worker_joins_and_leaves_and_nothing_is_halted_twice(house: House) -> None:
    house.worker("worker-1").wait_for(READY)
    house.sim(*SIM).wait_for(READY)
    async with Watch(house.settings) as watch:
        await watch.read_on(6.0)
        experiment = await watch.start(house, SPREADING, CLUSTER)
        await watch.until(lambda: watch.reached(experiment, Status.ACTIVE), "it is active")
        second = house.worker("worker-2").wait_for(READY)
        await watch.until(lambda: watch.reached(experiment, Status.HALTING, Status.RECOVERING), "it is halted")
        second.stop()
        await watch.until(lambda: watch.reached(experiment, Status.FINISHED), "it finishes", 90.0)
        state = one_halt(watch, experiment)
        assert state.verdict is Verdict.HALTED
        assert_true_ttr(watch, state)
        await watch.commits_reach_the_end("gpuchaos")
