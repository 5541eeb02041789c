"""The state of a whole experiment names what was charged to it and what was not, and the same run names the same."""

from __future__ import annotations

from pathlib import Path

from sim_loop_help import Whole

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.experiment import MOST_LINES, ExperimentState
from gpuchaos_stream.sim.demo import _rules
from gpuchaos_stream.sim.scenarios import CLUSTER, FAILING_GPU, FAILS_AFTER_S, scenarios
from gpuchaos_stream.sim.script import Failure

TOLD_APART = scenarios(4242)[2]
FAILURE = Failure(cause="faulty-gpu", entity=FAILING_GPU, after=FAILS_AFTER_S, of=TOLD_APART.plan.name)


def run(folder: Path) -> ExperimentState:
    whole = Whole(CLUSTER, rules=_rules(folder), failures=(FAILURE,))
    whole.run(10)
    (state,) = whole.run_until_finished(whole.start(TOLD_APART.plan))
    return state


def test_a_real_failure_beside_an_experiment_stands_among_what_it_does_not_explain(tmp_path: Path) -> None:
    state = run(tmp_path)
    assert state.charged
    assert all(TOLD_APART.plan.fault.name in line.sentence or "marked" in line.sentence for line in state.charged)
    worst = max(state.unexplained, key=lambda line: line.severity.rank)
    assert (worst.entity, worst.severity) == (FAILING_GPU, Severity.CRITICAL)
    assert worst.after_s > 0
    for lines, count in ((state.charged, state.attributed), (state.unexplained, state.unattributed)):
        assert len(lines) <= MOST_LINES
        assert sum(line.count for line in lines) <= count
    again = run(tmp_path)
    assert (again.charged, again.unexplained) == (state.charged, state.unexplained)
