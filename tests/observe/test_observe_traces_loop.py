"""The spans of the control stage: of an experiment that is halted, and over crashes of the worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from observe_otlp import Receiver, Told, receiving, run

TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENT = "b7ad6b7169203331"
#: A kill in every place, again and again.
STORM = ["while sending", "before save", "while saving", "after save"] * 17
SCRIPT = """
import json, observe_loop
machine = observe_loop.run({crashes!r})
print(observe_loop.told(machine))
(state,) = [each for each in machine.states().values()]
mark("another worker takes over")
machine.at = state.finished + 10.0
machine.restart()
mark("another one an hour later")
machine.at += 3600.0
machine.restart()
mark("a replay")
observe_loop.replay(machine)
"""


@dataclass(frozen=True, slots=True)
class Played:
    """What was told live, by the worker that took over just after the end, by one an hour later, and by a replay."""

    live: Receiver
    again: list[Told]
    later: list[Told]
    replayed: list[Told]
    commands: dict[str, Any]


def play(crashes: list[str]) -> Iterator[Played]:
    with receiving() as receiver:
        said = run(SCRIPT.format(crashes=crashes), "loop", "observe", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
        spans, names = receiver.spans, [span.name for span in receiver.spans]
        marks = ("another worker takes over", "another one an hour later", "a replay")
        first, second, third = map(names.index, marks)
        receiver.kept = spans[:first]
        again, later, replayed = spans[first + 1 : second], spans[second + 1 : third], spans[third + 1 :]
        commands = next(line for line in said.splitlines() if line.startswith("{"))
        yield Played(receiver, again, later, replayed, json.loads(commands))


@pytest.fixture(scope="module")
def calm() -> Iterator[Played]:
    yield from play([])


@pytest.fixture(scope="module")
def stormy() -> Iterator[Played]:
    yield from play(STORM)


def test_a_halted_experiment_is_one_trace_in_which_the_guard_says_why_and_how_soon(calm: Played) -> None:
    commands, receiver = calm.commands, calm.live
    spans = receiver.by_name()
    (whole,), (fault,), (settle,) = spans["experiment spread"], spans["fault process-stop"], spans["settle"]
    (halt,) = (span for name in spans if name.startswith("halt ") for span in spans[name])
    decide = receiver.named(f"decide {halt.name.removeprefix('halt ')}")
    ours = [span for span in receiver.spans if not span.name.startswith("anomaly ")]
    assert {span.trace for span in ours} == {TRACE}
    assert whole.parent == CLIENT
    assert {span.parent for span in ours if span is not whole and span != whole} == {whole.id}
    assert {span.scope for span in ours} == {
        "gpuchaos.experiments",
        "gpuchaos.detect",
        "gpuchaos.correlate",
        "gpuchaos.guard",
        "gpuchaos.act",
        "gpuchaos.recovery",
    }

    assert whole.attributes["gpuchaos.verdict"] == "halted"
    assert whole.error == whole.attributes["gpuchaos.reason"]
    assert decide.attributes["gpuchaos.action"] == "halt"
    assert decide.attributes["gpuchaos.blast_radius.gpus"] > decide.attributes["gpuchaos.limit.gpus"]
    assert decide.attributes["gpuchaos.latency_s"] == pytest.approx(0.25)
    assert halt.links == ((decide.trace, decide.id),)
    assert list(halt.events)[:3] == ["requested", "acknowledged", "undone"]
    times = [decide.events["fires"], *(halt.events[each] for each in ("requested", "acknowledged", "undone"))]
    assert times == sorted(times)
    assert whole.begin <= settle.end <= fault.begin <= decide.begin <= halt.begin <= fault.end <= whole.end

    # What goes to the agent bears the span that it belongs to, before that span was told.
    assert commands["inject"] == [f"00-{TRACE}-{fault.id}-01"]
    assert commands["halt"] == [f"00-{TRACE}-{halt.id}-01"]


def test_an_anomaly_is_a_trace_of_its_own_to_which_the_attribution_links(calm: Played) -> None:
    receiver = calm.live
    said = run('print(tracing.alone("anomaly", "c", "spread"))').strip().split("-")
    attribution = receiver.named("attribution")
    assert attribution.links == ((said[1], said[2]),)
    assert receiver.named("detection").links == attribution.links
    lost = receiver.named("anomaly gpu_lost")
    assert lost.parent == ""
    assert lost.trace != TRACE
    assert (lost.trace, lost.id) not in attribution.links, "the experiment did not do it"


def test_a_worker_that_is_killed_anywhere_tells_the_same_spans_again_and_loses_none(stormy: Played) -> None:
    spans = stormy.live.by_name()
    ids = {name: {span.id for span in each} for name, each in spans.items()}
    assert {name: len(each) for name, each in ids.items()} == dict.fromkeys(ids, 1)
    assert {"experiment spread", "fault process-stop", "settle", "recovery", "attribution", "detection"} <= set(ids)
    assert [name for name in ids if name.startswith("halt ")] == ["halt hard-limit-gpus"]
    assert "decide hard-limit-gpus" in ids


def test_a_worker_that_takes_over_tells_of_what_ended_just_before(calm: Played) -> None:
    """Its predecessor may have been killed before that was exported. An hour later it was."""
    assert [span.name for span in calm.again].count("experiment spread") == 1
    assert {span.id for span in calm.again} < {span.id for span in calm.live.spans}
    assert calm.later == []


def test_a_replay_exports_nothing_though_an_endpoint_is_set(calm: Played) -> None:
    assert calm.replayed == []
