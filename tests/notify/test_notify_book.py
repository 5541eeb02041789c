"""Each state is told once, and each alert that was opened is resolved once, whatever comes in which order."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import click
from hypothesis import given, settings
from hypothesis import strategies as st
from notify_cases import T0, breaker, confirmed, experiment, fault, halt, halted, hear, incident, opened

from gpuchaos_stream.cli import cli
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.experiment import HaltState, Status, Verdict
from gpuchaos_stream.notify.message import LINE, TITLE, Kind, Message, Part
from gpuchaos_stream.notify.queue import Queue

HOOK = "  - {name: it, type: webhook, url: 'http://127.0.0.1:1/', allow_private: true}"


def said(queue: Queue, now: float = T0 + 10_000) -> list[Message]:
    """Everything in the queue, in the order of delivery, taken out of it."""
    found: list[Message] = []
    while (taken := queue.take("it", 1, now)) is not None:
        found += taken.batch.messages
        queue.delivered(taken)
    return found


def test_a_halt_is_opened_told_when_it_escalates_and_resolved_when_confirmed(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, halted(), halted(), halted(HaltState.ESCALATED, waiting_for=("n003",)))
        hear(notifier, queue, confirmed(), confirmed())
        told = [(m.name, m.kind, m.severity) for m in said(queue) if m.name == "ExperimentHalted"]
    assert told == [
        ("ExperimentHalted", Kind.OPENED, Severity.ERROR),
        ("ExperimentHalted", Kind.UPDATED, Severity.CRITICAL),
        ("ExperimentHalted", Kind.RESOLVED, Severity.CRITICAL),
    ]


def test_a_message_says_its_parts_in_the_order_that_on_call_needs(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, halted())
        message = next(m for m in said(queue) if m.name == "ExperimentHalted")
    assert [each.part for each in message.sections] == list(Part)
    text = {each.part: each.text for each in message.sections}
    assert "process-stop on process/n003/77" in text[Part.INJECTED]
    assert "2 nodes of 1 allowed" in text[Part.BROKE]
    assert "xid_79 on gpu/n003/2 and 2 more" in text[Part.BROKE]
    assert "ecc_uncorrected on gpu/n099/0" in text[Part.UNEXPLAINED]
    assert "2 nodes hurt, 1 allowed" in text[Part.HALTED]
    assert "NOT undone: process-stop" in text[Part.UNDO]
    assert "waiting for n003" in text[Part.UNDO]
    assert "asked again until they answer" in text[Part.DO]


def test_an_undo_that_telemetry_has_not_confirmed_is_never_called_confirmed(tmp_path: Path) -> None:
    undone = experiment(Status.RECOVERING, faults=(fault("undone"),), halts=(halt(HaltState.UNDONE, undone=T0 + 5),))
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, undone)
        message = next(m for m in said(queue) if m.name == "ExperimentHalted")
    assert next(s.text for s in message.sections if s.part is Part.UNDO) == "undone, NOT yet confirmed by telemetry"


def test_a_fault_that_is_there_on_purpose_is_not_called_an_undo_that_failed(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, experiment())
        (message,) = said(queue)
    undo = next(s.text for s in message.sections if s.part is Part.UNDO)
    assert undo.startswith("still there, as planned: process-stop")


def test_a_halt_that_was_never_undone_outlives_its_experiment(tmp_path: Path) -> None:
    lost = experiment(Status.FINISHED, verdict=Verdict.HALTED, finished=T0, halts=(halt(HaltState.ESCALATED),))
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, halted(), lost)
        kinds = [m.kind for m in said(queue) if m.name == "ExperimentHalted"]
    assert kinds == [Kind.OPENED, Kind.UPDATED]


def test_a_rehearsed_halt_alerts_nobody(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, experiment(halts=(halt(dry_run=True),)))
        assert {m.name for m in said(queue)} == {"ExperimentStarted"}


def test_a_resolve_has_the_labels_and_start_that_the_alert_had(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, experiment(), incident(attributed=True))
        hear(notifier, queue, confirmed(), incident(attributed=True, closed=T0 + 30))
        first, last = (m for m in said(queue) if m.name == "ExperimentHarm")
    assert first.labels["experiment"] == "stopped-rank"
    assert (last.key, last.labels, last.starts) == (first.key, first.labels, first.starts)
    assert (last.kind, last.ends) == (Kind.RESOLVED, T0 + 30)


def test_a_command_that_a_message_names_exists(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, *(EVENTS[name] for name in ("started", "tripped", "stuck")))
        told = " ; ".join(s.text for m in said(queue) for s in m.sections if s.part is Part.DO)
    found = [shlex.split(each) for each in re.findall(r"\b(gpuchaos(?:-agent)? [a-z][^;]*)", told)]
    assert {tuple(words[:3]) for words in found} == {
        ("gpuchaos", "experiment", "stop"),
        ("gpuchaos", "breaker", "reset"),
        ("gpuchaos-agent", "undo", "--all"),
    }
    for program, group, name, *rest in found:
        if program == "gpuchaos":
            parent = cli.get_command(click.Context(cli), group)
            assert isinstance(parent, click.Group)
            command = parent.get_command(click.Context(parent), name)
            assert command is not None
            command.make_context(name, rest)  # raises for a missing or unknown option


def test_an_old_end_of_an_experiment_is_no_news(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, confirmed(), now=T0 + 3600)
        assert said(queue) == []


def test_hostile_texts_stay_on_their_line_and_within_bounds(tmp_path: Path) -> None:
    evil = "a\nb\x1b[31m\u202e" + "x" * 5000
    state = experiment(
        name=evil, faults=tuple(fault(fault_id=f"f-{i}", reason=evil) for i in range(50)), halts=(halt(reason=evil),)
    )
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, state)
        for message in said(queue):
            assert len(message.title) <= TITLE
            assert message.title.isprintable()
            assert len(message.model_dump_json()) < 20_000
            for section in message.sections:
                assert all(len(each) <= LINE and each.isprintable() for each in section.lines)
                assert section.part is not Part.INJECTED or section.lines[-1] == "+43 more"


EVENTS: dict[str, Any] = {
    "started": experiment(),
    "halted": halted(),
    "escalated": halted(HaltState.ESCALATED),
    "undone": experiment(Status.RECOVERING, halts=(halt(HaltState.UNDONE, undone=T0),)),
    "confirmed": confirmed(),
    "stuck": experiment(Status.UNDOING, faults=(fault("undo_failed", reason="EBUSY"),)),
    "tripped": breaker(tripped=True),
    "reset": breaker(tripped=False),
    "harm": incident(1, attributed=True, severity=Severity.WARNING),
    "worse": incident(1, attributed=True, severity=Severity.CRITICAL),
    "harm over": incident(1, attributed=True, closed=T0 + 9),
    "failure": incident(2),
    "failure over": incident(2, closed=T0 + 9),
}
ENDS = ("confirmed", "reset", "harm over", "failure over")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(sorted(EVENTS)), st.just("restart")), max_size=25))
def test_any_sequence_of_states_ends_with_one_resolve_for_each_alert_that_was_opened(course: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: list[list[str]] = [[]]
        for step in [*course, *ENDS]:
            if step == "restart":
                parts.append([])
            else:
                parts[-1].append(step)
        messages: list[Message] = []
        for part in parts:
            with opened(folder, HOOK) as (_, queue, notifier):
                for step in part:
                    hear(notifier, queue, EVENTS[step])
                    hear(notifier, queue, EVENTS[step])
                    messages += said(queue)
                left = queue.open_alerts()
        assert left == []
    counts: Counter[str] = Counter()
    for message in messages:
        if message.kind is Kind.OPENED:
            counts[message.key] += 1
            assert counts[message.key] == 1, "opened while it was open"
        elif message.kind is Kind.RESOLVED:
            counts[message.key] -= 1
            assert counts[message.key] == 0, "resolved while it was not open"
        elif message.kind is Kind.UPDATED:
            assert counts[message.key] == 1, "updated while it was not open"
    assert not any(counts.values())
    assert len({message.id for message in messages}) == len(messages)
    notices = [message.key for message in messages if message.kind is Kind.NOTICE]
    assert len(set(notices)) == len(notices)
