"""What happens in the half hour, and when: experiments, real failures, kills, and the receiver's absence.

Seconds since the start. Two courses: of half an hour, and of five minutes, which leaves out what takes longer (an alert
of Prometheus' that waits five minutes, a breaker that is tripped twice). Nothing is made to go faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from half_hour_receiver import Mode

#: The cluster on which experiments run, and the one whose simulator is killed.
DEMO: Final = "demo"
ANNEX: Final = "annex"


@dataclass(frozen=True)
class Step:
    """At `at` seconds the site does `what` (the name of one of its methods) with `given`."""

    at: float
    what: str
    given: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Failure:
    """A failure that nobody asked for; with `of`, `at` counts from that experiment's injection."""

    at: float
    cause: str
    entity: str
    of: str | None = None


@dataclass(frozen=True)
class Course:
    """The whole run.

    `verdicts` of its experiments, but of the one whose worker is killed: whether that is halted, or its lease ends
    first, is a matter of seconds. `prometheus`: its alerts that must fire; others must not, but those in `may`.
    """

    length: float
    steps: tuple[Step, ...]
    failures: tuple[Failure, ...]
    verdicts: dict[str, str]
    prometheus: frozenset[str]
    may: frozenset[str] = frozenset()


def course(length: float) -> Course:
    """The course for a length in seconds: the half hour's, or the short one where it is shorter than 25 minutes."""
    return _half_hour() if length >= 1500 else _five_minutes()


def _half_hour() -> Course:
    steps = [
        *_experiment(15, passing("hang-1", "n001", "train-c0-0")),
        *_experiment(60, spreading("spread-1", "n016", "train-c1-0")),
        *_experiment(120, missing_its_objective("late-1", "n034", "train-c2-0")),
        *_experiment(175, passing("hang-beside-failure", "n049", "train-c3-0")),
        Step(240, "kill_annex"),
        *_experiment(380, passing("hang-2", "n002", "train-c0-0")),
        *_experiment(430, spreading("spread-2", "n024", "train-c1-1")),
        Step(600, "receiver", (Mode.REFUSES,)),
        *_experiment(690, spreading("spread-in-vain", "n032", "train-c2-0")),
        Step(700, "receiver", (Mode.HANGS,)),
        Step(715, "start_annex"),
        Step(740, "kill_notify"),
        Step(750, "start_notify"),
        Step(800, "receiver", (Mode.ANSWERS_503,)),
        # The third halt within ten minutes: the breaker trips by itself, and nobody hears of it yet.
        *_experiment(860, spreading("spread-3", "n016", "train-c1-0")),
        Step(900, "receiver", (Mode.UP,)),
        Step(930, "kill_worker"),
        Step(932, "start_worker"),
        Step(1000, "reset_breaker"),
        *_experiment(1100, passing("hang-3", "n003", "train-c0-0")),
        *_experiment(1170, spreading("spread-worker-dies", "n040", "train-c2-1")),
        Step(1171, "until_told_of", ("spread-worker-dies",)),
        Step(1172, "kill_worker"),
        Step(1174, "start_worker"),
        *_experiment(1260, passing("hang-stopped", "n056", "train-c3-1", duration=40)),
        Step(1275, "stop_experiment", ("hang-stopped",)),
        Step(1340, "trip_breaker"),
        Step(1385, "reset_breaker"),
        *_experiment(1460, passing("hang-4", "n001", "train-c0-0")),
        *_experiment(1600, spreading("spread-4", "n032", "train-c2-0")),
    ]
    return Course(
        length=1800,
        steps=tuple(steps),
        failures=(
            Failure(2, "hbm3", "gpu/n010/3", of="hang-beside-failure"),
            Failure(235, "hbm3", "gpu/n041/5"),
            Failure(640, "hbm3", "gpu/n057/1"),
            Failure(888, "hbm3", "gpu/n011/2"),
            Failure(1530, "software-bug", "gpu/n050/4"),
        ),
        verdicts={
            **dict.fromkeys(("hang-1", "hang-beside-failure", "hang-2", "hang-3", "hang-4"), "passed"),
            **dict.fromkeys(("spread-1", "spread-2", "spread-in-vain", "spread-3", "spread-4"), "halted"),
            "late-1": "failed",
            "hang-stopped": "stopped",
        },
        prometheus=frozenset({"GPUChaosBreakerTripped", "GPUChaosManyAgentsSilent", "GPUChaosAgentsSilent"}),
        may=frozenset({"GPUChaosNotifyReceiverFailing"}),
    )


def _five_minutes() -> Course:
    steps = [
        *_experiment(8, passing("hang-1", "n001", "train-c0-0")),
        Step(12, "kill_annex"),
        *_experiment(40, spreading("spread-1", "n016", "train-c1-0")),
        *_experiment(80, missing_its_objective("late-1", "n034", "train-c2-0")),
        *_experiment(112, passing("hang-beside-failure", "n049", "train-c3-0")),
        Step(150, "receiver", (Mode.REFUSES,)),
        *_experiment(152, spreading("spread-in-vain", "n032", "train-c2-0")),
        Step(165, "receiver", (Mode.HANGS,)),
        Step(172, "kill_notify"),
        Step(176, "start_notify"),
        Step(180, "receiver", (Mode.ANSWERS_503,)),
        Step(185, "start_annex"),
        Step(195, "receiver", (Mode.UP,)),
        *_experiment(200, spreading("spread-worker-dies", "n024", "train-c1-1")),
        Step(201, "until_told_of", ("spread-worker-dies",)),
        Step(202, "kill_worker"),
        Step(204, "start_worker"),
        Step(228, "trip_breaker"),
        Step(262, "reset_breaker"),
        *_experiment(270, passing("hang-2", "n003", "train-c0-0")),
    ]
    return Course(
        length=300,
        steps=tuple(steps),
        failures=(
            Failure(2, "hbm3", "gpu/n010/3", of="hang-beside-failure"),
            Failure(156, "hbm3", "gpu/n057/1"),
            Failure(188, "software-bug", "gpu/n041/5"),
        ),
        verdicts={
            **dict.fromkeys(("hang-1", "hang-beside-failure", "hang-2"), "passed"),
            **dict.fromkeys(("spread-1", "spread-in-vain"), "halted"),
            "late-1": "failed",
        },
        prometheus=frozenset({"GPUChaosBreakerTripped", "GPUChaosManyAgentsSilent"}),
    )


def passing(name: str, node: str, job: str, *, duration: float = 5) -> dict[str, Any]:
    """A rank hangs for a few seconds; its job is back in time."""
    return _plan(name, node, job, duration=duration, limits={"gpus": 64, "nodes": 8, "jobs": 0, "gpu_seconds": 4000})


def spreading(name: str, node: str, job: str) -> dict[str, Any]:
    """A hang that spreads from node to node, past the limit of two."""
    return _plan(
        name,
        node,
        job,
        duration=30,
        params={"spread": 8, "spread_every_s": 2.0},
        limits={"gpus": 16, "nodes": 2, "jobs": 0, "gpu_seconds": 600},
    )


def missing_its_objective(name: str, node: str, job: str) -> dict[str, Any]:
    """As `passing`, but it would have to be seen within a tenth of a second."""
    return passing(name, node, job) | {"objectives": {"ttd": "100ms", "ttm": "60s", "ttr": "90s"}}


def _plan(
    name: str, node: str, job: str, *, duration: float, limits: dict[str, float], params: dict[str, Any] | None = None
) -> dict[str, Any]:
    pace = {"of": f"job/{job}", "metric": "steps_rate", "op": ">=", "value": 0.8, "relative_to": "baseline"}
    return {
        "api_version": "gpuchaos/v1",
        "kind": "Experiment",
        "name": name,
        "description": "A rank hangs, and its job is back in time.",
        "owner": "half-hour",
        "fault": {"name": "process-stop", "params": params or {}, "certifies": ["hang-detection", "hang-recovery"]},
        "targets": {"entities": [f"process/{node}/4100"]},
        "duration": f"{duration:g}s",
        "lease": "5s",
        "undo": {"method": "automatic", "deadline": "15s"},
        "limits": limits,
        "settle": "2s",
        "steady_state": {"hold": "3s", "checks": [{"name": "pace", "telemetry": pace}]},
        "objectives": {"ttd": "15s", "ttm": "60s", "ttr": "90s"},
    }


def _experiment(at: float, plan: dict[str, Any]) -> tuple[Step, ...]:
    return (Step(at, "start_experiment", (plan,)),)
