"""`gpuchaos schedule`: experiments one after another, each some time after the last one began."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpuchaos_stream.commandline import exits
from gpuchaos_stream.errors import UserError, UserErrors
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.experiment import ExperimentState, Status, Verdict
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.experiments import client, show
from gpuchaos_stream.experiments.cli import Connection, connection_options, key_option
from gpuchaos_stream.experiments.load import load, plan_files
from gpuchaos_stream.experiments.plan import Plan, parse_duration

if TYPE_CHECKING:
    from gpuchaos_stream.stream.bus import Bus

#: Seconds that a stop waits for the word that the running experiment's faults are gone.
UNDONE_S: Final = 20.0
#: No fault of an experiment is left in these.
_GONE: Final = frozenset({Status.RECOVERING, Status.FINISHED})


class _Duration(click.ParamType):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(parse_duration(value))
        except ValueError as error:
            self.fail(f"{value!r} is no duration: {error}", param, ctx)
        if not 0 < seconds < float("inf"):
            self.fail(f"{value!r} is not above 0", param, ctx)
        return seconds


@click.command()
@click.argument("plans", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--every", type=_Duration(), default="10m", show_default=True, help="From one beginning to the next: 90s, 10m, 4h."
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many experiments  [default: never]")
@key_option
@connection_options
@exits({1: "with --count: not every experiment passed"})
def schedule(
    plans: tuple[Path, ...], *, every: float, count: int | None, key: Path | None, connection: Connection
) -> None:
    """Run the experiments in PLANS, files or folders of them, in turn and for ever.

    One at a time: the next one begins --every after the last one began, and not before every experiment of the cluster
    is finished, whoever started it. Files are read once, at the start. SIGTERM and Ctrl-C stop the experiment that
    runs and wait up to 20 s until its faults are gone; after SIGTERM the exit status is 0.
    """
    read = list(_read(plans))
    signer = client.load_signer(key)
    turns = cycle(read) if count is None else islice(cycle(read), count)
    ended = asyncio.run(_until_asked(_turns(connection, signer, turns, every)))
    if isinstance(ended, signal.Signals):
        sys.exit(130 if ended is signal.SIGINT else 0)
    sys.exit(0 if all(verdict is Verdict.PASSED for verdict in ended) else 1)


def _read(paths: Sequence[Path]) -> Iterator[Plan]:
    errors: list[UserError] = []
    for path in paths:
        try:
            files = plan_files(path)
        except UserError as error:
            errors.append(error)
            continue
        for file in files:
            try:
                yield load(file)
            except UserErrors as error:
                errors += error.errors
            except UserError as error:
                errors.append(error)
    if errors:
        raise UserErrors(errors)


async def _until_asked(turns: Coroutine[Any, Any, list[Verdict | None]]) -> list[Verdict | None] | signal.Signals:
    """The verdicts, or the signal that ended it in order."""
    working = asyncio.ensure_future(turns)
    asked: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        asked.append(number)
        working.cancel()

    # Ctrl-C as well: asyncio's own way would end the connection together with the turns that still need it.
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    await asyncio.wait({working})
    return asked[0] if working.cancelled() else working.result()


async def _turns(connection: Connection, signer: Signer, turns: Iterator[Plan], every: float) -> list[Verdict | None]:
    verdicts: list[Verdict | None] = []
    due = time.monotonic()
    async with connection.bus() as bus:
        for plan in turns:
            await asyncio.sleep(due - time.monotonic())
            await _until_nothing_runs(bus, connection.cluster)
            due = time.monotonic() + every
            last = await _one(bus, signer, plan, connection.cluster)
            verdicts.append(None if last is None else last.verdict)
    return verdicts


async def _until_nothing_runs(bus: Bus, cluster: str) -> None:
    async with await bus.subscribe((topics.EXPERIMENTS.name,)) as records:
        running = {state.id for state in await client.states(bus, cluster) if state.status is not Status.FINISHED}
        if not running:
            return
        click.echo(f"waiting for {', '.join(sorted(running))} to finish", err=True)
        async for state in client.follow(aiter(records), cluster):
            (running.discard if state.status is Status.FINISHED else running.add)(state.id)
            if not running:
                return


async def _one(bus: Bus, signer: Signer, plan: Plan, cluster: str) -> ExperimentState | None:
    """The finished experiment; None if no control plane took it while the start was valid."""
    start = client.start_command(plan, cluster=cluster)
    name = str(start.experiment_id)
    latest: ExperimentState | None = None
    async with await bus.subscribe((topics.EXPERIMENTS.name,)) as records:
        try:
            await client.send(bus, signer, start)
            click.echo(f"started {name}", err=True)
            async with asyncio.timeout(client.VALID_S) as silent:
                async for state in client.follow(aiter(records), cluster):
                    if state.id != name:
                        continue
                    silent.reschedule(None)
                    latest = state
                    if state.status is Status.FINISHED:
                        click.echo(show.line(state))
                        return state
        except TimeoutError:
            click.echo(f"no control plane of cluster {cluster!r} took {name}: is `gpuchaos worker` running?", err=True)
        except asyncio.CancelledError:
            await _stop(bus, signer, latest, name, cluster)
            raise
    return None


async def _stop(bus: Bus, signer: Signer, latest: ExperimentState | None, name: str, cluster: str) -> None:
    reason = "the schedule was ended"
    click.echo(f"{name} is being stopped", err=True)
    try:
        async with asyncio.timeout(UNDONE_S), await bus.subscribe((topics.EXPERIMENTS.name,)) as records:
            if latest is not None:
                await client.stop(bus, signer, latest, reason)
            else:
                await client.send(bus, signer, client.stop_command(name, cluster=cluster, reason=reason))
            async for state in client.follow(aiter(records), cluster):
                if state.id == name and state.status in _GONE:
                    click.echo(show.line(state))
                    return
    except TimeoutError:
        click.echo(f"no word after {UNDONE_S:g} s that the faults of {name} are gone; its leases run out", err=True)
