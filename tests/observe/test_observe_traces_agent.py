"""The agent's spans: each step of a fault, who asked for it, and what went wrong; also when the agent was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.waiting import until
from observe_otlp import Receiver, Told, receiving, run

from gpuchaos_agent import clock, environment
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.process_stop import ProcessStop, read_process
from gpuchaos_agent.journal import EntryState, Journal, JournalEntry

TRACE = "0af7651916cd43dd8448eb211c80319c"
FAULT = "b7ad6b7169203331"
HALT = "00f067aa0ba902b7"
THEIRS = "4bf92f3577b34da6a3ce929d0e0e4736"
#: Scenes on a node whose faults are a dictionary's (`agent_kit.Bench`); each is an experiment of its own.
SCENES = f"""
import tempfile
from pathlib import Path
from agent_kit import *

fault, halt, theirs = "00-{TRACE}-{FAULT}-01", "00-{TRACE}-{HALT}-01", "00-{THEIRS}-{HALT}-01"


class Scene(Bench):
    def __init__(self, experiment):
        super().__init__(Path(tempfile.mkdtemp()))
        self.experiment = experiment

    def begin(self, fault_id="f1", trace=fault, **fields):
        self.give(signed(inject(self.now.wall, fault_id, experiment_id=self.experiment, **fields)), trace)

    def tell(self, kind, trace, **fields):
        self.give(signed(command(kind, self.now.wall, experiment_id=self.experiment, **fields)), trace)


halted = Scene("halted")
halted.begin()
halted.tell(CommandKind.RENEW, fault, fault_id="f1", lease_s=10.0)
halted.tell(CommandKind.HALT, halt, cause="hard-limit-gpus")

expired = Scene("expired")
expired.begin()
expired.later(11.0)
expired.tick()

stopped = Scene("stopped")
stopped.begin()
stopped.tell(CommandKind.HALT, theirs, cause="operator")

bad = Scene("bad")
bad.node.refuse = "there is no such process"
bad.begin("f1")
bad.node.refuse = None
bad.begin("f2", lease_s=100_000.0)
bad.node.inert = True
bad.begin("f3")
bad.node.inert = False
bad.begin("f4")
bad.node.stuck = True
bad.tell(CommandKind.UNDO, fault, fault_id="f4")
bad.node.stuck = False
bad.later(1.0)
bad.tick()

hanging = Scene("hanging")
apart = Apart(hanging)
hanging.begin()
apart.finish("check f1")
hanging.later(61.0)
hanging.tick()

untraced = Scene("untraced")
untraced.begin(trace=None)
untraced.tell(CommandKind.UNDO, None)
assert untraced.node.undos == ["f1"]
"""


@pytest.fixture(scope="module")
def told() -> dict[str, list[Told]]:
    """The spans of each scene."""
    found: dict[str, list[Told]] = {}
    with receiving() as receiver:
        run(SCENES, "agent", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
        for span in receiver.spans:
            found.setdefault(span.attributes["experiment_id"], []).append(span)
    return found


def one(spans: list[Told], name: str) -> Told:
    (found,) = [span for span in spans if span.name == name]
    return found


def test_each_step_of_a_fault_is_a_span_below_the_command_that_asked_and_renewals_are_none(
    told: dict[str, list[Told]],
) -> None:
    spans = told["halted"]
    assert [(span.name, span.trace, span.parent) for span in spans] == [
        *((step, TRACE, FAULT) for step in ("receive inject", "check", "journal", "injection", "evidence")),
        ("receive halt", TRACE, HALT),
        ("undo", TRACE, HALT),
    ]
    undo, check = one(spans, "undo"), one(spans, "check")
    assert undo.links == ((TRACE, FAULT),), "the halt undoes the fault"
    assert undo.attributes["gpuchaos.caused_by"] == "halt: hard-limit-gpus"
    assert check.attributes["gpuchaos.entity"] == "process/n1/f1"
    assert check.attributes["gpuchaos.lease_s"] == 10.0
    assert {(span.attributes["fault_id"], span.attributes["node"]) for span in (undo, check)} == {("f1", "n1")}
    assert {span.error for span in spans} == {None}


def test_a_lease_that_runs_out_is_named_as_what_ended_the_fault(told: dict[str, list[Told]]) -> None:
    undo = one(told["expired"], "undo")
    assert (undo.trace, undo.parent, undo.attributes["gpuchaos.caused_by"]) == (TRACE, FAULT, "lease expired")


def test_an_undo_that_a_person_asks_for_stays_in_the_trace_of_the_experiment_and_links_to_theirs(
    told: dict[str, list[Told]],
) -> None:
    undo = one(told["stopped"], "undo")
    assert (undo.trace, undo.parent, undo.links) == (TRACE, FAULT, ((THEIRS, HALT),))


def test_what_is_refused_and_what_fails_is_an_error_with_its_reason(told: dict[str, list[Told]]) -> None:
    errors = {(span.attributes["fault_id"], span.name): span.error or "" for span in told["bad"] if span.error}
    assert set(errors) == {("f1", "check"), ("f2", "receive inject"), ("f3", "evidence"), ("f4", "undo")}
    assert errors["f1", "check"] == "there is no such process"
    assert "lease" in errors["f2", "receive inject"]
    assert errors["f3", "evidence"] == "nothing moved"
    assert errors["f4", "undo"] == "InjectError: stuck"
    undone = [span.attributes["fault_id"] for span in told["bad"] if span.name == "undo" and not span.error]
    assert undone == ["f3", "f4"]


def test_a_step_that_hangs_is_told_while_it_hangs(told: dict[str, list[Told]]) -> None:
    hangs = one(told["hanging"], "injection hangs")
    assert hangs.error == "its injection has not returned for 60 s"
    assert hangs.end - hangs.begin == pytest.approx(61.0)


def test_a_command_without_a_trace_makes_no_span(told: dict[str, list[Told]]) -> None:
    assert "untraced" not in told


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[tuple[int, Env]]:
    """A real process that an agent stopped before it was killed, and the node, whose journal says so."""
    env = Env(node="n1", boot_id=clock.boot_id(), state_dir=tmp_path / "state", any_process=True)
    with subprocess.Popen(["sleep", "300"]) as process:
        strategy, at, target = ProcessStop(env), clock.now(), f"process/n1/{process.pid}"
        entry = JournalEntry(
            fault_id="f1",
            experiment_id="e1",
            command_id="c1",
            fault="process-stop",
            entity=target,
            payload=dict(strategy.plan(target, {}, "f1")),
            state=EntryState.INJECTED,
            boot_id=env.boot_id,
            order=0,
            created=at.wall,
            lease_s=60.0,
            lease_expires=at.wall + 60.0,
            lease_deadline=at.boot + 60.0,
            injected_at=at.wall,
            traceparent=f"00-{TRACE}-{FAULT}-01",
        )
        env.state_dir.mkdir()
        Journal(env.state_dir / "journal").write(entry)
        strategy.inject(entry)
        until(lambda: state_of(process.pid) == "T")
        yield process.pid, env
        process.kill()


def state_of(pid: int) -> str:
    found = read_process(Path("/proc"), pid)
    return found.state if found is not None else ""


def exporting(receiver: Receiver) -> dict[str, str]:
    return {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_METRICS_EXPORTER": "none"}


def test_the_undo_of_a_killed_agents_fault_at_the_next_start_is_in_the_trace_of_the_experiment(
    receiver: Receiver, stopped: tuple[int, Env]
) -> None:
    pid, env = stopped
    argv = [sys.executable, "-m", "gpuchaos_agent.agent", "--node", "n1", "--state-dir", str(env.state_dir)]
    settings = ["--http-port", "0", "--bootstrap-servers", "127.0.0.1:9"]
    with subprocess.Popen([*argv, *settings], env=exporting(receiver), stderr=subprocess.PIPE) as agent:
        try:
            until(lambda: "undo" in receiver.by_name(), 30.0)
        finally:
            agent.terminate()
            said = agent.communicate()[1]
    assert state_of(pid) == "S", said
    (undo,) = receiver.by_name()["undo"]
    assert (undo.service, undo.trace, undo.parent) == ("gpuchaos-agent", TRACE, FAULT)
    assert undo.attributes["gpuchaos.caused_by"] == "agent restarted"
    assert (undo.attributes["experiment_id"], undo.attributes["fault_id"], undo.attributes["node"]) == (
        "e1",
        "f1",
        "n1",
    )
    assert undo.error is None


def test_the_undo_by_the_dead_mans_switch_is_in_the_trace_as_well(receiver: Receiver, stopped: tuple[int, Env]) -> None:
    pid, env = stopped
    argv = [
        sys.executable,
        "-m",
        "gpuchaos_agent.deadman",
        str(env.state_dir / "journal"),
        environment.packed(env),
        "0.25",
    ]
    done = subprocess.run(argv, env=exporting(receiver), stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert (done.returncode, state_of(pid)) == (0, "S")
    (undo,) = receiver.by_name()["undo"]
    assert (undo.trace, undo.parent, undo.attributes["gpuchaos.caused_by"]) == (TRACE, FAULT, "agent ended")
    assert undo.attributes["node"] == "n1"
