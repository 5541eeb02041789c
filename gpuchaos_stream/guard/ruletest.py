"""Tests of rules, in the manner of promtool: series of context values in, decisions at a time out.

A test starts from a calm running experiment (`context.calm`) and changes the values named in `input`:

    rule_files: [../hard-limits.yaml]
    evaluation_interval: 1s
    tests:
      - name: more GPUs than allowed
        input:
          - {path: limits.gpus, values: "8"}
          - {path: blast.gpus, values: "0x3 4+4x2"}
        rule_test:
          - {eval_time: 5s, rule: hard-limit-gpus, exp_decisions: [{action: halt}]}

`a+bxn` is a, a+b, … a+n·b; `axn` is a, n more times; `_` is a value that is missing. A series that ends keeps
its last value. Words (`active`, `true`) are values as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

from pydantic import BeforeValidator, Field, ValidationError

from gpuchaos_stream.errors import UserError, UserErrors
from gpuchaos_stream.events.base import Authored
from gpuchaos_stream.experiments.plan import Duration
from gpuchaos_stream.guard.context import ClusterContext, ExperimentContext, calm
from gpuchaos_stream.guard.decision import Decision
from gpuchaos_stream.guard.expression import ExpressionError, resolve
from gpuchaos_stream.guard.guard import Guard
from gpuchaos_stream.guard.rules import PROMETHEUS, Action, Pause, RuleSet, is_hidden, known_rule, load, rule_files
from gpuchaos_stream.yamlfile import Document, read

#: Event time at which a test's series begin, epoch seconds. Any would do; 0 would hide a mistake with "never".
START: Final = 1_700_000_000.0
#: Longest test, evaluations: a typo in a duration must not run for an hour.
LONGEST: Final = 100_000

_NUMBER: Final = r"-?\d+(?:\.\d+)?"
_STEPS: Final = re.compile(rf"^({_NUMBER})([+-]\d+(?:\.\d+)?)?x(\d+)$")

#: A series as text; a bare number in YAML is one too.
Values = Annotated[str, BeforeValidator(lambda value: str(value).lower() if isinstance(value, bool) else str(value))]


class Series(Authored):
    """The values of one name of the context, one for each interval."""

    path: str
    values: Values = Field(min_length=1)


class Expected(Authored):
    """A decision that must stand. Fields that are not given are not compared; labels and annotations are whole."""

    action: Action
    reason: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    unsafe: bool = False


class Check(Authored):
    """What must stand for `rule` at `eval_time`; an empty list: nothing."""

    eval_time: Pause
    rule: str
    exp_decisions: tuple[Expected, ...] = ()


class RuleTest(Authored):
    """One test: its series, and what must stand at which times."""

    name: str
    interval: Duration | None = None
    input: tuple[Series, ...] = ()
    rule_test: tuple[Check, ...] = Field(min_length=1)


class RuleTestFile(Authored):
    """A file of rule tests; `rule_files` are relative to it."""

    rule_files: tuple[str, ...] = Field(min_length=1)
    evaluation_interval: Duration = 1.0
    tests: tuple[RuleTest, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one check: `problem` is empty where it holds."""

    where: str
    test: str
    rule: str
    eval_time: float
    problem: str = ""


def files_of_tests(paths: Iterable[Path]) -> list[Path]:
    """The test files at `paths`: files as they are, of folders every `*.yaml` in a folder named `tests`.

    Raises:
        UserError: a path is not there, or a folder holds no test file.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(
                p
                for p in path.rglob("*.yaml")
                if p.parent.name == "tests"
                and PROMETHEUS not in p.relative_to(path).parts
                and not is_hidden(p.relative_to(path))
            )
            if not inside:
                raise UserError(str(path), "holds no rule test", "rule tests are *.yaml in a folder named tests")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UserError(str(path), "is not there", "give rule test files, or a folder that holds tests/")
    return list(dict.fromkeys(found))


def run_file(path: Path) -> list[Outcome]:
    """Runs every check of one test file, in its order.

    Raises:
        UserError: the file or its rules cannot be read, or name what is not there; with file and line.
    """
    document = read(path)
    file = document.validate(RuleTestFile)
    rules = load(_rule_files(document, file))
    outcomes: list[Outcome] = []
    for index, test in enumerate(file.tests):
        outcomes += _run_test(document, index, test, rules, test.interval or file.evaluation_interval)
    return outcomes


def _rule_files(document: Document, file: RuleTestFile) -> list[Path]:
    found: list[Path] = []
    errors: list[UserError] = []
    for index, name in enumerate(file.rule_files):
        try:
            found += rule_files([document.path.parent / name])
        except UserError as error:
            where = document.where(("rule_files", index))
            fix = "it is relative to the folder of this test file"
            errors.append(UserError(where, f"rule file {name!r} {error.problem}", fix))
    if errors:
        raise UserErrors(errors)
    return found


def parse_values(text: str) -> list[float | str | bool | None]:
    """The values of a series: numbers, words, None where one is missing.

    Raises:
        ValueError: a part is none of the forms.
    """
    values: list[float | str | bool | None] = []
    for part in text.split():
        steps = _STEPS.match(part)
        if steps:
            first, step = _number(steps[1]), _number(steps[2] or "0")
            values += [first + step * n for n in range(int(steps[3]) + 1)]
        elif part == "_":
            values.append(None)
        elif part in {"true", "false"}:
            values.append(part == "true")
        elif re.fullmatch(_NUMBER, part):
            values.append(_number(part))
        elif re.fullmatch(r"[A-Za-z][\w/.-]*", part):
            values.append(part)
        else:
            raise ValueError(f"{part!r} is no value; write 3, 0+1x5, 2x3, a word, or _ for a missing one")
    return values


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _run_test(document: Document, index: int, test: RuleTest, rules: RuleSet, interval: float) -> list[Outcome]:
    errors: list[UserError] = []
    series: dict[tuple[str, ...], list[float | str | bool | None]] = {}
    for at, item in enumerate(test.input):
        where = document.where(("tests", index, "input", at, "path"))
        try:
            parts = tuple(item.path.split("."))
            resolve(ExperimentContext, parts)
            series[parts] = parse_values(item.values)
        except ExpressionError as error:
            errors.append(UserError(where, error.problem, error.fix))
        except ValueError as error:
            errors.append(UserError(document.where(("tests", index, "input", at, "values")), str(error)))
    last = max(check.eval_time for check in test.rule_test)
    if last / interval > LONGEST:
        errors.append(UserError(document.where(("tests", index)), f"{last / interval:.0f} evaluations", "shorten it"))
    for at, check in enumerate(test.rule_test):
        try:
            known_rule(rules, check.rule, document.where(("tests", index, "rule_test", at, "rule")))
        except UserError as error:
            errors.append(error)
    if errors:
        raise UserErrors(errors)
    history = _replay(document, index, rules, series, steps=math.ceil(last / interval) + 1, interval=interval)
    outcomes = []
    for at, check in enumerate(test.rule_test):
        where = document.where(("tests", index, "rule_test", at))
        standing = [d for d in history[math.floor(check.eval_time / interval + 1e-9)] if d.cause == check.rule]
        outcomes.append(Outcome(where, test.name, check.rule, check.eval_time, _compare(check, standing)))
    return outcomes


def _replay(
    document: Document,
    index: int,
    rules: RuleSet,
    series: Mapping[tuple[str, ...], list[float | str | bool | None]],
    *,
    steps: int,
    interval: float,
) -> list[list[Decision]]:
    guard = Guard(rules)
    history = []
    for step in range(steps):
        values = calm().model_dump(mode="json")
        for parts, listed in series.items():
            _put(values, parts, listed[min(step, len(listed) - 1)])
        try:
            context = ExperimentContext.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(str(part) for part in first["loc"])
            where = document.where(("tests", index, "input"))
            raise UserError(where, f"{path}: {first['msg']}", f"value {step} of its series does not fit") from error
        cluster = ClusterContext(total=context.total, breaker=context.breaker, cluster=context.cluster)
        history.append(guard.evaluate([context], cluster, START + step * interval))
    return history


def _put(values: dict[str, Any], parts: tuple[str, ...], value: object) -> None:
    *path, name = parts
    current = values
    for part in path:
        current = current.setdefault(part, {})
    kind = resolve(ExperimentContext, parts)
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    current[name] = [] if value is None and get_origin(kind) is tuple else value
    if get_origin(kind) is tuple and isinstance(value, str) and get_args(kind):
        current[name] = [value]


def _compare(check: Check, standing: list[Decision]) -> str:
    """What differs, empty for nothing."""
    standing = [decision for decision in standing if not decision.resolved]
    if len(standing) != len(check.exp_decisions):
        got = ", ".join(f"{d.action} ({d.reason})" for d in standing) or "none"
        return f"expected {len(check.exp_decisions)} decisions, got {len(standing)}: {got}"
    problems = []
    for expected, decision in zip(check.exp_decisions, standing, strict=True):
        for name, wanted in expected.model_dump(mode="json", exclude_none=True).items():
            value = getattr(decision, name)
            value = str(value) if isinstance(value, Action) else value
            if value != wanted:
                problems.append(f"{name}: expected {wanted!r}, got {value!r}")
    return "; ".join(problems)
