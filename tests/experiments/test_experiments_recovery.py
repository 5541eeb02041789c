"""A plan that says by which checks it has recovered: they time it, and the steady state is still asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from experiments_help import BAD, EXPERIMENT, OK, World, plan, recovered, view

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.experiment import Status, Verdict
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.incident import RecoveryOutcome
from gpuchaos_stream.events.observation import CellSummary, CheckState, ProbeResult
from gpuchaos_stream.experiments.check import check
from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.recovery.recovery import Recovery

T0 = 1_000.0
RECOVERY = [{"name": "db", "postgres": {"address": "db:5432"}}, {"name": "back", "job": {"name": "llama"}}]


def fed(until: int, *, db: range, pace: range, **changes: Any) -> Recovery:
    """Samples once a second; `db` and `pace` are the seconds in which they are in tolerance. The fault stays 10 s."""
    recovery = Recovery()
    recovery.begin(EXPERIMENT, plan(recovery=RECOVERY, **changes), T0 - 60)
    for second in range(-30, until):
        at, rate = T0 + second, 1.0 if second < 0 or second in pace else 0.1
        body: dict[str, Any] = {"nodes": {}, "order": (), "columns": {}, "jobs": {"llama": {"steps_rate": rate}}}
        recovery.feed(CellSummary(id=f"s{at}", time=at, cluster="c", cell="c0", **body))
        state = CheckState.OK if second < 0 or second in db else CheckState.BAD
        recovery.feed(
            ProbeResult(
                id=stable_id(at), time=at, cluster="c", experiment_id=EXPERIMENT, check="db", state=state, value=None
            )
        )
    for phase, at in ((FaultPhase.INJECTED, T0), (FaultPhase.UNDONE, T0 + 10)):
        recovery.feed(
            FaultEvent(
                id=phase,
                time=at,
                cluster="c",
                phase=phase,
                fault="process-stop",
                node="n1",
                entity="process/n1/10",
                fault_id="f",
                experiment_id=EXPERIMENT,
            )
        )
    return recovery


def test_recovered_is_when_all_checks_of_recovery_hold_for_the_hold() -> None:
    recovery = fed(40, db=range(12, 40), pace=range(20, 40))
    record = recovery.record(EXPERIMENT, T0 + 40)
    assert (record.outcome, record.ttr) == (RecoveryOutcome.RECOVERED, 20.0)


def test_a_check_of_recovery_that_fails_again_starts_the_window_anew() -> None:
    db = [*range(12, 15), *range(18, 60)]
    record = fed(60, db=db, pace=range(11, 60)).record(EXPERIMENT, T0 + 60)  # type: ignore[arg-type]
    assert record.ttr == 18.0


def test_a_check_of_recovery_that_never_holds_is_a_miss() -> None:
    record = fed(170, db=range(0), pace=range(11, 170)).record(EXPERIMENT, T0 + 170)
    assert (record.outcome, record.ttr) == (RecoveryOutcome.MISSED, None)


def test_with_recovery_given_it_alone_times_and_without_it_the_steady_state_does() -> None:
    steady = {
        "hold": "5s",
        "checks": [{"name": "pace", "telemetry": {"of": "job/llama", "metric": "steps_rate", "op": ">=", "value": 5}}],
    }
    recovery = fed(40, db=range(12, 40), pace=range(20, 40), steady_state=steady)
    assert recovery.record(EXPERIMENT, T0 + 40).ttr == 20.0
    assert recovery.steady(EXPERIMENT, T0 + 39) == {"pace": CheckState.BAD, "db": CheckState.OK, "back": CheckState.OK}


def test_recovery_survives_a_kill_in_its_middle() -> None:
    one = fed(40, db=range(12, 40), pace=range(20, 40))
    other = Recovery()
    other.load({key: value for key, value in one.dirty().items() if value is not None})
    assert other.record(EXPERIMENT, T0 + 40) == one.record(EXPERIMENT, T0 + 40)


def test_what_must_hold_after_recovery_need_not_hold_before_the_injection() -> None:
    world = World(recovery=RECOVERY)
    world.view = view(steady=OK | {"db": CheckState.BAD, "back": CheckState.UNKNOWN})
    world.until(5)
    assert world.state.status is Status.ACTIVE


def test_the_end_is_well_in_every_way_the_steady_state_and_recovery() -> None:
    good = OK | {"db": CheckState.OK, "back": CheckState.OK}
    for steady, passed in (
        (good, True),
        (good | {"db": CheckState.BAD}, False),
        (good | BAD, False),
        ({"db": CheckState.OK, "back": CheckState.OK}, False),
    ):
        world = World(recovery=RECOVERY)
        world.until(25)
        world.view = replace(world.view, steady={EXPERIMENT: steady})
        world.machine.update(EXPERIMENT, recovery=recovered())
        world.until(26)
        assert (world.state.verdict is Verdict.PASSED) == passed
        assert passed or world.state.status is Status.RECOVERING


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_which_nothing_moved_voids_the_experiment_whatever_fault_it_is(fault: str) -> None:
    kind = FAULTS[fault]
    targets = {
        "process": ["process/n1/10"],
        "gpu": ["gpu/n1/0"],
        "port": ["port/n1/mlx5_0"],
        "node": ["node/n1"],
    }[kind.targets[0]]
    params = {kind.driver: "n2"} if kind.driver else {}
    looks = [
        {"name": "cert", "tls": {"address": "web:443"}},
        {"name": "page", "http": {"url": "http://web/"}},
    ]
    world = World(
        fault={"name": fault, "params": params, "certifies": kind.forms[0].certifies[:1]},
        targets={"entities": targets},
        recovery=looks,
    )
    for agent in world.agents.values():
        agent.ineffective = True
    world.until(6)
    assert world.state.verdict is Verdict.VOID
    assert "no fault took effect" in world.state.reason
    assert world.state.recovery.outcome is not RecoveryOutcome.RECOVERED


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([{"name": "pace", "tcp": {"address": "x:1"}}], "check 'pace' is named twice"),
        ([{"name": "a", "tcp": {"address": "x"}}], "field 'recovery.0.tcp.address': 'x' is no address"),
        ([{"name": "a", "tls": {"address": "x:0"}}], "write it like db:5432"),
        ([{"name": "a", "postgres": {"address": ":1"}}], "is no address"),
        ([{"name": "a", "redis": {"address": "x:99999"}}], "is no address"),
        ([{"name": "a", "job": {"name": "job/llama"}}], "write it without job/"),
        ([{"name": "a", "http": {"url": "x"}}], "field 'recovery.0.http.url'"),
        ([{"name": "a"}], "check 'a' asks nothing; write exactly one of telemetry, job, promql, http, tcp"),
        ([{"name": "a", "tcp": {"address": "x:1"}, "tls": {"address": "x:1"}}], "asks tcp and tls"),
    ],
)
def test_a_check_of_recovery_that_cannot_be_meant_is_named(items: list[dict[str, Any]], said: str) -> None:
    assert said in "\n".join(str(error) for error in check(plan(recovery=items)))
