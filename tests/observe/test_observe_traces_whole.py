"""One experiment with a real client, worker and agent, a real process and a real collector: one trace of it all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from lab.waiting import until
from observe_otlp import Receiver

from gpuchaos_stream.events.command import Role
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.house import READY, House

pytestmark = [pytest.mark.broker, pytest.mark.timeout(150)]

GPUCHAOS = (sys.executable, "-m", "gpuchaos_stream.cli")
#: The agent measures its clock's offset from the broker's only so well, seconds.
SKEW_S = 0.5
JOB = """
import sys, time
with open(sys.argv[1], "a", buffering=1) as log:
    for step in range(10**9):
        time.sleep(0.1)
        log.write(f"step={step} step_time=0.1\\n")
"""
PLAN = """
api_version: gpuchaos/v1
kind: Experiment
name: traced
description: A process that hangs is noticed, and works again when it goes on.
owner: tests
fault: {name: process-stop, params: {job: toy}, certifies: [hang-detection]}
targets: {entities: [%s]}
duration: 5s
lease: 5s
undo: {method: automatic}
limits: {gpus: 0, nodes: 0, jobs: 0, gpu_seconds: 0}
settle: 2s
steady_state:
  hold: 2s
  checks:
    - name: pace
      telemetry: {of: job/toy, metric: steps_rate, op: ">=", value: 0.7, relative_to: baseline}
objectives: {ttd: 30s, ttm: 60s, ttr: 60s}
"""


@pytest.fixture
def house(
    tmp_path: Path, broker: RunningBroker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[House]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    with House(tmp_path / "house", broker=None, settings=broker.settings) as entered:
        yield entered


def test_an_experiment_is_one_trace_of_client_worker_and_agent_with_links_to_its_anomalies(
    house: House, receiver: Receiver, unique: str
) -> None:
    worker = house.worker("worker", "--app-id", unique)
    log = house.folder / "toy.log"
    script = house.folder / "toy.py"
    script.write_text(JOB)
    job = house.start("toy", sys.executable, str(script), str(log))
    jobs = [{"job": "toy", "pid": job.pid, "log": str(log)}]
    config = house.folder / "agent.yaml"
    config.write_text(yaml.safe_dump({"cluster": unique, "cell": "c1", "http_port": None, "jobs": jobs}))
    house.agent("real", "--config", str(config)).wait_for(READY)
    worker.wait_for(READY)
    plan = house.folder / "plan.yaml"
    plan.write_text(PLAN % f"process/real/{job.pid}")
    said = subprocess.run(
        [*GPUCHAOS, "experiment", "run", str(plan), "--cluster", unique, "--key", str(house.key(Role.OPERATOR))],
        env=_environment(house),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    until(lambda: {"experiment traced", "undo"} <= set(receiver.by_name()))

    spans = receiver.by_name()
    (start,), (whole,), (fault,) = spans["start experiment"], spans["experiment traced"], spans["fault process-stop"]
    assert {start.service, whole.service, spans["undo"][0].service} == {"gpuchaos", "gpuchaos-worker", "gpuchaos-agent"}
    assert (start.parent, whole.parent, fault.parent) == ("", start.id, whole.id)
    ours = [span for span in receiver.spans if span.trace == start.trace]
    # The broker is shared with other tests: their clusters are there as well.
    others = [span for span in receiver.spans if span not in ours and span.attributes.get("gpuchaos.cluster") == unique]
    assert others
    assert {span.name for span in others if not span.name.startswith("anomaly ")} == set(), "all else is in one trace"
    assert all(span.attributes["experiment_id"] == start.attributes["experiment_id"] for span in ours)
    assert {span.error for span in ours} == {None}

    agents = [span for span in ours if span.service == "gpuchaos-agent"]
    in_order = ["receive inject", "check", "journal", "injection", "evidence", "receive undo", "undo"]
    assert [span.name for span in sorted(agents, key=lambda span: span.begin)] == in_order
    assert {span.parent for span in agents} == {fault.id}
    assert {(span.attributes["fault_id"], span.attributes["node"]) for span in agents} == {
        (fault.attributes["fault_id"], "real")
    }
    (undo,) = spans["undo"]
    assert undo.begin <= undo.events["taken back; verifying"] <= undo.end

    (detection,), (attribution,), (recovery,) = spans["detection"], spans["attribution"], spans["recovery"]
    anomalies = {(span.trace, span.id) for span in receiver.spans if span.name.startswith("anomaly ")}
    assert attribution.links
    assert set(attribution.links) <= anomalies, "a link leads to a span that is there"
    assert detection.links == attribution.links[:1]
    assert start.begin <= whole.begin <= fault.begin <= detection.end <= fault.end <= recovery.events["recovered"]
    assert recovery.events["mitigated"] <= recovery.end <= whole.end
    by_id = {span.id: span for span in ours}
    told_later = {"check", "journal", "injection", "receive inject"}  # they lead to the fault, which then begins
    for span in ours:
        if span.parent and span.name not in told_later:
            assert by_id[span.parent].begin - SKEW_S <= span.begin, f"{span.name} begins before its parent"


def _environment(house: House) -> dict[str, str]:
    return {**os.environ, **house.env}
