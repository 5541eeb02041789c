"""Labels and severity → receivers, and which messages are told together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import Field, model_validator

from gpuchaos_stream.events.base import Authored, Severity, stable_id
from gpuchaos_stream.experiments.plan import Duration


class Route(Authored):
    """Who is told of what. Routes are tried from the first to the last; the first that fits ends the search.

    A label that a message does not have is the empty text. `group_by` and `group_wait` say which messages go out as
    one, to receivers that can take several, and how long the first waits for the others; nothing else is delayed.
    """

    receivers: tuple[str, ...] = Field(min_length=1)
    match: dict[str, str | tuple[str, ...]] = Field(
        default={}, description="label: value, or list of values of which one must be equal"
    )
    severity: Severity = Field(default=Severity.INFO, description="at least this bad")
    group_by: tuple[str, ...] = ("cluster", "experiment_id")
    group_wait: Duration = Field(default=2.0, description="how long the first of a group waits for the others")
    go_on: bool = Field(default=False, description="also try the routes below")

    @model_validator(mode="after")
    def _no_receiver_twice(self) -> Self:
        if len(set(self.receivers)) != len(self.receivers):
            raise ValueError("a receiver is named twice in one route")
        return self

    def fits(self, labels: Mapping[str, str], severity: Severity) -> bool:
        """Whether a message with these labels goes this way."""
        if severity.rank < self.severity.rank:
            return False
        return all(
            labels.get(name, "") in ((wanted,) if isinstance(wanted, str) else wanted)
            for name, wanted in self.match.items()
        )


class Way(Authored):
    """One receiver of one message: messages of equal `group` go together, the first after `wait` seconds."""

    receiver: str
    group: str
    labels: dict[str, str]
    wait: float


def ways(routes: Sequence[Route], labels: Mapping[str, str], severity: Severity) -> list[Way]:
    """Where a message goes, each receiver once, by the first route that names it; empty: to nobody."""
    found: dict[str, Way] = {}
    for route in routes:
        if not route.fits(labels, severity):
            continue
        group = {name: labels.get(name, "") for name in route.group_by}
        for receiver in route.receivers:
            key = stable_id("group", receiver, *(part for pair in sorted(group.items()) for part in pair))
            found.setdefault(receiver, Way(receiver=receiver, group=key, labels=group, wait=route.group_wait))
        if not route.go_on:
            break
    return list(found.values())
