"""What the guard concludes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.guard.rules import Action

#: The cause of a halt that a person asked for begins with this; the command's id follows.
OPERATOR = "operator:"


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing to do, and why. Whoever acts on it acts once per experiment and cause, however often it comes.

    `experiment_id` is None for what concerns the whole cluster. `cause` is the rule's name, or
    `operator:<command id>`. `since` and `fired` are event times: when the condition began to hold, and when
    its `for` was over. `new` is true the first time only (for logs and metrics). `unsafe` says that the rule
    could not be evaluated and therefore counts as firing. `resolved` ends an earlier notify.
    """

    action: Action
    cause: str
    reason: str
    since: float
    fired: float
    experiment_id: str | None = None
    group: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    new: bool = True
    unsafe: bool = False
    resolved: bool = False
    freeze_until: float | None = None

    @property
    def id(self) -> str:
        """The same for a repeat, a replay, a second worker."""
        return stable_id("decision", self.experiment_id, self.cause)

    def for_experiment(self, experiment_id: str) -> Self:
        """The halt of one experiment that a `halt_all` asks for."""
        return replace(self, action=Action.HALT, experiment_id=experiment_id)


def operator_stop(command_id: str, experiment_id: str | None, reason: str, by: str, now: float) -> Decision:
    """A person's stop of one experiment, or of all (None), as a decision."""
    return Decision(
        action=Action.HALT if experiment_id else Action.HALT_ALL,
        cause=f"{OPERATOR}{command_id}",
        reason=f"stopped by {by or 'an operator'}: {reason or 'no reason given'}",
        since=now,
        fired=now,
        experiment_id=experiment_id,
    )
