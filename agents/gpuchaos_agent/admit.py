"""Whether a believed inject may be carried out on this node: the checks, in order, as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from gpuchaos_agent.inject import netns, paths
from gpuchaos_agent.inject.base import FaultStrategy, Payload
from gpuchaos_agent.journal import FAULT_ID, Damaged, EntryState, JournalEntry, Scalar
from gpuchaos_agent.lease import LONGEST_S
from gpuchaos_agent.nonces import Seen
from gpuchaos_stream.events.base import entity_node
from gpuchaos_stream.events.command import Command


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The most that this node lets be done to it, whoever asks."""

    longest_lease_s: float = LONGEST_S
    most_faults: int = 16


@dataclasses.dataclass(frozen=True, slots=True)
class Situation:
    """What the checks look at besides the command."""

    node: str
    limits: Limits
    strategies: Mapping[str, FaultStrategy]
    known: Mapping[str, JournalEntry]
    seen: Seen
    aside: Callable[[], Sequence[Damaged]] = tuple

    @property
    def active(self) -> tuple[JournalEntry, ...]:
        """Faults whose effect is or may be there."""
        return tuple(e for e in list(self.known.values()) if e.state is not EntryState.UNDONE)


def why_not(command: Command, at: Situation) -> str | None:
    """The first reason against carrying out an inject, or None. Changes nothing."""
    return unfit(command, at) or unreachable(command, at)


def unfit(command: Command, at: Situation) -> str | None:
    """The first reason that the command itself and what is known here give. Asks nothing of the node."""
    return _first(_OF_THE_COMMAND, command, at)


def unreachable(command: Command, at: Situation) -> str | None:
    """The first reason that the node gives, of a command that is fit. May take its time, or hang."""
    return _first(_OF_THE_NODE, command, at)


def prepare(command: Command, at: Situation) -> tuple[str | None, Payload]:
    """`unreachable`, and of a command that can be carried out what its undo will need. Never raises."""
    try:
        reason = unreachable(command, at)
        if reason is not None:
            return reason, {}
        plan = at.strategies[str(command.fault)].plan
        payload = plan(str(command.entity), command.params, str(command.fault_id))
        return None, netns.stamped(str(command.fault), payload)
    except Exception as error:  # noqa: BLE001  (nothing was done yet, so whatever it is, it is a refusal)
        return f"{type(error).__name__}: {error}", {}


def held_by(
    strategy: FaultStrategy,
    target: str,
    params: Mapping[str, Scalar],
    standing: Iterable[JournalEntry],
    strategies: Mapping[str, FaultStrategy],
) -> str | None:
    """Which fault that stands holds what a new one would take hold of, in words, or None.

    Of one that this agent does not know, or whose parameters it cannot read, nothing can be told: it may hold anything.
    """
    wanted = strategy.resources(target, params)
    for entry in standing:
        other = strategies.get(entry.fault)
        try:
            holds = other.resources(entry.entity, entry.params) if other is not None else None
        except ValueError:
            holds = None
        if holds is None:
            return f"fault {entry.fault_id} ({entry.fault}) stands, of which this agent cannot tell what it holds"
        held = paths.common(wanted, holds)
        if held:
            return f"{', '.join(sorted(held))} is held by fault {entry.fault_id} ({entry.fault})"
    return None


def unsettled(aside: Sequence[Damaged]) -> str | None:
    """Why nothing new may begin while the journal has files that cannot be read, or None."""
    if not aside:
        return None
    names = ", ".join(sorted({item.fault_id for item in aside}))
    return f"the journal cannot read what it holds of {names}, which may stand: see gpuchaos-agent undo --all"


def _first(
    checks: tuple[Callable[[Command, Situation], str | None], ...], command: Command, at: Situation
) -> str | None:
    for check in checks:
        reason = check(command, at)
        if reason is not None:
            return reason
    return None


def _complete(command: Command, _at: Situation) -> str | None:
    if not (command.fault_id and command.experiment_id and command.fault and command.entity and command.lease_s):
        return "an inject names fault_id, experiment_id, fault, entity and lease_s"
    if not FAULT_ID.match(command.fault_id):
        return f"fault_id {command.fault_id!r} must match {FAULT_ID.pattern}"
    return None


def _settled(_command: Command, at: Situation) -> str | None:
    return unsettled(at.aside())


def _not_ended(command: Command, at: Situation) -> str | None:
    if f"ended/{command.experiment_id}" in at.seen or f"ended-fault/{command.fault_id}" in at.seen:
        return "this fault or its experiment was ended on this node before"
    return None


def _new(command: Command, at: Situation) -> str | None:
    known = at.known.get(command.fault_id or "")
    return f"already: fault {known.fault_id} is {known.state}" if known is not None else None


def _known_fault(command: Command, at: Situation) -> str | None:
    if command.fault in at.strategies:
        return None
    return f"unknown fault {command.fault!r}; this node can {', '.join(sorted(at.strategies)) or 'none'}"


def _here(command: Command, at: Situation) -> str | None:
    # A power cycle is ordered from another node than the one that it takes; its own check says which nodes.
    remote = getattr(at.strategies[command.fault or ""], "remote", False)
    here = remote or entity_node(command.entity or "") == at.node
    return None if here else f"{command.entity} is not on node {at.node}"


def _short_lease(command: Command, at: Situation) -> str | None:
    longest, asked = at.limits.longest_lease_s, command.lease_s or 0.0
    return f"a lease of {asked:g} s is longer than the {longest:g} s allowed here" if asked > longest else None


def _room(command: Command, at: Situation) -> str | None:
    active = at.active
    if len(active) >= at.limits.most_faults:
        return f"{len(active)} faults are active on this node, the most that it takes"
    taken = next((e for e in active if (e.entity, e.fault) == (command.entity, command.fault)), None)
    return f"already: {taken.entity} carries fault {taken.fault_id} ({taken.fault})" if taken is not None else None


def _parameters(command: Command, at: Situation) -> str | None:
    try:
        at.strategies[command.fault or ""].params.model_validate(command.params)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"params.{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return None


def _free(command: Command, at: Situation) -> str | None:
    """Two faults that hold the same thing would be undone in the wrong order."""
    strategy = at.strategies[command.fault or ""]
    held = held_by(strategy, command.entity or "", command.params, at.active, at.strategies)
    return f"already: {held}" if held is not None else None


def _reachable(command: Command, at: Situation) -> str | None:
    try:
        return at.strategies[command.fault or ""].check(command.entity or "", command.params)
    except Exception as error:  # noqa: BLE001  (a check that fails is a reason not to inject)
        return f"check failed: {type(error).__name__}: {error}"


_OF_THE_COMMAND: Final = (
    _complete,
    _not_ended,
    _new,
    _settled,
    _known_fault,
    _here,
    _short_lease,
    _room,
    _parameters,
)
_OF_THE_NODE: Final = (_free, _reachable)
