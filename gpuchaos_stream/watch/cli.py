"""`gpuchaos watch`: the shell around the model: Kafka on one side, a terminal or a pipe on the other."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from gpuchaos_stream.commandline import exits, output_option
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.envelope import BadMessageError, from_value
from gpuchaos_stream.events.experiment import ExperimentState, Status, Verdict
from gpuchaos_stream.events.observation import Tick
from gpuchaos_stream.experiments import client
from gpuchaos_stream.experiments.cli import Connection, connection_options, elsewhere, find
from gpuchaos_stream.output import Form, console, redraws, text
from gpuchaos_stream.watch import draw
from gpuchaos_stream.watch.board import Board, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuchaos_stream.stream.bus import Bus

#: Seconds between two looks, and so between two pictures.
_LOOK_S: Final = 0.5
#: An experiment that was just started is waited for so long, seconds: `experiment run --no-wait FILE && watch ID`.
_BEGIN_S: Final = 5.0
#: `--once` waits so long for a worker's tick, seconds, to say whether one is at work.
_HEAR_S: Final = 2.0
#: The control plane's clock among observations; the summaries beside it are large, and nothing here reads them.
_TICK: Final = b'"tick"'
_KEPT: Final = (topics.EXPERIMENTS.name, topics.INCIDENTS.name)


@click.command()
@click.argument("experiment_id", required=False)
@click.option("--once", is_flag=True, help="Show what is now, and end.")
@connection_options
@output_option
@exits({0: "shown (--once), or the experiment passed", 1: "the experiment failed, was halted, stopped or void"})
def watch(experiment_id: str | None, *, once: bool, connection: Connection, output: Form) -> None:
    """Watch what runs: status, time left, blast radius against limits, recovery times against objectives, halts,
    the breaker, and incidents that no fault explains.

    A live view on a terminal; a line a change elsewhere, and an object a change with json and yaml. Ends at Ctrl-C,
    or, with EXPERIMENT_ID, when that one is finished, with the exit status of its verdict.
    """
    last = asyncio.run(_watch(connection, experiment_id, once=once, output=output))
    sys.exit(0 if last is None or last.verdict in (None, Verdict.PASSED) else 1)


class _Clock:
    """The broker's clock, by the newest record that was read."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def read(self, record: Any) -> None:
        self._ahead = record.timestamp / 1000 - time.time()

    def now(self) -> float:
        return time.time() + self._ahead


async def _watch(
    connection: Connection, experiment_id: str | None, *, once: bool, output: Form
) -> ExperimentState | None:
    clock = _Clock()
    async with connection.bus() as bus, _heard(bus) as records:
        board = Board(connection.cluster, clock.now(), only=experiment_id)
        known = await _what_was(bus, board, clock)
        if experiment_id is not None and board.state(experiment_id) is None:
            await _begun(records, board, clock, known, experiment_id, within_s=0.0 if once else _BEGIN_S)
        with _printer(board, clock, once=once, output=output) as show:
            until = time.monotonic() + _HEAR_S
            heard = False
            while not (once and (heard or time.monotonic() > until)):
                if not once:
                    show()
                if _over(board, experiment_id):
                    break
                for record in await records(_LOOK_S):
                    event = _event(record)
                    heard |= isinstance(event, Tick) and event.cluster == connection.cluster
                    if event is not None:
                        clock.read(record)
                        board.feed(event, clock.now())
            if once:
                show()
                await _say_where(bus, connection.cluster, known=heard or bool(known))
    return board.state(experiment_id) if experiment_id is not None else None


async def _begun(
    records: Callable[[float], Any],
    board: Board,
    clock: _Clock,
    known: list[ExperimentState],
    experiment_id: str,
    *,
    within_s: float,
) -> None:
    """Waits until something is heard of an experiment; says which are known where nothing is."""
    end = time.monotonic() + within_s
    while board.state(experiment_id) is None:
        if time.monotonic() > end:
            find(known, experiment_id)
        for record in await records(_LOOK_S):
            board.feed(_event(record), clock.now())


async def _say_where(bus: Bus, cluster: str, *, known: bool) -> None:
    """Of a cluster of which nothing is known: that there are others."""
    if not known and (others := await client.others(bus, cluster)):
        click.echo(elsewhere(cluster, others), err=True)


def _over(board: Board, experiment_id: str | None) -> bool:
    state = board.state(experiment_id) if experiment_id is not None else None
    return state is not None and state.status is Status.FINISHED


@asynccontextmanager
async def _heard(bus: Bus) -> AsyncIterator[Callable[[float], Any]]:
    async with await bus.subscribe((*_KEPT, topics.OBSERVATIONS.name)) as subscription:
        yield subscription.batch


async def _what_was(bus: Bus, board: Board, clock: _Clock) -> list[ExperimentState]:
    """Feeds what Kafka keeps of experiments and incidents; returns the latest states of this cluster's experiments."""
    states: dict[str, ExperimentState] = {}
    for record in await bus.snapshot(_KEPT):
        event = _event(record)
        board.feed(event, clock.now())
        if isinstance(event, ExperimentState) and event.cluster == board.cluster:
            states[event.id] = event
    board.forget_finished()
    return sorted(states.values(), key=lambda state: (state.started, state.id))


def _event(record: Any) -> Any:
    """The event in a record; None where nothing here reads it, or nobody can."""
    if not record.value or (record.topic == topics.OBSERVATIONS.name and _TICK not in record.value):
        return None
    try:
        return from_value(record.topic, record.value)
    except BadMessageError:
        return None  # the control stage's dead letters tell of it


@contextmanager
def _printer(board: Board, clock: _Clock, *, once: bool, output: Form) -> Iterator[Callable[[], None]]:
    """What shows the board as it is now: a screen, or what has changed since the last time."""
    out = sys.stdout
    if output != "table":
        yield lambda: _write("".join(text(row, output) for row in board.changes(clock.now(), told)))
        return
    cells = draw.BLOCKS if (out.encoding or "").lower().startswith("utf") else draw.ASCII
    if once:
        yield lambda: _print_screen(board, clock, cells)
        return
    if not redraws(out):
        yield lambda: _write("".join(f"{draw.line(row)}\n" for row in board.changes(clock.now(), draw.key)))
        return
    from rich.live import Live  # noqa: PLC0415  (only a terminal pays for it)

    with Live(console=console(out), auto_refresh=False, vertical_overflow="ellipsis") as live:
        yield lambda: live.update(_renderable(board, clock, cells), refresh=True)


def _renderable(board: Board, clock: _Clock, cells: tuple[str, str]) -> Any:
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    now = clock.now()
    lines = draw.screen(board.rows(now), now, cells=cells)
    return Group(*(Text(line.text, style=line.colour, no_wrap=True, overflow="ellipsis") for line in lines))


def _print_screen(board: Board, clock: _Clock, cells: tuple[str, str]) -> None:
    if sys.stdout.isatty():
        console(sys.stdout).print(_renderable(board, clock, cells))
        return
    now = clock.now()
    _write("".join(f"{line.text}\n" for line in draw.screen(board.rows(now), now, cells=cells)))


def _write(said: str) -> None:
    if said:
        sys.stdout.write(said)
        sys.stdout.flush()
