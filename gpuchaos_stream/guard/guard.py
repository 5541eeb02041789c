"""The guard: rules × contexts → decisions.

Decisions are level-triggered: a halt that has fired is repeated at each evaluation until its experiment is
gone. A worker may die between saving this stage's state and saving the halt; if the decision came only once,
that halt would be lost. Whoever acts on decisions recognises repeats, so nothing is halted twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from gpuchaos_stream.events.experiment import Status
from gpuchaos_stream.guard.context import ClusterContext, ExperimentContext
from gpuchaos_stream.guard.decision import Decision
from gpuchaos_stream.guard.expression import EvaluationError, Names
from gpuchaos_stream.guard.rules import LATCHED, STOPPING, Action, LoadedRule, RuleSet, Scope

PREFIX: Final = "guard/"
#: A condition must hold at every look for its `for`. After a longer pause between two looks (event time, seconds)
#: nothing is known of the time between: the worker was down, or reads what piled up meanwhile.
MAX_GAP_S: Final = 3.0

#: Stands for the cluster where an experiment's id would stand.
_CLUSTER: Final = "-"


@dataclass(slots=True)
class _Firing:
    """A condition that holds: since when, and once it has fired, when and with what words."""

    since: float
    seen: float
    fired: float | None = None
    unsafe: bool = False
    seen_tripped: bool = False
    annotations: dict[str, str] = field(default_factory=dict)


class Guard:
    """Evaluates the rules (`Stateful`, prefix `guard/`). No clock: `now` is event time in epoch seconds."""

    def __init__(self, rules: RuleSet, *, dry_run: bool = False) -> None:
        """With `dry_run` a `halt_all` does not wait for the breaker to trip, since nothing will trip it."""
        self._experiment_rules = rules.of(Scope.EXPERIMENT)
        self._cluster_rules = rules.of(Scope.CLUSTER)
        self._dry_run = dry_run
        self._firing: dict[tuple[str, str], _Firing] = {}
        self._dirty: set[tuple[str, str]] = set()
        #: Failed evaluations per rule since the start, for metrics.
        self.errors: Counter[str] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all rules, those of experiments first."""
        return tuple(loaded.rule.name for loaded in (*self._experiment_rules, *self._cluster_rules))

    def evaluate(self, experiments: Sequence[ExperimentContext], cluster: ClusterContext, now: float) -> list[Decision]:
        """What must be done now: every decision that stands, in the order of the rules, experiments first.

        An experiment that is not among `experiments`, or is finished, is forgotten.
        """
        decisions: list[Decision] = []
        present = {_CLUSTER}
        for context in experiments:
            if context.experiment.status is Status.FINISHED:
                continue
            present.add(context.experiment.id)
            decisions += self._scope(self._experiment_rules, context.experiment.id, context, now)
        decisions += self._scope(self._cluster_rules, _CLUSTER, cluster, now)
        for key in [key for key in self._firing if key[0] not in present]:
            self._drop(key)
        return decisions

    def _scope(self, rules: Iterable[LoadedRule], owner: str, context: ClusterContext, now: float) -> list[Decision]:
        names = Names(context.model_dump(mode="json"))
        found = (self._rule(rule, owner, context, names, now) for rule in rules)
        return [decision for decision in found if decision is not None]

    def _rule(
        self, loaded: LoadedRule, owner: str, context: ClusterContext, names: Names, now: float
    ) -> Decision | None:
        rule = loaded.rule
        key = (owner, rule.name)
        firing = self._firing.get(key)
        if firing is not None and rule.action is Action.HALT_ALL:
            firing = self._after_reset(key, firing, context)
        holds, problem = self._holds(loaded, names)
        if firing is not None and firing.fired is not None and (holds or self._latched(rule.action, firing)):
            return _decision(loaded, owner, firing, now, new=False)
        if not holds:
            if firing is not None:
                self._drop(key)
                if firing.fired is not None and rule.action is Action.NOTIFY:
                    return _decision(loaded, owner, firing, now, new=True, resolved=True)
            return None
        if firing is None:
            firing = self._firing[key] = _Firing(since=now, seen=now)
            self._dirty.add(key)
        elif firing.fired is None:
            firing.since = now if now - firing.seen > MAX_GAP_S else firing.since
            firing.seen = now
            self._dirty.add(key)
        if now - firing.since < rule.for_:
            return None
        firing.fired = now
        firing.annotations = loaded.render(names.values)
        if problem:
            firing.unsafe = True
            firing.annotations["summary"] = f"rule {rule.name} could not be evaluated, which is unsafe: {problem}"
        self._dirty.add(key)
        return _decision(loaded, owner, firing, now, new=True)

    def _holds(self, loaded: LoadedRule, names: Names) -> tuple[bool, str]:
        """Whether the rule's condition holds, and the problem where it could not be evaluated."""
        try:
            return loaded.expression.evaluate(names), ""
        except EvaluationError as error:
            self.errors[loaded.rule.name] += 1
            return loaded.rule.action in STOPPING, str(error)

    def _latched(self, action: Action, firing: _Firing) -> bool:
        """A halt stays for the life of its experiment; a `halt_all` until the breaker is seen tripped."""
        if action is Action.HALT_ALL:
            return not (firing.seen_tripped or self._dry_run)
        return action in LATCHED

    def _after_reset(self, key: tuple[str, str], firing: _Firing, context: ClusterContext) -> _Firing | None:
        """A `halt_all` from before the breaker's reset is history: only what still holds may trip it again."""
        if context.breaker.reset_at and firing.since <= context.breaker.reset_at:
            self._drop(key)
            return None
        if context.breaker.tripped and not firing.seen_tripped and firing.fired is not None:
            firing.seen_tripped = True
            self._dirty.add(key)
        return firing

    def _drop(self, key: tuple[str, str]) -> None:
        self._firing.pop(key, None)
        self._dirty.add(key)

    def dirty(self) -> dict[str, bytes | None]:
        """See `Stateful`."""
        changed = {}
        for owner, rule in self._dirty:
            firing = self._firing.get((owner, rule))
            changed[f"{PREFIX}{owner}/{rule}"] = json.dumps(asdict(firing)).encode() if firing else None
        self._dirty.clear()
        return changed

    def load(self, items: Mapping[str, bytes]) -> None:
        """See `Stateful`. What belongs to a rule that is gone stays until its experiment is."""
        self._dirty.clear()
        self._firing = {}
        for key, value in items.items():
            if key.startswith(PREFIX):
                owner, _, rule = key.removeprefix(PREFIX).rpartition("/")
                self._firing[owner, rule] = _Firing(**json.loads(value))


def _decision(
    loaded: LoadedRule, owner: str, firing: _Firing, now: float, *, new: bool, resolved: bool = False
) -> Decision:
    rule = loaded.rule
    return Decision(
        action=rule.action,
        cause=rule.name,
        reason=firing.annotations.get("summary", rule.name),
        since=firing.since,
        fired=now if firing.fired is None else firing.fired,
        experiment_id=None if owner == _CLUSTER else owner,
        group=loaded.group,
        labels=rule.labels,
        annotations=firing.annotations,
        new=new,
        unsafe=firing.unsafe,
        resolved=resolved,
        freeze_until=now + rule.freeze_for if rule.action is Action.FREEZE else None,
    )
