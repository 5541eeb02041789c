"""The rules that come with the product: all right, all tested, each seen both firing and silent."""

from gpuchaos_stream.events.incident import LEVELS
from gpuchaos_stream.guard.context import ExperimentContext, LimitsView, calm
from gpuchaos_stream.guard.guard import Guard
from gpuchaos_stream.guard.rules import STOPPING, load
from gpuchaos_stream.guard.ruletest import RuleTestFile, files_of_tests, run_file
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.yamlfile import read


def test_the_shipped_rules_do_nothing_while_nothing_is_wrong() -> None:
    guard = Guard(load([shipped_rules()]))
    for second in range(60):
        assert guard.evaluate([calm()], calm(), 1000.0 + second) == []


def test_every_check_of_the_shipped_rule_tests_holds() -> None:
    outcomes = [outcome for file in files_of_tests([shipped_rules()]) for outcome in run_file(file)]
    assert outcomes
    assert [outcome for outcome in outcomes if outcome.problem] == []


def test_every_shipped_rule_is_tested_firing_and_silent() -> None:
    firing, silent = set(), set()
    for path in files_of_tests([shipped_rules()]):
        for test in read(path).validate(RuleTestFile).tests:
            for check in test.rule_test:
                (firing if check.exp_decisions else silent).add(check.rule)
    names = {loaded.rule.name for loaded in load([shipped_rules()]).rules}
    assert firing == silent == names


def test_there_is_a_hard_limit_for_every_level() -> None:
    rules = load([shipped_rules()])
    for level in (*LEVELS, "gpu_seconds"):
        found = rules.find(f"hard-limit-{level.replace('_', '-')}")
        assert found is not None
        assert f"limits.{level}" in found.expression.paths
    assert set(LimitsView.model_fields) == {*LEVELS, "gpu_seconds"}


def test_every_shipped_rule_that_stops_something_says_what_to_do() -> None:
    for loaded in load([shipped_rules()]).rules:
        if loaded.rule.action in STOPPING:
            assert len(loaded.rule.annotations.description) > 20 or loaded.rule.name == "breaker-affected-nodes"


def test_breach_of_any_level_alone_halts() -> None:
    for level in (*LEVELS, "gpu_seconds"):
        context = calm()
        limit = getattr(context.limits, level)
        blast = context.blast.model_copy(update={level: limit + 1})
        over = ExperimentContext.model_validate(context.model_copy(update={"blast": blast}).model_dump())
        decisions = Guard(load([shipped_rules()])).evaluate([over], calm(), 1000.0)
        assert [d.cause for d in decisions] == [f"hard-limit-{level.replace('_', '-')}"]
