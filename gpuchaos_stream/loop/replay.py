"""`gpuchaos replay`: a recording judged again, by the same code as live, as fast as it goes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

import click

from gpuchaos_stream.commandline import exits, output_option
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import Role
from gpuchaos_stream.events.envelope import Record, from_value
from gpuchaos_stream.events.experiment import ExperimentState
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.events.signing import Signer, Verifier
from gpuchaos_stream.guard.rules import RuleSet
from gpuchaos_stream.guard.rules import load as load_rules
from gpuchaos_stream.loop.cluster import ClusterLoop
from gpuchaos_stream.loop.control import Control
from gpuchaos_stream.loop.detection import Detection
from gpuchaos_stream.loop.recording import Header, Recorded, read
from gpuchaos_stream.observe import logs, tracing
from gpuchaos_stream.output import Form, write

#: Records this close together, in milliseconds, are one batch, as they would be in one fetch.
BATCH_MS: Final = 100

#: Said when what was seen live does not come out again.
HINT: Final = "the recording begins in the middle of the story; record with --from-start to have it all"

_CONTROL: Final = frozenset(topic.name for topic in topics.CONTROL_INPUTS)


@dataclass
class Replayed:
    """What a replay concludes: the last state of each experiment and incident, and how much was read."""

    experiments: dict[str, ExperimentState] = field(default_factory=dict)
    incidents: dict[str, Incident] = field(default_factory=dict)
    live: dict[str, ExperimentState] = field(default_factory=dict)
    records: int = 0
    first: float | None = None
    last: float = 0.0


def judge(
    header: Header, records: Iterable[Recorded], *, rules: RuleSet | None = None, detect: bool = False
) -> Replayed:
    """Runs the control stage over a recording, and with `detect` the detect stage too.

    Without `detect` the recorded anomalies and cell summaries are taken as they were, so that verdicts are the
    live ones to the letter; with it they are made anew from the telemetry, to try another detector. Nothing of it is
    traced: it was, when it happened.
    """
    with tracing.silent():
        return _judge(header, records, rules, detect=detect)


def _judge(header: Header, records: Iterable[Recorded], rules: RuleSet | None, *, detect: bool) -> Replayed:
    result = Replayed()
    ruleset = rules if rules is not None else _rules(header)
    control = Control(
        table={},
        make_loop=lambda cluster: ClusterLoop(cluster, ruleset),
        verifier=Verifier(header.keyring),
        signer=Signer.generate(Role.CONTROL),
        source="/replay",
    )
    detection = Detection(source="/replay") if detect else None
    ordered = sorted(records, key=lambda r: (r.timestamp, r.topic, r.partition, r.offset))
    for _, group in groupby(ordered, key=lambda r: r.timestamp // BATCH_MS):
        batch = list(group)
        result.records += len(batch)
        result.first = batch[0].timestamp / 1000 if result.first is None else result.first
        result.last = batch[-1].timestamp / 1000
        inputs = [raw for raw in batch if raw.topic in _CONTROL and not (detect and _remade(raw))]
        if detection is not None:
            inputs += _detect(detection, batch)
        for out in control.take(inputs):
            _note(result, out)
        _note_live(result, batch)
    return result


def _rules(header: Header) -> RuleSet:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in header.rules.items():
            (Path(folder) / Path(name).name).write_text(text)
        return load_rules([Path(folder)])


def _remade(raw: Recorded) -> bool:
    """Whether the detect stage makes this anew: cell summaries, and anomalies that are no hard fact."""
    value = raw.value or b""
    if raw.topic == topics.ANOMALIES.name:
        return b'"fault_event_id":null' in value
    return raw.topic == topics.OBSERVATIONS.name and b'"cell_summary"' in value


def _detect(detection: Detection, batch: list[Recorded]) -> Iterator[Recorded]:
    made = detection.take(raw for raw in batch if raw.topic == topics.TELEMETRY.name)
    made += detection.tick(batch[-1].timestamp / 1000)
    for record in made:
        yield Recorded(record.topic.name, 0, 0, batch[-1].timestamp, None, record.value)


def _note(result: Replayed, record: Record) -> None:
    if record.topic is topics.EXPERIMENTS:
        state = from_value(record.topic.name, record.value)
        if isinstance(state, ExperimentState):
            result.experiments[state.id] = state
    elif record.topic is topics.INCIDENTS:
        incident = from_value(record.topic.name, record.value)
        result.incidents[incident.id] = incident


def _note_live(result: Replayed, batch: Iterable[Recorded]) -> None:
    for raw in batch:
        if raw.topic == topics.EXPERIMENTS.name and raw.value:
            state = from_value(raw.topic, raw.value)
            if isinstance(state, ExperimentState):
                result.live[state.id] = state


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--rules", type=click.Path(path_type=Path), multiple=True, help="other rules than the recorded ones")
@click.option("--detect", is_flag=True, help="make anomalies anew from the telemetry, too")
@output_option
@exits({0: "every verdict is the recorded live one", 1: "a verdict differs from it"})
def replay(file: Path, rules: tuple[Path, ...], detect: bool, output: Form) -> None:
    """Judge the recording FILE again."""
    logs.configure(level="ERROR")
    header, records = read(file)
    result = judge(header, records, rules=load_rules(rules) if rules else None, detect=detect)
    differ = False
    for state in sorted(result.experiments.values(), key=lambda s: (s.started, s.id)):
        live = result.live.get(state.id)
        same = live is not None and (live.verdict, live.status) == (state.verdict, state.status)
        differ |= not same
        verdict = state.verdict.value if state.verdict else state.status.value
        if output != "table":
            write([{"experiment": state.id, "verdict": verdict, "as_live": same, **_times(state)}], output)
        else:
            was = "as live" if same else f"live: {live.verdict or live.status}" if live else "not seen live"
            times = "  ".join(f"{name} {'-' if value is None else value}" for name, value in _times(state).items())
            click.echo(f"{state.id:<40} {verdict:<10} {times}  ({was})")
    if output == "table":
        span = result.last - (result.first or result.last)
        click.echo(f"{result.records} records of {span:.0f} s, {len(result.incidents)} incidents")
    if _begins_late(result, judged_as_live=not rules and not detect):
        click.echo(HINT, err=True)
    raise SystemExit(1 if differ else 0)


def _begins_late(result: Replayed, *, judged_as_live: bool) -> bool:
    """Whether an experiment seen live is not replayed, or ends otherwise under the live rules and detector."""
    for key, live in result.live.items():
        again = result.experiments.get(key)
        if again is None or (judged_as_live and (again.verdict, again.status) != (live.verdict, live.status)):
            return True
    return False


def _times(state: ExperimentState) -> dict[str, float | int | None]:
    record = state.recovery
    times = {"ttd": record.ttd, "ttm": record.ttm, "ttr": record.ttr}
    rounded: dict[str, float | int | None] = {k: None if v is None else round(v, 3) for k, v in times.items()}
    return {**rounded, "attributed": state.attributed, "unattributed": state.unattributed, "halts": len(state.halts)}
