"""What a text can say: one finding, and how findings of one family become one event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from gpuchaos_agent.collect.base import Evidence, FactKind
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_stream.events.base import Severity

#: How much of a record is kept as evidence, characters.
TEXT_KEPT: Final = 300

#: Name of the fault of an input that says nothing of a fault.
NONE: Final = "none"


class Part(StrEnum):
    """What a finding is of its event."""

    FAULT = "fault"  # opens an event, or joins one that is open
    DETAIL = "detail"  # adds to an open event of its family; alone it says nothing
    CLEAR = "clear"  # ends an open event of its family (`OK`, link up, recovery action back to 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one record says: the fact without its time, its key and its origin.

    `device` names what it is about in the log's own terms, normalised (`0000:3b:00`, `mlx5_0`, `nvme2`, `eth0`,
    `md0`, a server), empty where the line does not say. `kind` and `local` are the entity of the contract:
    `local` is what `Snapshot.resolve` can turn into an entity of this node (a GPU's PCI address, a port's name).
    `family` with `device` decides which findings are one event; empty: each is an event of its own.
    Evidence is scalar, named as in the head of `story/story.py`.
    """

    fault: str
    severity: Severity
    kind: FactKind = "node"
    local: str = ""
    evidence: Evidence = field(default_factory=dict)
    device: str = ""
    family: str = ""
    part: Part = Part.FAULT


@dataclass(frozen=True, slots=True)
class Family:
    """How findings of one `name` about one device are one event.

    `gap_s`: a finding joins the open event of its family and device if it comes within this many seconds of
    the event's last one. `any_device`: the device does not matter (four switches at once are one incident).
    `conclude` makes one finding of all parts in order (at most `story.MOST_PARTS`, the first and the latest
    kept); None takes the most severe part's fault, the earliest among equals, and fills evidence from all.
    """

    name: str
    gap_s: float = 5.0
    any_device: bool = False
    conclude: Callable[[Sequence[Finding]], Finding] | None = None


class Words(Protocol):
    """A module of this package that reads texts (found by `registry.py`; adding one needs no other edit).

    HINTS: literals, at least one of which is in any text that `read` understands, case as written; a record
    without any is never shown to `read`. WRITERS: whose records it reads. FAMILIES: how its findings join.
    """

    HINTS: tuple[str, ...]
    WRITERS: frozenset[Writer]
    FAMILIES: tuple[Family, ...]

    def read(self, record: LogRecord) -> Finding | None:
        """What the record says, None where it says nothing. Never raises, takes under 10 ms for any text."""
