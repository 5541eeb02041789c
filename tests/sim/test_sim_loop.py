"""The demo's scenarios through all stages, without a broker: the same cluster, agents, detector and control loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_loop_help import Whole

from gpuchaos_stream.events.experiment import ExperimentState, HaltState, Verdict
from gpuchaos_stream.experiments.check import check
from gpuchaos_stream.sim.demo import _rules
from gpuchaos_stream.sim.scenarios import CLUSTER, FAILING_GPU, FAILS_AFTER_S, Scenario, scenarios, touches
from gpuchaos_stream.sim.script import Failure

SPREADING, TOLD_APART = scenarios(4242)[1:]
FAILURE = Failure(cause="faulty-gpu", entity=FAILING_GPU, after=FAILS_AFTER_S, of=TOLD_APART.plan.name)


def test_every_plan_of_the_demo_may_run() -> None:
    for scenario in scenarios(4242):
        assert check(scenario.plan) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_experiments_at_once_end_as_they_must_whatever_the_seed(tmp_path: Path, seed: int) -> None:
    whole = Whole(CLUSTER, seed=seed, rules=_rules(tmp_path), failures=(FAILURE,))
    whole.run(10)
    both: tuple[Scenario, ...] = (SPREADING, TOLD_APART)
    states = whole.run_until_finished(*[whole.start(scenario.plan) for scenario in both])
    for scenario, state in zip(both, states, strict=True):
        assert scenario.complaints(state, list(whole.incidents.values())) == []
    halt = states[0].halts[0]
    assert halt.state is HaltState.CONFIRMED
    assert halt.undone is not None
    assert halt.undone - halt.requested < 1.5
    assert states[0].blast_radius.jobs == states[1].blast_radius.jobs == 0


def test_under_the_shipped_rules_a_real_failure_elsewhere_halts_the_experiment_and_is_charged_to_nobody() -> None:
    whole = Whole(CLUSTER, failures=(FAILURE,))
    whole.run(10)
    (state,) = whole.run_until_finished(whole.start(TOLD_APART.plan))
    assert state.verdict is Verdict.HALTED
    assert state.halts[0].cause == "unattributed-critical-on-other-job"
    own = [incident for incident in whole.incidents.values() if touches(incident, FAILING_GPU)]
    assert own
    assert all(incident.experiment_id is None for incident in own)


def test_without_a_failure_the_same_experiment_passes_and_nothing_is_unattributed() -> None:
    whole = Whole(CLUSTER)
    whole.run(10)
    (state,) = whole.run_until_finished(whole.start(TOLD_APART.plan))
    assert (state.verdict, state.unattributed, state.halts) == (Verdict.PASSED, 0, ())


def test_an_injection_into_an_idle_node_is_refused_and_the_experiment_is_void() -> None:
    plan = SPREADING.plan.model_copy(
        update={"targets": SPREADING.plan.targets.model_copy(update={"entities": ("process/n015/4100",)})}
    )
    whole = Whole(CLUSTER)
    whole.run(10)
    (state,) = whole.run_until_finished(whole.start(plan))
    assert state.verdict is Verdict.VOID
    assert "idle" in state.reason


def _state(whole: Whole, scenario: Scenario) -> ExperimentState:
    whole.run(10)
    return whole.run_until_finished(whole.start(scenario.plan))[0]


def test_a_scenario_that_ends_otherwise_is_named(tmp_path: Path) -> None:
    state = _state(Whole(CLUSTER, rules=_rules(tmp_path)), TOLD_APART)
    assert any("no incident names" in complaint for complaint in TOLD_APART.complaints(state, []))
    assert SPREADING.complaints(state, []) == [f"verdict passed, expected halted: {state.reason}"]
    assert SPREADING.complaints(None, []) == ["it did not finish"]
