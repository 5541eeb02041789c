"""`gpuchaos breaker`: what a person says to the breaker, as signed commands."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from gpuchaos_stream.act.orders import order
from gpuchaos_stream.commandline import Group, exits, output_option
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.experiment import BreakerState
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.experiments import client
from gpuchaos_stream.experiments.cli import Connection, connection_options, key_option
from gpuchaos_stream.output import Form, harmless, text

#: Seconds to wait until the breaker has done what was asked.
WAIT_S: Final = 30.0

_REASON = click.option("--reason", required=True, help="Why; kept with the breaker's state.")


class _Breaker(Group):
    """Knows `show` as well: it is what everything else is looked at with."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, "status" if cmd_name == "show" else cmd_name)


@click.group(cls=_Breaker)
def breaker() -> None:
    """The breaker: a latched stop of all new faults. It trips by itself; only a person resets it."""


@breaker.command()
@output_option
@connection_options
@exits({0: "closed", 1: "tripped"})
def status(connection: Connection, output: Form) -> None:
    """Show whether new faults may be injected, and why not. `show` does the same."""
    state = asyncio.run(_status(connection))
    click.echo(show(state, connection.cluster, output), nl=False)
    sys.exit(1 if state is not None and state.tripped else 0)


@breaker.command()
@_REASON
@key_option
@output_option
@connection_options
@exits({0: "closed", 1: "sent, but not done within 30 s"})
def reset(reason: str, key: Path | None, connection: Connection, output: Form) -> None:
    """Close the breaker, with the reason: what was wrong, and why it is over."""
    _order(CommandKind.RESET, reason, client.load_signer(key), connection, output)


@breaker.command()
@_REASON
@key_option
@output_option
@connection_options
@exits({0: "tripped", 1: "sent, but not done within 30 s"})
def trip(reason: str, key: Path | None, connection: Connection, output: Form) -> None:
    """Stop every experiment, undo its faults, and let none begin until the reset."""
    _order(CommandKind.STOP_ALL, reason, client.load_signer(key), connection, output)


def show(state: BreakerState | None, cluster: str, output: Form) -> str:
    """The breaker for a person, or in another form. None is a breaker that never tripped."""
    state = state or BreakerState(id="breaker", time=0.0, cluster=cluster)
    if output != "table":
        return text(state, output)
    lines = [f"breaker of {cluster}: {'TRIPPED, no new fault may begin' if state.tripped else 'closed'}"]
    if state.tripped:
        lines.append(f"  since {_stamp(state.since)}: {state.cause}")
        lines.append("  close it with: gpuchaos breaker reset --reason …")
    if state.frozen_until is not None:
        lines.append(f"  new faults wait until {_stamp(state.frozen_until)}")
    if state.reset_reason:
        lines.append(f"  last reset by {state.reset_by}: {state.reset_reason}")
    return "".join(f"{harmless(line)}\n" for line in lines)


def _order(kind: CommandKind, reason: str, signer: Signer, connection: Connection, output: Form) -> None:
    order(kind, connection.cluster, reason, now=0.0, before=None)  # a bad reason is said before anything is opened
    state = asyncio.run(_send(kind, reason, signer, connection))
    if state is None:
        raise click.ClickException(f"sent, but the breaker did not change within {WAIT_S:g} s: is a worker running?")
    click.echo(show(state, connection.cluster, output), nl=False)


async def _status(connection: Connection) -> BreakerState | None:
    async with connection.bus() as bus:
        records = await bus.snapshot([topics.EXPERIMENTS.name])
        return client.latest_breaker((record.value for record in records), connection.cluster)


async def _send(kind: CommandKind, reason: str, signer: Signer, connection: Connection) -> BreakerState | None:
    """Sends it; the breaker's state once it is as asked, None if that does not come in time."""
    cluster, tripped = connection.cluster, kind is CommandKind.STOP_ALL
    async with connection.bus() as bus, await bus.subscribe([topics.EXPERIMENTS.name], "earliest") as subscription:
        before = client.latest_breaker((r.value for r in await subscription.read_to_end()), cluster)
        await client.send(bus, signer, order(kind, cluster, reason, now=time.time(), before=before))
        if before is not None and before.tripped == tripped:
            return before
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            state = client.latest_breaker((r.value for r in await subscription.batch(0.5)), cluster)
            if state is not None and state.tripped == tripped:
                return state
    return None


def _stamp(seconds: float | None) -> str:
    return "unknown" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
