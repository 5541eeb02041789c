"""What the map says of a node: one state, decided by a table, the worst first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpuchaos_stream.events.base import Severity

#: The signal that says a node's telemetry has stopped (`detect/silence.py`).
SILENCE: Final = "telemetry_stale"


@dataclass(frozen=True, slots=True)
class Harm:
    """One open anomaly on a node. `experiment` None: no experiment explains it. `start` in epoch seconds."""

    entity: str
    metric: str
    experiment: str | None
    start: float
    severity: Severity
    sentence: str
    incident: str


@dataclass(slots=True)
class Facts:
    """What is known of one node: faults on it as (experiment, fault id) → entity, and its open anomalies.

    `own`: experiments that are not finished and of which it is a target, also once the fault is gone. `stale`: its
    cell's summary says that its telemetry has stopped. `unheard`: nothing says that it has not.
    """

    faults: dict[tuple[str, str], str] = field(default_factory=dict)
    harms: dict[tuple[str, str], Harm] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    stale: bool = False
    unheard: bool = False

    def silent(self) -> bool:
        """Its telemetry is gone, or nobody says that it is there."""
        return self.stale or self.unheard or any(harm.metric == SILENCE for harm in self.harms.values())

    def unexplained(self) -> bool:
        """It has an open anomaly that no experiment explains."""
        return any(harm.experiment is None for harm in self.harms.values())

    def hurt(self) -> bool:
        """It has an open anomaly charged to an experiment of which it is no target, or that is finished."""
        own = self._targeted_by()
        return any(harm.experiment is not None and harm.experiment not in own for harm in self.harms.values())

    def target(self) -> bool:
        """A fault is on it, or may be, or it has not yet recovered from one."""
        return bool(self.faults) or any(harm.experiment in self.own for harm in self.harms.values())

    def _targeted_by(self) -> set[str]:
        return self.own | {experiment for experiment, _ in self.faults}


@dataclass(frozen=True, slots=True)
class NodeState:
    """A state with the words for it."""

    name: str
    words: str
    holds: Callable[[Facts], bool]


#: The states in the order of their numbers on the wire; of those that hold the last one counts.
STATES: Final[tuple[NodeState, ...]] = (
    NodeState("ok", "nothing is known to be wrong with it", lambda _: True),
    NodeState("target", "an injected fault is on it, or it has not yet recovered from one", Facts.target),
    NodeState("hurt", "hurt by an experiment of which it is no target, or that is finished", Facts.hurt),
    NodeState("unexplained", "something is wrong with it that no experiment explains", Facts.unexplained),
    NodeState("silent", "its telemetry has stopped: nothing is known of it", Facts.silent),
)
NAMES: Final = tuple(state.name for state in STATES)
OK: Final = NAMES.index("ok")
SILENT: Final = NAMES.index("silent")


def state_of(facts: Facts) -> int:
    """The number of a node's state, its index in `STATES`."""
    return next(number for number in range(len(STATES) - 1, -1, -1) if STATES[number].holds(facts))
