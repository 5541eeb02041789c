"""Rules as people write them, read and checked: `rules/*.yaml` → `RuleSet`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gpuchaos_stream.errors import UserError, UserErrors, nearest
from gpuchaos_stream.events.base import Authored
from gpuchaos_stream.experiments.plan import Duration, parse_duration
from gpuchaos_stream.experiments.safety import SafetyRules
from gpuchaos_stream.guard.context import NO_LIMIT, ClusterContext, ExperimentContext, busy, calm
from gpuchaos_stream.guard.expression import Expression, ExpressionError, resolve
from gpuchaos_stream.yamlfile import Document, Loc, read

#: A folder of this name holds another program's rules.
PROMETHEUS: Final = "prometheus"
#: Folders that hold no rules of ours.
NOT_OURS: Final = frozenset({"tests", PROMETHEUS})

_TEMPLATE: Final = re.compile(r"\{\{\s*([A-Za-z_][\w.]*)\s*\}\}")


class Action(StrEnum):
    """What a rule does when it fires."""

    HALT = "halt"  # stop this experiment and undo its faults
    HALT_ALL = "halt_all"  # stop every experiment and trip the breaker
    FREEZE = "freeze"  # no new fault for a while; what runs goes on
    NOTIFY = "notify"  # say so


#: Actions that stop something. A rule of these that cannot be evaluated is unsafe, and so counts as firing.
STOPPING: Final = frozenset({Action.HALT, Action.HALT_ALL, Action.FREEZE})
#: Actions that, once fired, stay: what was hurt does not become unhurt because a number went back.
LATCHED: Final = frozenset({Action.HALT, Action.HALT_ALL})


class Scope(StrEnum):
    """What a rule is evaluated for: each running experiment, or the cluster once."""

    EXPERIMENT = "experiment"
    CLUSTER = "cluster"


#: The names that an expression of each scope may use.
MODELS: Final[dict[Scope, type[ClusterContext]]] = {
    Scope.EXPERIMENT: ExperimentContext,
    Scope.CLUSTER: ClusterContext,
}

Pause = Annotated[float, BeforeValidator(parse_duration), Field(ge=0, description="like 0s, 30s, 5m")]


class Annotations(Authored):
    """What the person on call reads. `{{ blast.gpus }}` is replaced by the value when the rule fires."""

    summary: str = Field(min_length=1, description="one sentence with the numbers: the decision's reason")
    description: str = ""
    runbook_url: str = ""
    dashboard_url: str = ""


class Rule(Authored):
    """One rule, in the manner of a Prometheus alerting rule."""

    model_config = ConfigDict(populate_by_name=True)

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    expr: str = Field(min_length=1)
    for_: Pause = Field(default=0.0, alias="for")
    action: Action
    scope: Scope = Scope.EXPERIMENT
    freeze_for: Duration = Field(default=60.0, description="how long a freeze holds after the rule last fired")
    labels: dict[str, str] = {}
    annotations: Annotations

    @model_validator(mode="after")
    def _halt_needs_an_experiment(self) -> Self:
        if self.action is Action.HALT and self.scope is Scope.CLUSTER:
            raise ValueError("a rule of scope cluster knows no experiment to halt: use halt_all, or scope experiment")
        return self


class Group(Authored):
    """Rules that belong together."""

    name: str = Field(min_length=1)
    rules: tuple[Rule, ...] = Field(min_length=1)


class RuleFile(Authored):
    """A rule file: rules, or what may never be hit (`safety`, in one of the files), or both."""

    groups: tuple[Group, ...] = Field(default=(), min_length=1)
    safety: SafetyRules | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if not self.groups and self.safety is None:
            raise ValueError("holds neither groups nor safety")
        return self


@dataclass(frozen=True, slots=True)
class LoadedRule:
    """A rule that was checked: its expression compiled, and `file:line` of its name."""

    rule: Rule
    group: str
    where: str
    expression: Expression

    def render(self, names: Mapping[str, Any]) -> dict[str, str]:
        """The annotations with the values of `names` (a context dumped in JSON mode) filled in."""
        return {
            key: _TEMPLATE.sub(lambda match: _show(names, match[1]), text)
            for key, text in self.rule.annotations.model_dump().items()
            if text
        }


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules that are in force, in the order of their files."""

    rules: tuple[LoadedRule, ...]
    safety: SafetyRules = field(default_factory=SafetyRules)

    def of(self, scope: Scope) -> tuple[LoadedRule, ...]:
        """The rules of `scope`."""
        return tuple(loaded for loaded in self.rules if loaded.rule.scope is scope)

    def find(self, name: str) -> LoadedRule | None:
        """The rule of that name, or None."""
        return next((loaded for loaded in self.rules if loaded.rule.name == name), None)


def rule_files(paths: Iterable[Path]) -> list[Path]:
    """The rule files at `paths`: files as they are, of folders every `*.yaml` but those in a folder `tests` or
    `prometheus`, and what is hidden.

    Raises:
        UserError: a path is not there, or a folder holds no rule file.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*.yaml") if is_ours(p.relative_to(path)))
            if not inside:
                raise UserError(str(path), "holds no rule file", "rule files end in .yaml")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise UserError(str(path), "is not there", "give rule files, or a folder of them")
    return list(dict.fromkeys(found))


def is_ours(inside: Path) -> bool:
    """Whether a file of a folder of rules, by its path below it, is a rule file.

    What is hidden is not: a ConfigMap that is mounted holds its files a second time, in a folder `..2026_01_01…`.
    """
    return NOT_OURS.isdisjoint(inside.parts[:-1]) and not is_hidden(inside)


def is_hidden(inside: Path) -> bool:
    """Whether a file, or a folder on the way to it, has a name that begins with a dot."""
    return any(part.startswith(".") for part in inside.parts)


def load(paths: Iterable[Path]) -> RuleSet:
    """Reads and checks rule files and folders of them.

    Raises:
        UserErrors: every mistake of every file, with file and line and, for a name, the nearest known one.
    """
    rules: list[LoadedRule] = []
    errors: list[UserError] = []
    seen: dict[str, str] = {}
    safety: dict[str, SafetyRules] = {}
    for path in rule_files(paths):
        try:
            document = _document(path)
            file = document.validate(RuleFile)
        except UserErrors as error:
            errors += (UserError(e.where, e.problem, e.fix.replace("for_", "for")) for e in error.errors)
            continue
        except UserError as error:
            errors.append(error)
            continue
        if file.safety is not None:
            safety[document.where(("safety",))] = file.safety
        for group_index, group in enumerate(file.groups):
            for rule_index, rule in enumerate(group.rules):
                loc: Loc = ("groups", group_index, "rules", rule_index)
                where = document.where((*loc, "name"))
                if rule.name in seen:
                    errors.append(UserError(where, f"rule {rule.name!r} is also at {seen[rule.name]}", "rename one"))
                seen.setdefault(rule.name, where)
                errors += _annotation_errors(document, loc, rule)
                try:
                    rules.append(LoadedRule(rule, group.name, where, compile_rule(rule)))
                except ExpressionError as error:
                    problem = f"rule {rule.name!r}: expr: {error.problem}"
                    errors.append(UserError(document.where((*loc, "expr")), problem, error.fix))
    first, *others = safety or ("",)
    errors += (UserError(where, f"safety is also at {first}", "keep one") for where in others)
    if errors:
        raise UserErrors(errors)
    return RuleSet(tuple(rules), safety.get(first, SafetyRules()))


def _document(path: Path) -> Document:
    document = read(path)
    if isinstance(document.data, dict) and document.data.get("kind") == "Experiment":
        raise UserError(str(path), "is an Experiment, not rules", "gpuchaos experiment check checks it")
    return document


def compile_rule(rule: Rule) -> Expression:
    """The rule's expression, checked against the names of its scope.

    Raises:
        ExpressionError: see `Expression`.
    """
    model: type[BaseModel] = MODELS[rule.scope]
    fields = set(model.model_fields)
    examples = [model.model_validate(example.model_dump(include=fields)) for example in (calm(), busy())]
    try:
        return Expression(rule.expr, model, calm=examples[0], busy=examples[1])
    except ExpressionError as error:
        root = re.match(r"unknown name '(\w+)", error.problem)
        if root and root[1] not in fields and root[1] in ExperimentContext.model_fields:
            raise ExpressionError(
                f"{root[1]!r} is not known to a rule of scope {rule.scope}", "known are " + ", ".join(sorted(fields))
            ) from error
        raise


def _annotation_errors(document: Document, loc: Loc, rule: Rule) -> list[UserError]:
    errors = []
    for key, text in rule.annotations.model_dump().items():
        where = document.where((*loc, "annotations", key))
        if "{{" in _TEMPLATE.sub("", text):
            problem = f"rule {rule.name!r}: annotation {key!r}: a template that is none"
            errors.append(UserError(where, problem, "write it like {{ blast.gpus }}"))
        for path in _TEMPLATE.findall(text):
            try:
                resolve(MODELS[rule.scope], tuple(path.split(".")))
            except ExpressionError as error:
                errors.append(UserError(where, f"rule {rule.name!r}: annotation {key!r}: {error.problem}", error.fix))
    return errors


def _show(names: Mapping[str, Any], path: str) -> str:
    value: Any = names
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "unknown" if value is None else str(value)
    if value == NO_LIMIT:
        return "no limit"
    if value == NO_LIMIT - 1:
        return "unknown"
    return f"{value:.1f}".removesuffix(".0")


def known_rule(rules: RuleSet, name: str, where: str) -> LoadedRule:
    """The rule of that name.

    Raises:
        UserError: there is none; names the nearest.
    """
    found = rules.find(name)
    if found is None:
        names = [loaded.rule.name for loaded in rules.rules]
        raise UserError(where, f"unknown rule {name!r}", nearest(name, names))
    return found
