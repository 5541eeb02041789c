"""The operator's side: sign, send, and follow experiments over Kafka. The command line and the demo use it."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import SpanKind

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.command import Command, CommandKind, Role
from gpuchaos_stream.events.envelope import BadMessageError, command_record, from_value
from gpuchaos_stream.events.experiment import BreakerState, ExperimentState
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.observe import tracing

if TYPE_CHECKING:
    from gpuchaos_stream.stream.bus import Bus

#: How long a start, a stop or a reset may be believed, seconds.
VALID_S: Final = 60.0
KEY_ENV: Final = "GPUCHAOS_KEY"

#: A name of a plan, with room for more behind it.
_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,79}")
_SHOWN: Final = 40


def default_key() -> Path:
    """`$GPUCHAOS_KEY`, else `operator.json` in the user's configuration folder."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(os.environ.get(KEY_ENV) or config / "gpuchaos" / "operator.json")


def load_signer(path: Path | None = None) -> Signer:
    """The operator's key.

    Raises:
        UserError: there is no key file, or it holds no operator's key.
    """
    path = path or default_key()
    try:
        signer = Signer.load(path)
    except OSError as error:
        raise UserError(
            str(path),
            f"the key cannot be read ({error.strerror})",
            "name it with --key, or make one: gpuchaos keys make",
        ) from error
    except ValueError as error:
        raise UserError(str(path), str(error).removeprefix(f"{path}: ")) from error
    if signer.role is not Role.OPERATOR:
        raise UserError(str(path), f"is a key of role {signer.role}", "starting and stopping need an operator's key")
    return signer


def operator_command(kind: CommandKind, *, cluster: str, now: float | None = None, **fields: Any) -> Command:
    """A command of an operator, valid for a minute. `now` is epoch seconds, the clock's where absent."""
    at = time.time() if now is None else now
    nonce = secrets.token_hex(12)
    body = {"id": stable_id(kind, cluster, nonce), "issued_by": _user(), "node": None} | fields
    return Command(kind=kind, cluster=cluster, time=at, expires=at + VALID_S, nonce=nonce, **body)


def start_command(plan: Plan, *, cluster: str, experiment_id: str | None = None, now: float | None = None) -> Command:
    """A start of `plan`. Its experiment gets a new id, unless one is given: starting that twice starts it once.

    Raises:
        UserError: the id given cannot be one.
    """
    if experiment_id is not None and not _ID.fullmatch(experiment_id):
        shown = experiment_id if len(experiment_id) <= _SHOWN else experiment_id[:_SHOWN] + "…"
        problem = f"{shown!r} cannot be an experiment's id"
        raise UserError("--id", problem, "it has small letters, digits and hyphens, at most 80, no hyphen first")
    experiment_id = experiment_id or f"{plan.name}-{secrets.token_hex(4)}"
    return operator_command(
        CommandKind.START,
        cluster=cluster,
        now=now,
        id=stable_id("start", cluster, experiment_id),
        experiment_id=experiment_id,
        plan=plan.model_dump(mode="json", exclude_none=True),
    )


def stop_command(experiment_id: str, *, cluster: str, reason: str, now: float | None = None) -> Command:
    """A stop of one experiment: its faults are undone at once."""
    return operator_command(CommandKind.STOP, cluster=cluster, now=now, experiment_id=experiment_id, reason=reason)


def halt_commands(state: ExperimentState, *, reason: str, now: float | None = None) -> list[Command]:
    """A person's own word to each agent that may hold a fault of the experiment: undo it now.

    Agents believe it however late it comes, so that it works without a worker and with a clock that is wrong.
    """
    nodes = sorted({fault.node for fault in state.faults})
    return [
        operator_command(
            CommandKind.HALT,
            cluster=state.cluster,
            now=now,
            node=node,
            experiment_id=state.id,
            reason=reason,
            cause="operator",
        )
        for node in nodes
    ]


def stop_commands(state: ExperimentState, reason: str) -> list[Command]:
    """A stop for the control plane, then a halt for every agent concerned."""
    return [stop_command(state.id, cluster=state.cluster, reason=reason), *halt_commands(state, reason=reason)]


async def stop(bus: Bus, signer: Signer, state: ExperimentState, reason: str) -> None:
    """Stops an experiment: tells the control plane, and every agent concerned as well."""
    for command in stop_commands(state, reason):
        await send(bus, signer, command)


async def send(bus: Bus, signer: Signer, command: Command) -> None:
    """Signs and sends, as the root of a trace; returns when the broker has it."""
    tracing.configure("gpuchaos")
    span = tracing.start(
        f"{command.kind.value} experiment",
        kind=SpanKind.PRODUCER,
        experiment_id=command.experiment_id,
        **tracing.messaging(topics.COMMANDS.name, "send"),
    )
    source = f"/operator/{command.issued_by or signer.key_id}"
    try:
        await bus.send(command_record(command, signer, source=source, traceparent=tracing.root(span)))
    finally:
        span.end()


async def states(bus: Bus, cluster: str | None = None) -> list[ExperimentState]:
    """The latest state of every experiment, of one cluster or of all, oldest first."""
    latest: dict[tuple[str, str], ExperimentState] = {}
    for record in await bus.snapshot((topics.EXPERIMENTS.name,)):
        state = read_state(record, cluster)
        if state is not None:
            latest[state.cluster, state.id] = state
    return sorted(latest.values(), key=lambda state: (state.started, state.id))


async def others(bus: Bus, cluster: str) -> list[str]:
    """The clusters besides this one that a control plane has spoken for."""
    return sorted({event.cluster for event in _events(await _kept(bus))} - {cluster})


async def tripped(bus: Bus, cluster: str) -> str:
    """Why the breaker of the cluster is tripped; empty if it is not."""
    state = latest_breaker(await _kept(bus), cluster)
    return state.cause if state is not None and state.tripped else ""


def latest_breaker(values: Iterable[bytes | None], cluster: str) -> BreakerState | None:
    """The last breaker state of `cluster` among values of the experiments topic; None where there is none."""
    found: BreakerState | None = None
    for event in _events(values):
        if isinstance(event, BreakerState) and event.cluster == cluster:
            found = event
    return found


async def _kept(bus: Bus) -> list[bytes | None]:
    return [record.value for record in await bus.snapshot((topics.EXPERIMENTS.name,))]


def _events(values: Iterable[bytes | None]) -> Iterator[Any]:
    for value in values:
        with contextlib.suppress(BadMessageError):  # the control stage's dead letters tell of it
            yield from_value(topics.EXPERIMENTS.name, value)


async def follow(records: AsyncIterator[Any], cluster: str | None = None) -> AsyncIterator[ExperimentState]:
    """The states in an endless run of records of the experiments topic, as they come."""
    async for record in records:
        state = read_state(record, cluster)
        if state is not None:
            yield state


def read_state(record: Any, cluster: str | None) -> ExperimentState | None:
    """The experiment state in a record; None for other records, other clusters, and what cannot be read."""
    try:
        event = from_value(topics.EXPERIMENTS.name, record.value)
    except BadMessageError:
        return None  # the control stage's dead letters tell of it
    if not isinstance(event, ExperimentState) or cluster not in (None, event.cluster):
        return None
    return event


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
