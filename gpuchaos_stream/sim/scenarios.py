"""The demo's three experiments, and what each must show for the demo to succeed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuchaos_stream.events.experiment import ExperimentState, HaltState, Verdict
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.experiments.plan import Plan

#: Where the demo runs: the simulated nodes and this machine, one cluster.
CLUSTER: Final = "demo"
HOST: Final = "host-0"
HOST_CELL: Final = "host"
HOST_JOB: Final = "toy"
#: The GPU that really fails during the third experiment, and when after its injection, seconds.
FAILING_GPU: Final = "gpu/n051/5"
FAILS_AFTER_S: Final = 2.0

#: What is wrong with an outcome, in words; empty when all is as it must be.
Complaints = list[str]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One experiment: its plan, the verdict that is expected, and what else must be true of its final state."""

    title: str
    plan: Plan
    expected: Verdict
    check: Callable[[ExperimentState, Sequence[Incident]], Complaints]

    def complaints(self, state: ExperimentState | None, incidents: Sequence[Incident]) -> Complaints:
        """What is not as expected."""
        if state is None:
            return ["it did not finish"]
        if state.verdict is not self.expected:
            return [f"verdict {state.verdict}, expected {self.expected}: {state.reason}"]
        return self.check(state, incidents)


def scenarios(host_pid: int) -> tuple[Scenario, ...]:
    """The three. `host_pid` is the real job's process on this machine."""
    return (
        Scenario(
            "a real process of a real job on this machine hangs, and is back in time",
            _plan(
                "hung-rank",
                "A rank that hangs is noticed in seconds and the job is back at its pace.",
                fault="process-stop",
                params={"job": HOST_JOB},
                certifies=("hang-detection", "hang-recovery"),
                target=f"process/{HOST}/{host_pid}",
                job=HOST_JOB,
                duration=5.0,
                limits={"gpus": 0, "nodes": 0, "jobs": 0, "gpu_seconds": 0.0},
                objectives={"ttd": 5.0, "ttm": 10.0, "ttr": 25.0},
            ),
            Verdict.PASSED,
            _attributed,
        ),
        Scenario(
            "a fault spreads from node to node past its limit, and is halted",
            _plan(
                "spreading-hang",
                "A hang that spreads over more than two further nodes is stopped by itself.",
                fault="process-stop",
                params={"spread": 8, "spread_every_s": 2.0},
                certifies=("automatic-halt",),
                target="process/n016/4100",
                job="train-c1-0",
                duration=30.0,
                limits={"gpus": 16, "nodes": 2, "jobs": 0, "gpu_seconds": 600.0},
                objectives={"ttd": 5.0, "ttm": 35.0, "ttr": 45.0},
            ),
            Verdict.HALTED,
            _halted_once,
        ),
        Scenario(
            "a GPU of another job really fails meanwhile, and is told apart",
            _plan(
                "ecc-record",
                "A memory error is seen and its job restarted; a failure elsewhere is not charged to it.",
                fault="memory-corruption",
                params={"xid": 94, "remediate": True},
                certifies=("error-detection", "error-attribution"),
                target="gpu/n034/2",
                job="train-c2-0",
                duration=5.0,
                limits={"gpus": 8, "nodes": 2, "jobs": 0, "gpu_seconds": 600.0},
                objectives={"ttd": 5.0, "ttm": 10.0, "ttr": 30.0},
            ),
            Verdict.PASSED,
            _told_apart,
        ),
    )


def _plan(
    name: str,
    description: str,
    *,
    fault: str,
    params: dict[str, Any],
    certifies: tuple[str, ...],
    target: str,
    job: str,
    duration: float,
    limits: dict[str, Any],
    objectives: dict[str, float],
) -> Plan:
    pace = {"of": f"job/{job}", "metric": "steps_rate", "op": ">=", "value": 0.8, "relative_to": "baseline"}
    return Plan.model_validate(
        {
            "api_version": "gpuchaos/v1",
            "kind": "Experiment",
            "name": name,
            "description": description,
            "owner": "demo",
            "fault": {"name": fault, "params": params, "certifies": certifies},
            "targets": {"entities": (target,)},
            "duration": duration,
            "lease": 5.0,
            "undo": {"method": "automatic", "deadline": 10.0},
            "limits": limits,
            "steady_state": {"hold": 3.0, "checks": ({"name": "pace", "telemetry": pace},)},
            "objectives": objectives,
            "settle": 2.0,
        }
    )


def _attributed(state: ExperimentState, _: Sequence[Incident]) -> Complaints:
    return [] if state.attributed else ["no anomaly was charged to its fault"]


def _halted_once(state: ExperimentState, _: Sequence[Incident]) -> Complaints:
    said: Complaints = []
    if len(state.halts) != 1:
        return [f"{len(state.halts)} halts, expected exactly one"]
    halt = state.halts[0]
    if halt.acknowledged is None or halt.undone is None:
        said.append("the halt was not acknowledged and undone")
    if halt.state is HaltState.ESCALATED:
        said.append("the halt was escalated")
    if state.blast_radius.nodes <= 2:
        said.append(f"{state.blast_radius.nodes} nodes hurt: nothing spread past the limit")
    return said + _attributed(state, ())


def _told_apart(state: ExperimentState, incidents: Sequence[Incident]) -> Complaints:
    said = _attributed(state, ())
    own = [incident for incident in incidents if touches(incident, FAILING_GPU) and not incident.superseded]
    if state.unattributed == 0:
        said.append("the real failure is not among the anomalies that no fault explains")
    if not own:
        said.append(f"no incident names {FAILING_GPU}")
    if any(incident.experiment_id is not None for incident in own):
        said.append(f"{FAILING_GPU} was charged to an experiment")
    return said


def touches(incident: Incident, entity: str) -> bool:
    """Whether one of its anomalies is on `entity`."""
    return any(anomaly.entity == entity for anomaly in incident.anomalies)
