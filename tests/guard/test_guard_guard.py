from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_stream.events.experiment import Status
from gpuchaos_stream.guard.context import ClusterContext, ExperimentContext, calm
from gpuchaos_stream.guard.decision import Decision
from gpuchaos_stream.guard.guard import Guard
from gpuchaos_stream.guard.rules import Action, RuleSet, load

RULES = """\
groups:
  - name: g
    rules:
      - {name: limit, expr: blast.gpus > limits.gpus, action: halt, annotations: {summary: "{{ blast.gpus }} hurt"}}
      - {name: slow, expr: steady.bad > 0, for: 3s, action: halt, annotations: {summary: bad}}
      - {name: say, expr: slo.missed, for: 1s, action: notify, annotations: {summary: missed}}
      - {name: wait, expr: cluster.silent_nodes > 0, action: freeze, scope: cluster, freeze_for: 30s,
         annotations: {summary: silent}}
      - {name: many, expr: breaker.halts_10m >= 3, for: 2s, action: halt_all, scope: cluster,
         annotations: {summary: "{{ breaker.halts_10m }} halts"}}
"""


@pytest.fixture(scope="session")
def rules(tmp_path_factory: pytest.TempPathFactory) -> RuleSet:
    path: Path = tmp_path_factory.mktemp("rules") / "r.yaml"
    path.write_text(RULES)
    return load([path])


def context(name: str = "e1", **fields: Any) -> ExperimentContext:
    """A calm experiment with dotted names changed: `blast__gpus=9`."""
    values = calm().model_dump()
    values["experiment"]["id"] = name
    for path, value in fields.items():
        group, _, field = path.partition("__")
        values[group][field] = value
    return ExperimentContext.model_validate(values)


def cluster(**fields: Any) -> ClusterContext:
    whole = context(**fields)
    return ClusterContext(total=whole.total, breaker=whole.breaker, cluster=whole.cluster)


def causes(decisions: list[Decision]) -> list[tuple[str | None, str]]:
    return [(d.experiment_id, d.cause) for d in decisions]


def test_a_breach_decides_at_once_with_the_numbers_of_that_moment(rules: RuleSet) -> None:
    guard = Guard(rules)
    assert guard.evaluate([context(blast__gpus=8)], cluster(), 10.0) == []
    (first,) = guard.evaluate([context(blast__gpus=9)], cluster(), 11.0)
    assert (first.action, first.experiment_id, first.cause) == (Action.HALT, "e1", "limit")
    assert (first.reason, first.since, first.fired, first.new) == ("9 hurt", 11.0, 11.0, True)
    (again,) = guard.evaluate([context(blast__gpus=12)], cluster(), 12.0)
    assert (again.id, again.reason, again.fired, again.new) == (first.id, "9 hurt", 11.0, False)


def test_a_halt_stays_though_the_number_goes_back(rules: RuleSet) -> None:
    guard = Guard(rules)
    guard.evaluate([context(blast__gpus=9)], cluster(), 10.0)
    assert causes(guard.evaluate([context()], cluster(), 11.0)) == [("e1", "limit")]


def test_for_counts_only_unbroken_time(rules: RuleSet) -> None:
    guard = Guard(rules)
    seen = []
    for now, bad in enumerate([1, 1, 1, 0, 1, 1, 1, 1, 0]):
        seen.append(causes(guard.evaluate([context(steady__bad=bad)], cluster(), 10.0 + now)) != [])
    assert seen == [False, False, False, False, False, False, False, True, True]


def test_for_begins_anew_after_a_pause_in_which_nobody_looked(rules: RuleSet) -> None:
    guard = Guard(rules)
    # A worker that was down reads what piled up: two looks, seven seconds apart, prove nothing about the time between.
    assert guard.evaluate([context(steady__bad=1)], cluster(), 10.0) == []
    assert guard.evaluate([context(steady__bad=1)], cluster(), 17.0) == []
    assert guard.evaluate([context(steady__bad=1)], cluster(), 19.0) == []
    assert causes(guard.evaluate([context(steady__bad=1)], cluster(), 20.0)) == [("e1", "slow")]


def test_for_goes_on_over_a_restart(rules: RuleSet) -> None:
    items: dict[str, bytes] = {}
    for now, fires in [(10.0, False), (11.0, False), (12.0, False), (13.0, True), (14.0, True)]:
        guard = Guard(rules)
        guard.load(items)
        decisions = guard.evaluate([context(steady__bad=1)], cluster(), now)
        assert (decisions != []) == fires
        assert [d.new for d in decisions] == [now == 13.0] * fires
        items.update({key: value for key, value in guard.dirty().items() if value is not None})


def test_experiments_are_judged_one_by_one(rules: RuleSet) -> None:
    guard = Guard(rules)
    decisions = guard.evaluate([context("e1"), context("e2", blast__gpus=9)], cluster(), 10.0)
    assert causes(decisions) == [("e2", "limit")]


def test_a_notify_ends_and_can_come_again(rules: RuleSet) -> None:
    guard = Guard(rules)
    told = []
    for now, missed in enumerate([True, True, True, False, False, True, True]):
        decisions = guard.evaluate([context(slo__missed=missed)], cluster(), 10.0 + now)
        told.append([(d.new, d.resolved) for d in decisions])
    assert told == [[], [(True, False)], [(False, False)], [(True, True)], [], [], [(True, False)]]


def test_a_freeze_moves_on_while_its_rule_holds(rules: RuleSet) -> None:
    guard = Guard(rules)
    ends = [
        [d.freeze_until for d in guard.evaluate([], cluster(cluster__silent_nodes=n), 10.0 + now)]
        for now, n in enumerate([1, 1, 0])
    ]
    assert ends == [[40.0], [41.0], []]


def test_a_finished_or_vanished_experiment_is_forgotten(rules: RuleSet) -> None:
    guard = Guard(rules)
    items: dict[str, bytes] = {}
    for name in ("e1", "e2"):
        guard.evaluate([context("e1", blast__gpus=9), context("e2", blast__gpus=9)], cluster(), 10.0)
        assert name
    items.update({key: value for key, value in guard.dirty().items() if value is not None})
    assert set(items) == {"guard/e1/limit", "guard/e2/limit"}
    assert guard.evaluate([context("e1", blast__gpus=9, experiment__status=Status.FINISHED)], cluster(), 11.0) == []
    assert guard.dirty() == dict.fromkeys(items)


def test_a_halting_rule_that_cannot_be_evaluated_is_unsafe_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("""\
groups:
  - name: g
    rules:
      - {name: stop, expr: &e "experiment.age_s < 5.0 && 10 / (limits.gpus - 4) > 0", for: 1s, action: halt,
         annotations: {summary: s}}
      - {name: hold, expr: *e, action: freeze, annotations: {summary: s}}
      - {name: say, expr: *e, action: notify, annotations: {summary: s}}
""")
    guard = Guard(load([path]))
    broken = context(limits__gpus=4)
    assert causes(guard.evaluate([broken], cluster(), 10.0)) == [("e1", "hold")]
    decisions = guard.evaluate([broken], cluster(), 11.0)
    assert causes(decisions) == [("e1", "stop"), ("e1", "hold")]
    assert all(decision.unsafe for decision in decisions)
    assert "could not be evaluated, which is unsafe: ZeroDivisionError" in decisions[0].reason
    assert guard.errors == {"stop": 2, "hold": 2, "say": 2}


def test_a_halt_all_waits_for_the_breaker_and_then_for_its_condition(rules: RuleSet) -> None:
    guard = Guard(rules)
    assert guard.evaluate([], cluster(breaker__halts_10m=3), 10.0) == []
    (first,) = guard.evaluate([], cluster(breaker__halts_10m=3), 12.0)
    assert (first.action, first.experiment_id, first.new) == (Action.HALT_ALL, None, True)
    assert causes(guard.evaluate([], cluster(breaker__halts_10m=0), 13.0)) == [(None, "many")]
    assert causes(guard.evaluate([], cluster(breaker__halts_10m=3, breaker__tripped=True), 14.0)) == [(None, "many")]
    assert guard.evaluate([], cluster(breaker__halts_10m=0, breaker__tripped=True), 15.0) == []


def test_a_halt_all_begins_anew_at_the_reset(rules: RuleSet) -> None:
    guard = Guard(rules)
    for now in (10.0, 12.0):
        guard.evaluate([], cluster(breaker__halts_10m=3), now)
    assert guard.evaluate([], cluster(breaker__halts_10m=3, breaker__reset_at=20.0), 20.5) == []
    assert guard.evaluate([], cluster(breaker__halts_10m=3, breaker__reset_at=20.0), 22.0) == []
    (again,) = guard.evaluate([], cluster(breaker__halts_10m=3, breaker__reset_at=20.0), 22.5)
    assert (again.since, again.fired, again.new) == (20.5, 22.5, True)


def test_a_dry_run_does_not_wait_for_a_breaker_that_will_not_trip(rules: RuleSet) -> None:
    guard = Guard(rules, dry_run=True)
    guard.evaluate([], cluster(breaker__halts_10m=3), 10.0)
    assert causes(guard.evaluate([], cluster(breaker__halts_10m=3), 12.0)) == [(None, "many")]
    assert guard.evaluate([], cluster(breaker__halts_10m=0), 13.0) == []


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2), st.booleans()), min_size=1, max_size=15),
    st.lists(st.booleans(), min_size=15, max_size=15),
)
@settings(deadline=None)
def test_restarts_and_repeats_change_no_decision(
    rules: RuleSet, steps: list[tuple[int, int, bool]], restarts: list[bool]
) -> None:
    plain, tried = Guard(rules), Guard(rules)
    items: dict[str, bytes] = {}
    for now, ((gpus, bad, missed), restart) in enumerate(zip(steps, restarts, strict=False)):
        seen = context(blast__gpus=gpus, steady__bad=bad, slo__missed=missed)
        expected = plain.evaluate([seen], cluster(), float(now))
        got = tried.evaluate([seen], cluster(), float(now))
        assert got == expected
        again = tried.evaluate([seen], cluster(), float(now))
        assert [d.id for d in again if d.action is Action.HALT] == [d.id for d in got if d.action is Action.HALT]
        assert not any(d.new for d in again)
        for key, value in tried.dirty().items():
            if value is None:
                items.pop(key, None)
            else:
                items[key] = value
        if restart:
            tried = Guard(rules)
            tried.load(items)
