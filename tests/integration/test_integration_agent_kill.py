"""A real agent killed with kill -9 while a real process is stopped: the process runs again, and all is told."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration_watch import RealNode, Watch, is_stopped, plan, real_node

from gpuchaos_stream.events.experiment import Status, Verdict
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.stream.house import READY, House

pytestmark = [pytest.mark.broker, pytest.mark.timeout(150)]

CLUSTER = "agent-kill"
LEASE_S = 12.0
#: Seconds that `plan` and the rules leave an experiment at most: duration, undo, objective.
ENDS_S = 90.0


def hang_of(node: RealNode) -> Plan:
    return plan(target=node.target, job=node.job, duration=30.0, lease=LEASE_S)


@contextlib.contextmanager
def continued(node: RealNode) -> Iterator[None]:
    """Whatever becomes of a test, the job is left running, so that it can be ended in order."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(node.pid, signal.SIGCONT)


def dead_man_of(agent: int) -> int:
    """Process id of the agent's dead man's switch, its only child with that command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == agent and b"gpuchaos_agent.deadman" in (folder / "cmdline").read_bytes():
                return int(folder.name)
    raise AssertionError(f"agent {agent} has no dead man's switch")


def kill_with_its_dead_man(node: RealNode) -> None:
    """Leaves nobody who could undo. The switch is held first, so that it cannot act on the agent's end."""
    dead_man = dead_man_of(node.agent.pid)
    os.kill(dead_man, signal.SIGSTOP)
    node.agent.kill()
    os.kill(dead_man, signal.SIGKILL)


async def injected(watch: Watch, house: House, node: RealNode) -> tuple[str, FaultEvent]:
    """Starts the experiment on a steady job; returns when the process is stopped and the control stage knows."""
    await watch.until(lambda: len(watch.frames(CLUSTER)) >= 6, "the job has a baseline")
    experiment = await watch.start(house, hang_of(node), CLUSTER)
    await watch.until(lambda: watch.reached(experiment, Status.ACTIVE), "the fault is in place")
    (fault,) = watch.faults(experiment_id=experiment, phase=FaultPhase.INJECTED)
    assert is_stopped(node.pid)
    return experiment, fault


async def test_killed_agent_undoes_the_fault_at_its_next_start_and_the_experiment_ends(house: House) -> None:
    worker = house.worker()
    node = real_node(house, cluster=CLUSTER)
    worker.wait_for(READY)
    with continued(node):
        async with Watch(house.settings) as watch:
            experiment, fault = await injected(watch, house, node)
            kill_with_its_dead_man(node)
            await watch.read_on(1.0)
            assert is_stopped(node.pid), "nobody is left who could undo, or this test shows nothing"
            assert not watch.faults(experiment_id=experiment, phase=FaultPhase.UNDONE)

            node.agent.start().wait_for(READY)
            assert not is_stopped(node.pid), "an agent that is ready has undone what was left behind"
            undone = await watch.until(
                lambda: watch.faults(experiment_id=experiment, phase=FaultPhase.UNDONE), "the undo is told"
            )
            assert {event.fault_id for event in undone} == {fault.fault_id}
            assert undone[0].reason == "agent restarted"
            state = await watch.until(lambda: watch.reached(experiment, Status.FINISHED), "it finishes", ENDS_S)
            assert state.verdict in {Verdict.PASSED, Verdict.FAILED, Verdict.HALTED}
            assert state.faults[0].undone is not None
            assert state.recovery.ttr is not None, "the job's own log shows that it recovered"
            assert not is_stopped(node.pid)
            await watch.commits_reach_the_end("gpuchaos")


async def test_fault_of_a_killed_agent_is_undone_by_its_lease_though_no_agent_comes_back(house: House) -> None:
    worker = house.worker()
    node = real_node(house, cluster=CLUSTER)
    worker.wait_for(READY)
    with continued(node):
        async with Watch(house.settings) as watch:
            experiment, fault = await injected(watch, house, node)
            expires = max(e.lease_expires or 0.0 for e in watch.faults(fault_id=fault.fault_id))
            node.agent.kill()
            left = max(0.0, expires - node_time(watch)) + 1.0
            await watch.until(lambda: not is_stopped(node.pid), "the dead man's switch undoes it", left)
            # It has no broker; the next start tells what was done, under the fault's own id.
            assert not watch.faults(experiment_id=experiment, phase=FaultPhase.UNDONE)
            node.agent.start().wait_for(READY)
            undone = await watch.until(
                lambda: watch.faults(experiment_id=experiment, phase=FaultPhase.UNDONE), "the undo is told"
            )
            assert {event.fault_id for event in undone} == {fault.fault_id}
            assert undone[0].reason == "agent ended"
            assert fault.time < undone[0].time <= expires
            state = await watch.until(lambda: watch.reached(experiment, Status.FINISHED), "it finishes", ENDS_S)
            assert state.verdict in {Verdict.PASSED, Verdict.FAILED, Verdict.HALTED}


def node_time(watch: Watch) -> float:
    """The time of the latest frame: the node's own clock, on which its leases are told."""
    return max(frame.time for frame in watch.frames(CLUSTER))
