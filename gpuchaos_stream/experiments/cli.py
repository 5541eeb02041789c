"""`gpuchaos experiment`: check, run, stop, list, show, watch."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from gpuchaos_stream.commandline import Group, exits, output_option
from gpuchaos_stream.errors import UserError, UserErrors, nearest
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.experiment import ExperimentState, Status, Verdict
from gpuchaos_stream.experiments import client, show
from gpuchaos_stream.experiments.load import load, plan_files
from gpuchaos_stream.output import Form, forget_stdout, text, write
from gpuchaos_stream.stream.options import cluster_option, hush_kafka_client, kafka_options

if TYPE_CHECKING:
    from gpuchaos_stream.events.signing import Signer
    from gpuchaos_stream.stream.bus import Bus

#: No control plane has answered a start after so many seconds: say so.
SILENT_S: Final = 15.0
#: A stop that no worker has taken after so many seconds is said to be in trouble.
STOP_TAKEN_S: Final = 10.0
#: A start that is taken in its last moment is heard of so much later.
LATE_S: Final = 5.0
_RESET: Final = "nothing starts any more until a person says gpuchaos breaker reset --reason …"
#: Nothing of these is left to be stopped.
_PAST_STOPPING: Final = frozenset({Status.RECOVERING, Status.FINISHED})

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a cluster's Kafka."""

    cluster: str
    bootstrap_servers: str | None
    kafka_file: Path | None

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """A started bus.

        Raises:
            UserError: the settings are inconsistent, or no broker answers.
        """
        # Imported here: `experiment check` needs no Kafka client.
        from gpuchaos_stream.stream.bus import Bus  # noqa: PLC0415
        from gpuchaos_stream.stream.settings import load as load_settings  # noqa: PLC0415

        hush_kafka_client()
        bus = Bus(load_settings(self.kafka_file, bootstrap_servers=self.bootstrap_servers), client_id="gpuchaos-cli")
        await bus.start()
        try:
            yield bus
        finally:
            await bus.stop()


def connection_options(command: Decorated) -> Decorated:
    """Adds --cluster, --bootstrap-servers and --kafka-config, given to the command as `connection`."""

    @functools.wraps(command)
    def wrapped(
        *args: Any, cluster: str, bootstrap_servers: str | None, kafka_config: Path | None, **kwargs: Any
    ) -> Any:
        return command(*args, connection=Connection(cluster, bootstrap_servers, kafka_config), **kwargs)

    return cluster_option(kafka_options(wrapped))  # type: ignore[return-value]


key_option = click.option(
    "--key",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=client.KEY_ENV,
    show_envvar=True,
    help="The operator's key file (default: gpuchaos/operator.json in the user's configuration folder).",
)


@click.group(cls=Group)
def experiment() -> None:
    """Check, run, stop and follow experiments."""


@experiment.command("check")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@output_option
@exits({0: "all fine", 2: "a mistake in one of them (file, line, fix)"})
def check_files(files: tuple[Path, ...], output: Form) -> None:
    """Check experiment files, or every `*.yaml` of a folder; nothing is sent."""
    bad = False
    for path in files:
        try:
            for file in plan_files(path):
                bad = not _checked(file, output) or bad
        except UserError as error:
            bad = True
            _say_mistakes(error, output)
    if bad:
        sys.exit(2)


def _checked(file: Path, output: Form) -> bool:
    try:
        plan = load(file)
    except UserError as error:
        _say_mistakes(error, output)
        return False
    summary = f"{plan.fault.name} on {', '.join(plan.targets.entities)} for {plan.duration:g} s"
    if output == "table":
        click.echo(f"{file}: ok: {plan.name}: {summary}")
    else:
        write([{"ok": True, "where": str(file), "name": plan.name, "summary": summary}], output)
    return True


def _say_mistakes(error: UserError, output: Form) -> None:
    for item in error.errors if isinstance(error, UserErrors) else (error,):
        if output == "table":
            click.echo(str(item), err=True)
        else:
            write([{"ok": False, "where": item.where, "problem": item.problem, "fix": item.fix}], output)


@experiment.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--wait/--no-wait", default=True, show_default=True, help="Follow it until it is finished.")
@click.option(
    "--id",
    "experiment_id",
    help="A new id: small letters, digits, hyphens (default: its name and eight random digits).",
)
@key_option
@connection_options
@output_option
@exits(
    {
        0: "passed (or, with --no-wait, sent)",
        1: "failed, halted, stopped or void",
        2: "bad input, an --id that is there already, or no worker took it within 60 s",
        130: "interrupted (Ctrl-C): the experiment is stopped, its faults are undone",
    }
)
def run(
    file: Path, *, wait: bool, experiment_id: str | None, key: Path | None, connection: Connection, output: Form
) -> None:
    """Run the experiment in FILE, and print each change of it."""
    plan = load(file)
    signer = client.load_signer(key)
    start = client.start_command(plan, cluster=connection.cluster, experiment_id=experiment_id)
    name = str(start.experiment_id)

    async def go() -> ExperimentState | None:
        async with connection.bus() as bus, await bus.subscribe((topics.EXPERIMENTS.name,)) as records:
            if experiment_id is not None:
                _refuse_known(await client.states(bus, connection.cluster), name)
            await client.send(bus, signer, start)
            click.echo(f"started {name}", err=True)
            if not wait:
                return None
            try:
                return await _to_the_end(bus, aiter(records), connection.cluster, name, _Changes(output))
            except asyncio.CancelledError:
                await _stop_interrupted(bus, signer, connection.cluster, name)
                raise

    last = _run(go())
    if last is not None and output == "table":
        show.page(last, sys.stdout)
    sys.exit(0 if last is None or last.verdict is Verdict.PASSED else 1)


async def _to_the_end(
    bus: Bus, records: AsyncIterator[Any], cluster: str, name: str, changes: _Changes
) -> ExperimentState | None:
    """The last state of an experiment that was started just now; each change is printed.

    Raises:
        UserError: nobody took it while its start was valid.
    """
    silent = asyncio.get_running_loop().call_later(SILENT_S, _say_silent, cluster)
    try:
        async with asyncio.timeout(client.VALID_S + LATE_S) as too_late:
            async for state in client.follow(records, cluster):
                if state.id != name:
                    continue
                silent.cancel()
                too_late.reschedule(None)
                changes.say(state)
                if state.status is Status.FINISHED:
                    if cause := await client.tripped(bus, cluster):
                        click.echo(f"the breaker is tripped ({cause}): {_RESET}", err=True)
                    return state
    except TimeoutError as error:
        problem = f"no control plane of cluster {cluster!r} took it within {client.VALID_S:.0f} s"
        fix = "start `gpuchaos worker`, whose key ring knows this key, and run it again"
        raise UserError(f"experiment {name}", f"{problem}: it will not start any more", fix) from error
    finally:
        silent.cancel()
    return None


async def _stop_interrupted(bus: Bus, signer: Signer, cluster: str, name: str) -> None:
    reason = "interrupted at the command line"
    latest = {state.id: state for state in await client.states(bus, cluster)}
    if name in latest:
        await client.stop(bus, signer, latest[name], reason)
    else:
        await client.send(bus, signer, client.stop_command(name, cluster=cluster, reason=reason))
    click.echo(f"interrupted: {name} is being stopped", err=True)


@experiment.command()
@click.argument("experiment_id")
@click.option("--reason", required=True, help="Why; it is kept with the experiment.")
@key_option
@connection_options
@exits({0: "taken, or it was over", 1: "sent, but no worker says within 10 s that it stops"})
def stop(experiment_id: str, *, reason: str, key: Path | None, connection: Connection) -> None:
    """Stop a running experiment: its faults are undone at once.

    The control plane is told, and each agent concerned as well, so that this works without a worker.
    """
    signer = client.load_signer(key)

    async def go() -> str:
        async with connection.bus() as bus, await bus.subscribe((topics.EXPERIMENTS.name,)) as records:
            state = find(await client.states(bus, connection.cluster), experiment_id)
            if state.status in _PAST_STOPPING:
                return f"was over or ending already: {state.status}"
            await client.stop(bus, signer, state, reason)
            try:
                async with asyncio.timeout(STOP_TAKEN_S):
                    async for said in client.follow(aiter(records), connection.cluster):
                        if said.id == experiment_id and said.status in {Status.HALTING, *_PAST_STOPPING}:
                            return "is stopped"
            except TimeoutError:
                return ""
            return ""

    if said := _run(go()):
        click.echo(f"{experiment_id} {said}", err=True)
        return
    click.echo(
        f"stop of {experiment_id} sent to its nodes, but no worker has taken it in {STOP_TAKEN_S:.0f} s: "
        "is one running, and is this machine's clock right?",
        err=True,
    )
    sys.exit(1)


@experiment.command("list")
@click.option("--all-clusters", is_flag=True, help="Not only those of --cluster.")
@connection_options
@output_option
@exits()
def list_all(*, all_clusters: bool, connection: Connection, output: Form) -> None:
    """List experiments, oldest first."""
    found = _run(_listed(connection, every=all_clusters))
    if output == "table":
        show.table(found, sys.stdout)
    else:
        write(found, output)


@experiment.command("show")
@click.argument("experiment_id")
@connection_options
@output_option
@exits({2: "there is no such experiment, or bad input"})
def show_one(experiment_id: str, *, connection: Connection, output: Form) -> None:
    """Show one experiment: faults, recovery times against their objectives, blast radius, halts."""
    state = find(_run(_states(connection)), experiment_id)
    if output == "table":
        show.page(state, sys.stdout)
    else:
        write([state], output)


@experiment.command()
@click.argument("experiment_id", required=False)
@connection_options
@output_option
@exits()
def watch(experiment_id: str | None, *, connection: Connection, output: Form) -> None:
    """Print each state as it comes: of one experiment until it is finished, or of all until Ctrl-C.

    json and yaml are whole states, as they stand in Kafka. `gpuchaos watch` is the view for people.
    """

    async def go() -> None:
        changes = _Changes(output, must_be_read=True)
        async with connection.bus() as bus, await bus.subscribe((topics.EXPERIMENTS.name,)) as records:
            states = await client.states(bus, connection.cluster)
            for state in states if experiment_id is None else [find(states, experiment_id)]:
                changes.say(state)
                if experiment_id and state.status is Status.FINISHED:
                    return
            async for state in client.follow(aiter(records), connection.cluster):
                if experiment_id in (None, state.id):
                    changes.say(state)
                    if experiment_id and state.status is Status.FINISHED:
                        return

    _run(go())


Result = TypeVar("Result")


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        sys.exit(130)


async def _states(connection: Connection, *, every: bool = False) -> list[ExperimentState]:
    async with connection.bus() as bus:
        return await client.states(bus, None if every else connection.cluster)


async def _listed(connection: Connection, *, every: bool) -> list[ExperimentState]:
    async with connection.bus() as bus:
        found = await client.states(bus, None if every else connection.cluster)
        if not (found or every) and (
            said := elsewhere(connection.cluster, await client.others(bus, connection.cluster))
        ):
            click.echo(said, err=True)
        return found


def elsewhere(cluster: str, others: list[str]) -> str:
    """What to say where nothing was heard of `cluster`; empty if there is no other either."""
    return f"cluster {cluster}: nothing heard; clusters here: {', '.join(others)} (--cluster)" if others else ""


def _refuse_known(states: list[ExperimentState], experiment_id: str) -> None:
    for state in states:
        if state.id == experiment_id:
            now = f"{state.status}: {state.verdict}" if state.verdict else str(state.status)
            fix = "choose another --id, or leave it out"
            raise UserError(f"experiment {experiment_id}", f"is there already ({now})", fix)


def find(states: list[ExperimentState], experiment_id: str) -> ExperimentState:
    """The experiment of that id.

    Raises:
        UserError: there is none.
    """
    for state in states:
        if state.id == experiment_id:
            return state
    fix = nearest(experiment_id, [state.id for state in states][-10:]) or "gpuchaos experiment list shows them"
    raise UserError(f"experiment {experiment_id}", "there is none of that id in this cluster", fix)


class _Changes:
    """Prints states as they come. In a table, which has no numbers that only move, a line is not said twice.

    Unless it `must_be_read`, a reader that has gone ends nothing: whoever runs an experiment wants its verdict.
    """

    def __init__(self, output: Form, *, must_be_read: bool = False) -> None:
        self._output = output
        self._must_be_read = must_be_read
        self._said: dict[str, str] = {}

    def say(self, state: ExperimentState) -> None:
        if self._output == "table":
            news = show.news(state)
            if self._said.get(state.id) == news:
                return
            self._said[state.id] = news
            shown = show.line(state) + "\n"
        else:
            shown = text(state, self._output)
        try:
            click.echo(shown, nl=False)
        except BrokenPipeError:
            if self._must_be_read:
                raise
            forget_stdout()


def _say_silent(cluster: str) -> None:
    click.echo(f"no control plane of cluster {cluster!r} has answered yet: is `gpuchaos worker` running?", err=True)
