"""What a supervisor asks of an agent: whether to start it again, and whether it has taken up its work."""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from lab.waiting import until

from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.settings import environment

pytestmark = pytest.mark.broker

#: What the chart gives an agent that may take no fault: `most_faults` and no key ring.
LOOKS_ONLY: Final = {"GPUCHAOS_AGENT_MOST_FAULTS": "0"}

Ask = Callable[[str], tuple[int, str]]
Start = Callable[[Mapping[str, str]], Ask]


@pytest.fixture
def asked(broker: RunningBroker, tmp_path: Path) -> Iterator[Start]:
    """Starts an agent with settings and returns what asks it a path."""
    with contextlib.ExitStack() as stack:

        def started(settings: Mapping[str, str]) -> Ask:
            argv = [
                *(sys.executable, "-m", "gpuchaos_agent.agent", "--cluster", "probes", "--node", "n1"),
                *("--state-dir", str(tmp_path / "state"), "--http-port", "0", "--no-deadman"),
            ]
            log = tmp_path / "agent.log"
            child = Child("agent", argv, log_file=log, env={**environment(broker.settings), **settings}).start()
            stack.callback(child.stop)
            child.wait_for('"status is served"', 30)
            port = next(json.loads(line)["port"] for line in child.said().splitlines() if '"status is served"' in line)
            return lambda path: _get(port, path)

        yield started


def test_an_agent_that_may_take_no_fault_is_ready_without_a_key_ring(asked: Start) -> None:
    ask = asked(LOOKS_ONLY)
    until(lambda: ask("/readyz") == (200, "ok\n"), 30, "never ready: its pod would hold up every rollout")


def test_one_that_may_take_faults_and_has_no_key_ring_is_not_ready(asked: Start) -> None:
    ask = asked({})
    until(lambda: "key ring" in ask("/readyz")[1], 30)
    assert ask("/readyz")[0] == 503


def test_what_only_a_person_can_mend_is_no_reason_to_kill_the_agent(asked: Start, tmp_path: Path) -> None:
    journal = tmp_path / "state/journal"
    journal.mkdir(parents=True)
    (journal / "f1.json").write_text("{")
    ask = asked(LOOKS_ONLY)
    status, reason = ask("/healthz")
    assert (status, "undo --all" in reason) == (503, True), reason
    assert ask("/livez") == (200, "ok\n")
    assert "gpuchaos_agent_undo_failing 1.0" in ask("/metrics")[1], "so the alert of that name tells somebody"


def _get(port: int, path: str) -> tuple[int, str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
