"""`gpuchaos report` and `gpuchaos explain`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from gpuchaos_stream import output as printed
from gpuchaos_stream.commandline import exits, output_option
from gpuchaos_stream.errors import UserError, nearest
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.envelope import BadMessageError, from_value
from gpuchaos_stream.events.experiment import ExperimentState, Verdict
from gpuchaos_stream.experiments.cli import Connection, connection_options
from gpuchaos_stream.experiments.plan import parse_duration
from gpuchaos_stream.loop.recording import Recorded, read
from gpuchaos_stream.loop.replay import judge
from gpuchaos_stream.observe import logs
from gpuchaos_stream.report import explain_text
from gpuchaos_stream.report.curves import curves
from gpuchaos_stream.report.explain import explain as explained
from gpuchaos_stream.report.facts import facts
from gpuchaos_stream.report.html import html
from gpuchaos_stream.report.junit import junit
from gpuchaos_stream.report.markdown import markdown
from gpuchaos_stream.report.model import Report
from gpuchaos_stream.report.page import Page
from gpuchaos_stream.report.period import Period, period, period_sheet
from gpuchaos_stream.report.sheet import sheet
from gpuchaos_stream.report.story import Story

#: What of a recording a report is made of.
_TOPICS: Final = frozenset(topic.name for topic in (topics.EXPERIMENTS, topics.INCIDENTS, topics.NODES, topics.FAULTS))
#: What the curves of a report are made of.
_OBSERVED: Final = frozenset({topics.OBSERVATIONS.name})
#: A file's ending → its format.
_ENDINGS: Final = {".html": "html", ".htm": "html", ".md": "md", ".txt": "md", ".json": "json", ".xml": "junit"}
_PAGES: Final[dict[str, Callable[[Page], str]]] = {"html": html, "md": markdown}
_DAY_S: Final = 86400.0

_recording = click.option(
    "--recording",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A recording to read instead of Kafka (`gpuchaos record`).",
)


@click.command()
@click.argument("experiment_id", required=False)
@click.option("--since", metavar="7d", help="A period instead of one experiment: 30m, 12h, 7d until now.")
@_recording
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "md", "json", "junit"]),
    help="How it is written  [default: by the ending of --out, else md]",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="A file; standard output where absent.")
@click.option("--fail-on", metavar="failed,halted", default="", help="Verdicts that end it with status 1.")
@connection_options
@exits({1: "with --fail-on: a reported verdict is among those named"})
def report(
    experiment_id: str | None,
    since: str | None,
    recording: Path | None,
    form: str | None,
    out: Path | None,
    fail_on: str,
    connection: Connection,
) -> None:
    """Report on one experiment, on a period, or on all of a recording.

    Of one experiment: what was injected with evidence, what is certified and what not, recovery times against
    objectives, the blast radius against its limits, what broke that was not a target, and what to change.
    """
    bad = _verdicts(fail_on)
    if experiment_id is not None and since is not None:
        raise UserError("report", "an experiment and a period are two reports", "leave out --since, or the experiment")
    if experiment_id is None and since is None and recording is None:
        raise UserError("report", "what is to be reported?", "name an experiment, a period (--since 7d) or --recording")
    span = _span(since) if since is not None else None
    form = form or _form(out)
    story, now = _story(recording, connection)
    if experiment_id is None and span is None and len(story.states()) == 1:
        experiment_id = story.states()[0].id
    if experiment_id is not None:
        states = [_find(story, experiment_id, recording, connection)]
        seen = curves(states[0], _events(recording, _OBSERVED)) if recording is not None else ()
        text = _one(facts(states[0], story, seen), form)
    else:
        begin = now - span if span is not None else min((s.started for s in story.states()), default=now)
        cluster = None if recording is not None else connection.cluster
        states = [state for state in story.states() if begin <= state.started <= now]
        text = _many(period(states, begin, now, cluster), (facts(state, story) for state in states), form)
    _write(text, out)
    if out is not None:
        click.echo(f"{out}: {', '.join(f'{s.id} {s.verdict or s.status}' for s in states[:5]) or 'no run'}", err=True)
    sys.exit(1 if any(state.verdict in bad for state in states) else 0)


@click.command()
@click.argument("experiment_id")
@_recording
@output_option
@connection_options
@exits({2: "there is no such experiment, or bad input"})
def explain(experiment_id: str, recording: Path | None, output: printed.Form, connection: Connection) -> None:
    """Say why an experiment's verdict is what it is, with the evidence.

    First what decided it, then what was looked at and did not, then the way from status to status, each step with the
    event that shows it.
    """
    story, _ = _story(recording, connection)
    found = explained(_find(story, experiment_id, recording, connection), story)
    click.echo(explain_text.text(found) if output == "table" else printed.text(found, output), nl=False)


def _one(found: Report, form: str) -> str:
    if form == "json":
        return found.model_dump_json(indent=2) + "\n"
    return junit([found]) if form == "junit" else _PAGES[form](sheet(found))


def _many(found: Period, reports: Iterable[Report], form: str) -> str:
    if form == "json":
        return found.model_dump_json(indent=2) + "\n"
    return junit(reports) if form == "junit" else _PAGES[form](period_sheet(found))


def _story(recording: Path | None, connection: Connection) -> tuple[Story, float]:
    """What was said, and the present: of a recording, the time of its last record."""
    if recording is None:
        live = Story.of(asyncio.run(_read(connection)), connection.cluster)
        # This machine's clock may be behind the broker's, by which events are timed.
        return live, max([time.time(), *(state.time for state in live.states())])
    story, last = _recorded(recording)
    if not story.states():
        raise UserError(str(recording), "no experiment is in it", "record with --from-start to have the whole story")
    return story, last


def _recorded(path: Path) -> tuple[Story, float]:
    """A recording's story. Where it holds no state of an experiment, it is judged again, as `gpuchaos replay` does."""
    story, last = Story(), 0.0
    _, records = read(path)
    for record in records:
        last = max(last, record.timestamp / 1000)
        if (event := _event(record, _TOPICS)) is not None:
            story.feed(event)
    if not story.states():
        logs.configure(level="ERROR")
        again = judge(*read(path))
        for event in (*again.experiments.values(), *again.incidents.values()):
            story.feed(event)
    return story, last


def _events(path: Path, wanted: frozenset[str]) -> Iterator[Event]:
    """The readable events of a recording's topics `wanted`."""
    _, records = read(path)
    for record in records:
        if (event := _event(record, wanted)) is not None:
            yield event


def _event(record: Recorded, wanted: frozenset[str]) -> Event | None:
    if record.topic not in wanted or record.value is None:
        return None
    try:
        event: Event = from_value(record.topic, record.value)
    except BadMessageError:
        return None  # the control stage's dead letters tell of it
    return event


async def _read(connection: Connection) -> list[Event]:
    # Imported here: a recording needs no Kafka client.
    from gpuchaos_stream.stream.evidence import evidence  # noqa: PLC0415

    async with connection.bus() as bus:
        return await evidence(bus, connection.cluster)


def _find(story: Story, experiment_id: str, recording: Path | None, connection: Connection) -> ExperimentState:
    state = story.state(experiment_id)
    if state is not None:
        return state
    where = f"recording {recording}" if recording is not None else f"cluster {connection.cluster!r}"
    fix = nearest(experiment_id, [each.id for each in story.states()][-10:])
    raise UserError(
        f"experiment {experiment_id}", f"{where} has none of that id", fix or "see gpuchaos experiment list"
    )


def _span(text: str) -> float:
    """Seconds of `30m`, `12h`, `7d`.

    Raises:
        UserError: it is none of these.
    """
    try:
        days = text.strip().removesuffix("d")
        seconds = float(days) * _DAY_S if text.strip().endswith("d") else parse_duration(text)
    except ValueError as error:
        raise UserError("--since", f"{text!r} is no duration", "write it like 30m, 12h or 7d") from error
    if not 0 < seconds < 1e9:
        raise UserError("--since", f"{text!r} is no duration", "write it like 30m, 12h or 7d")
    return seconds


def _verdicts(text: str) -> frozenset[Verdict]:
    """The verdicts of `failed,halted`.

    Raises:
        UserError: one of them is none.
    """
    found = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in set(Verdict):
            raise UserError(
                "--fail-on", f"{name!r} is no verdict", nearest(name, [verdict.value for verdict in Verdict])
            )
        found.add(Verdict(name))
    return frozenset(found)


def _form(out: Path | None) -> str:
    """The format that the ending of `out` asks for; Markdown without a file, or without an ending.

    Raises:
        UserError: the ending is that of no format.
    """
    if out is None or not out.suffix:
        return "md"
    if (form := _ENDINGS.get(out.suffix.lower())) is None:
        raise UserError(str(out), f"no format has the ending {out.suffix}", f"use {', '.join(_ENDINGS)}, or --format")
    return form


def _write(text: str, out: Path | None) -> None:
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(str(out), f"cannot be written ({error.strerror})", "check the folder and its rights") from error
