"""An agent that starts with the journal of another boot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lab.waiting import until

from gpuchaos_agent import clock
from gpuchaos_agent.journal import EntryState, Journal, JournalEntry


@pytest.mark.parametrize("rebooted", [True, False])
def test_starting_agent_says_in_the_journal_whether_the_node_was_rebooted_or_only_the_agent(
    tmp_path: Path, *, rebooted: bool
) -> None:
    Journal(tmp_path / "journal").write(
        JournalEntry(
            fault_id="f1",
            experiment_id="e1",
            command_id="c1",
            fault="process-stop",
            entity="process/n1/4711",
            payload={"pid": 4711, "start": 1},
            state=EntryState.INJECTED,
            boot_id="another" if rebooted else clock.boot_id(),
            order=0,
            created=0,
            lease_s=10,
            lease_expires=10,
            lease_deadline=10,
        )
    )
    argv = [sys.executable, "-m", "gpuchaos_agent.agent", "run", "--node", "n1", "--state-dir", str(tmp_path)]
    argv += ["--http-port", "0", "--bootstrap-servers", "127.0.0.1:1"]
    path = tmp_path / "journal/f1.json"

    def undone() -> bool:
        assert agent.poll() is None, (tmp_path / "log").read_text()
        return bool(json.loads(path.read_text())["state"] == "undone")

    with (tmp_path / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as agent:
        try:
            until(undone, 30)
        finally:
            agent.kill()
    assert json.loads(path.read_text())["reason"] == ("node rebooted" if rebooted else "agent restarted")
