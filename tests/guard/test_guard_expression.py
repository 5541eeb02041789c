import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_stream.guard.context import ExperimentContext, busy, calm
from gpuchaos_stream.guard.expression import EvaluationError, Expression, ExpressionError, Names


def expression(source: str) -> Expression:
    return Expression(source, ExperimentContext, calm=calm(), busy=busy())


@pytest.mark.parametrize(
    ("source", "problem", "fix"),
    [
        ("blast.gpuz > 1", "unknown name 'blast.gpuz'", "did you mean 'blast.gpus'?"),
        ("blst.gpus > 1", "unknown name 'blst'", "did you mean 'blast'?"),
        ("blast.gpus > 100000 && limits.nodez > 1", "unknown name 'limits.nodez'", "did you mean 'limits.nodes'?"),
        ("blast['gpuz'] > 1", "unknown name 'blast.gpuz'", "did you mean 'blast.gpus'?"),
        ("blast . gpuz > 1", "unknown name 'blast.gpuz'", "did you mean 'blast.gpus'?"),
        ("experiment.targets.exists(t, t == experiment.nam)", "unknown name 'experiment.nam'", "'experiment.name'"),
        ("experiment.name.first == 'a'", "'experiment.name' has no part 'first'", "write experiment.name"),
        ("blast > 1", "'blast' is a group of names", "known are gpus"),
        ("sise(experiment.targets) > 1", "unknown function 'sise'", "did you mean 'size'?"),
        ("experiment.name.startWith('a')", "unknown function 'startWith'", "did you mean 'startsWith'?"),
        ("experiment.status == 'activ'", "'experiment.status' is never 'activ'", "did you mean 'active'?"),
        ("'activ' != experiment.status", "'experiment.status' is never 'activ'", "did you mean 'active'?"),
        ("experiment.status in ['active', 'undo']", "'experiment.status' is never 'undo'", "did you mean 'undoing'?"),
        ("experiment.targets.exists(blast, blast == 'x')", "'blast' is bound", "choose another"),
        ("blast.gpus >", "not CEL: at column", "docs/rules.md#cel-in-short"),
        ("blast.gpus > 1 and blast.nodes > 1", "not CEL: at column 16: mismatched input 'and'", "write && for and"),
        ("blast.gpus > 1 OR blast.nodes > 1", "not CEL", "write || for OR"),
        ("not (blast.gpus > 1)", "unknown function 'not'", "write ! for not"),
        ("blast.gpus = 1", "not CEL", "write == for ="),
        ("blast.gpus => 1", "not CEL", "write >= for =>"),
        ("experiment.name == 'this and that' &&", "not CEL", "docs/rules.md#cel-in-short"),
        (
            "blast.gpus * 0.5 > 3.0",
            "TypeError: the operation is not defined for the given operand types",
            "make numbers alike with double() or int()",
        ),
        ("blast.gpus > 1 # many", "not CEL: at column 16", ""),
        ("blast.gpus", "neither true nor false", ""),
        ("blast.gpus + 1", "neither true nor false", ""),
        ("blast.gpus > 100000 && blast.gpus + 1", "neither true nor false", ""),
        ("blast.gpus > 100000 && (breaker.tripped || !(experiment.name > 3))", "'experiment.name > 3'", ""),
        ("blast.gpus + blast.gpu_seconds > 1.0", "cannot be evaluated", "double()"),
        ("experiment.labels.tier == 'gold'", "cannot be evaluated", "has()"),
        ("blast.gpus > 1 " + "|| blast.gpus > 1 " * 200, "characters long", "two rules"),
    ],
)
def test_a_mistake_is_named_at_load_with_what_to_do(source: str, problem: str, fix: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        expression(source)
    assert problem in caught.value.problem
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    "source",
    [
        "blast.gpus > limits.gpus",
        "blast['gpus'] > limits.gpus // a comment with blast.gpuz",
        "experiment.name == 'blast.gpuz'",
        "experiment.targets.exists(t, t.startsWith('gpu/'))",
        "has(experiment.labels.tier) && experiment.labels.tier == 'gold'",
        "'tier' in experiment.labels && experiment.labels['tier'] == 'gold'",
        "double(total.nodes_now) / double(cluster.nodes) > 0.1",
        "!(experiment.status in ['pending', 'active'])",
        "!breaker.tripped && (blast.gpus > 1 || (slo.missed && slo.ttr > 1.0))",
        "size(experiment.targets) > 2 ? blast.gpus > 1 : blast.gpus > 2",
        "experiment.status != 'active'",
    ],
)
def test_a_right_expression_is_taken(source: str) -> None:
    assert expression(source).evaluate(Names(calm().model_dump(mode="json"))) in {True, False}


def test_the_names_that_it_reads_are_known() -> None:
    paths = expression("blast.gpus > limits.gpus && experiment.targets.exists(t, t == 'x')").paths
    assert paths == ("blast.gpus", "limits.gpus", "experiment.targets")


def test_an_expression_that_raises_is_an_error_and_never_false() -> None:
    names = calm().model_dump(mode="json")
    rule = expression("blast.gpus > limits.gpus")
    del names["blast"]["gpus"]
    with pytest.raises(EvaluationError, match="KeyError"):
        rule.evaluate(Names(names))
    names["blast"]["gpus"] = float("nan")
    with pytest.raises(EvaluationError):
        rule.evaluate(Names(names))
    names["blast"] = None
    with pytest.raises(EvaluationError):
        rule.evaluate(Names(names))


@given(st.one_of(st.text(max_size=60), st.text(alphabet="blastgpu.()[]'&|!>1 ,?:{}\"", max_size=40)))
@settings(deadline=None)
def test_any_text_is_taken_or_refused_with_a_reason(text: str) -> None:
    try:
        expression(text)
    except ExpressionError as error:
        problem = error.problem
    else:
        problem = "none"
    assert problem
