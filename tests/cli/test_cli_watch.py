"""`gpuchaos watch` on a real broker: on a terminal, in a pipe, as JSON, and until an experiment is over."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_kit import GPUCHAOS, terminal
from lab.waiting import until

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import Event, Severity
from gpuchaos_stream.events.envelope import to_record
from gpuchaos_stream.events.experiment import BreakerState, ExperimentState, InjectedFault, Status, Verdict
from gpuchaos_stream.events.incident import BlastRadius, Incident, RecoveryRecord
from gpuchaos_stream.events.observation import Tick
from gpuchaos_stream.events.topics import Topic
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.house import READY, House

pytestmark = pytest.mark.broker


class Cluster:
    """Says on a broker what a worker would say of one cluster."""

    def __init__(self, broker: RunningBroker, name: str) -> None:
        self.name = name
        self.words = ("watch", "--cluster", name, "--bootstrap-servers", broker.settings.bootstrap_servers)
        self._broker = broker

    def say(self, topic: Topic, *events: Event) -> None:
        async def go() -> None:
            async with Bus(self._broker.settings) as bus:
                for event in events:
                    await bus.send(to_record(event, topic, source="/test"))

        with ThreadPoolExecutor(1) as pool:  # a loop may run in this thread
            pool.submit(asyncio.run, go()).result()

    def state(self, experiment_id: str = "one", **fields: Any) -> ExperimentState:
        now = time.time()
        fault = InjectedFault(
            fault_id="f", fault="process-stop", node="n1", entity="process/n1/1", phase="injected", injected=now
        )
        body: dict[str, Any] = {"name": "hang", "owner": "sre", "status": Status.ACTIVE, "plan": {}, "started": now}
        body |= {"faults": (fault,), "limits": {"gpus": 8.0}, "blast_radius": BlastRadius(gpus=4), "ends": now + 600}
        body["recovery"] = RecoveryRecord(ttd=1.2, objectives={"ttd": 5.0}, met={"ttd": True})
        return ExperimentState(id=experiment_id, time=now, cluster=self.name, **(body | fields))

    def over(self, verdict: Verdict, experiment_id: str = "one") -> ExperimentState:
        return self.state(experiment_id, status=Status.FINISHED, verdict=verdict, reason="because")

    def tick(self) -> Tick:
        return Tick(id=f"tick-{time.time()}", time=time.time(), cluster=self.name)


@pytest.fixture
def cluster(broker: RunningBroker, unique: str) -> Cluster:
    return Cluster(broker, unique)


def test_on_a_terminal_it_is_a_view_that_is_drawn_anew_until_ctrl_c(cluster: Cluster) -> None:
    cluster.say(topics.EXPERIMENTS, cluster.state())
    with terminal(*GPUCHAOS, *cluster.words, NO_COLOR="1") as screen:
        screen.until(r"GPUs +\[[█#]{10}[░-]{10}\] 4 / 8")
        assert "TTD 1.2 s of 5 s (met)" in screen.shown
        assert "s left" in screen.shown
        cluster.say(topics.EXPERIMENTS, cluster.state(blast_radius=BlastRadius(gpus=8)))
        cluster.say(
            topics.EXPERIMENTS,
            BreakerState(id="breaker", time=time.time(), cluster=cluster.name, tripped=True, cause="3 halts in 10 min"),
        )
        cluster.say(topics.OBSERVATIONS, cluster.tick())
        screen.until(r"\] 8 / 8")
        screen.until(r"breaker TRIPPED .*3 halts in 10 min")
        screen.until("a worker is at work")
        screen.until(r"no worker has been heard for \d+ s: what is shown is old")
        screen.press("\x03")
        assert screen.ended() == 130
    assert "Traceback" not in screen.shown
    assert "\x1b[31m" not in screen.shown, "no colour was wanted"
    assert screen.shown.count("\x1b[?25h") >= 1, "the cursor is there again"


@pytest.mark.parametrize(("verdict", "status"), [(Verdict.PASSED, 0), (Verdict.HALTED, 1)])
def test_in_a_pipe_it_prints_changes_and_ends_with_the_experiment(
    cluster: Cluster, verdict: Verdict, status: int
) -> None:
    cluster.say(topics.EXPERIMENTS, cluster.state(), cluster.state("another"))
    with _running(cluster, "one") as process:
        assert process.stdout is not None
        lines = [_line_with(process, "one active")]
        # The same again, later: nothing that a person would read twice.
        cluster.say(topics.EXPERIMENTS, cluster.state(), cluster.state("another"), cluster.over(verdict))
        rest, err = process.communicate(timeout=60)
    lines += [line for line in rest.splitlines() if line.startswith("one ")]
    assert process.returncode == status, err
    assert len(lines) == 2
    assert f"one finished:{verdict}" in lines[1]
    assert "another" not in rest
    assert "\x1b" not in rest


def test_as_json_it_is_an_object_for_each_change(cluster: Cluster) -> None:
    cluster.say(topics.EXPERIMENTS, cluster.state())
    with _running(cluster, "-o", "json") as process:
        first = json.loads(_line_with(process, '"experiment": "one"'))
        unexplained = Incident(
            id="i",
            time=time.time(),
            cluster=cluster.name,
            cause="unattributed:a",
            attributed=False,
            opened=time.time(),
            severity=Severity.CRITICAL,
            nodes=("n5",),
        )
        cluster.say(topics.INCIDENTS, unexplained)
        second = json.loads(_line_with(process, '"kind": "incident"'))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "")
    assert first["blast_radius"]["gpus"] == {"value": 4.0, "bound": 8.0, "met": True}
    assert first["times"]["ttd"] == {"value": 1.2, "bound": 5.0, "met": True}
    assert (second["incident"], second["severity"], second["nodes"]) == ("i", "critical", ["n5"])


def test_once_shows_what_is_and_ends(cluster: Cluster) -> None:
    cluster.say(topics.EXPERIMENTS, cluster.over(Verdict.FAILED, "old"), cluster.state())
    shown = _done(cluster, "--once")
    assert shown.returncode == 0, shown.stderr
    assert "no worker has been heard yet" in shown.stdout
    assert "one  process-stop of sre  active" in shown.stdout
    assert "old" not in shown.stdout
    rows = list(yaml.safe_load_all(_done(cluster, "old", "--once", "-o", "yaml").stdout))
    assert [(row["experiment"], row["verdict"]) for row in rows if row["kind"] == "experiment"] == [("old", "failed")]
    assert _done(cluster, "old", "--once").returncode == 1


def test_an_experiment_that_is_only_being_started_is_waited_for(cluster: Cluster) -> None:
    with _running(cluster, "late", "-o", "json") as process:
        # It looks, and there is nothing yet.
        cluster.say(topics.EXPERIMENTS, cluster.state("another"))
        cluster.say(topics.EXPERIMENTS, cluster.over(Verdict.PASSED, "late"))
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert '"experiment": "late"' in out


def test_an_experiment_that_is_not_there_ends_with_2_and_the_nearest(cluster: Cluster) -> None:
    cluster.say(topics.EXPERIMENTS, cluster.state("nightly-7"))
    done = _done(cluster, "nightly-8")
    assert done.returncode == 2
    assert "did you mean 'nightly-7'?" in done.stderr


def test_where_none_is_near_each_that_there_is_is_named_once(cluster: Cluster) -> None:
    cluster.say(topics.EXPERIMENTS, *(cluster.state(name) for name in ("one", "two") for _ in range(12)))
    done = _done(cluster, "zzzz")
    assert done.stderr.rstrip().endswith("known are one, two")


@pytest.mark.soak
def test_with_a_real_worker_and_a_simulated_cluster_it_follows_an_experiment_to_its_verdict(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        parts = (house.worker(), house.sim("--nodes", "8", "--cells", "2"))
        for child in parts:
            child.wait_for(READY)
        run = house.start("run", *GPUCHAOS, "experiment", "run", "examples/ecc-record.yaml", "--id", "ecc-1")
        run.wait_for("ecc-1 pending")
        words = ("watch", "ecc-1", "--bootstrap-servers", house.settings.bootstrap_servers)
        with terminal(*GPUCHAOS, *words) as screen:
            screen.until("a worker is at work")
            screen.until("ecc-1  memory-corruption .* active")
            status = screen.ended(within_s=100)
        (expected,) = until(lambda: [run.status] if run.status is not None else [], 30)
        assert status == expected
        assert "finished" in screen.shown


def _running(cluster: Cluster, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*GPUCHAOS, *cluster.words, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _line_with(process: subprocess.Popen[str], part: str) -> str:
    """The next line that has `part` in it."""
    assert process.stdout is not None
    for line in process.stdout:
        if part in line:
            return line.rstrip("\n")
    raise AssertionError(f"it ended without {part!r}: {process.stderr.read() if process.stderr else ''}")


def _done(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GPUCHAOS, *cluster.words, *words], capture_output=True, text=True, timeout=60, check=False)
