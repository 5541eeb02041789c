"""What is in another network namespace is not gone: an undo says so, and where to go."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from journal_entries import journalled
from lab.hosts import Host, host, needs
from lab.waiting import until

from gpuchaos_agent import admit, agent, clock, steps
from gpuchaos_agent.admit import Limits, Situation
from gpuchaos_agent.inject import netns, nft
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.network_partition import NetworkPartition
from gpuchaos_agent.journal import Journal, JournalEntry
from gpuchaos_agent.nonces import Seen
from gpuchaos_stream.events.command import Command, CommandKind

pytestmark = pytest.mark.root

TARGET = "node/n1"
PARAMS = {"peers": "10.9.9.9"}


@pytest.fixture
def at() -> Iterator[Host]:
    needs("nft", "unshare")
    with host("alone") as made:
        yield made


def fault() -> NetworkPartition:
    return NetworkPartition(Env(node="n1", boot_id=clock.boot_id()))


def standing(at: Host, journal: Journal) -> JournalEntry:
    """A partition on that host, in the journal."""
    of = fault()
    with at.inside():
        payload = netns.stamped(of.name, of.plan(TARGET, PARAMS, "f1"))
        entry = journalled(of.name, TARGET, PARAMS, payload, boot_id=clock.boot_id(), now=clock.now())
        journal.write(entry)
        of.inject(entry)
    return entry


def test_an_undo_in_another_namespace_says_where_the_fault_stands_and_closes_nothing(
    at: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = standing(at, Journal(tmp_path / "journal"))
    words = ["undo", "--all", "--node", "n1", "--state-dir", str(tmp_path)]
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            agent.main(words)
        assert ended.value.code == 1
        said = capsys.readouterr().out
        assert "NOT UNDONE: it stands in another network namespace" in said
        assert f"nsenter --net=/proc/{at.pid}/ns/net" in said
        assert str(entry.payload["table"]) in at.rules()
    with at.inside(), pytest.raises(SystemExit) as ended:
        agent.main(words)
    assert ended.value.code == 0
    assert str(entry.payload["table"]) not in at.rules()


def test_what_stood_in_a_namespace_that_is_gone_is_gone(at: Host, tmp_path: Path) -> None:
    with host("short") as short:
        entry = standing(short, Journal(tmp_path / "journal"))
        assert "another network namespace" in (steps.undo(fault(), entry) or "")
    until(lambda: steps.undo(fault(), entry) is None)


def test_a_namespace_that_a_mount_alone_holds_is_found(at: Host, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    with host("short") as short:
        entry = standing(short, Journal(tmp_path / "journal"))
        subprocess.run(["mount", "--bind", f"/proc/{short.pid}/ns/net", str(held)], check=True)
    try:
        assert f"{held} gpuchaos-agent undo" in (steps.undo(fault(), entry) or "")
    finally:
        subprocess.run(["umount", str(held)], check=True)
    until(lambda: steps.undo(fault(), entry) is None)


def test_after_a_reboot_no_namespace_is_asked_for(at: Host, tmp_path: Path) -> None:
    entry = standing(at, Journal(tmp_path / "journal"))
    assert netns.elsewhere(entry) is not None
    assert netns.elsewhere(entry.model_copy(update={"boot_id": "of another boot"})) is None


def test_a_command_notes_the_namespace_of_what_it_does_to_the_network(at: Host, tmp_path: Path) -> None:
    of = fault()
    command = Command(
        id="c1", kind=CommandKind.INJECT, cluster="c1", time=0, expires=1, nonce="n" * 16, node="n1",
        experiment_id="e1", fault_id="f1", fault=of.name, entity=TARGET, params=PARAMS, lease_s=10.0,
    )  # fmt: skip
    with at.inside():
        situation = Situation("n1", Limits(), {of.name: of}, {}, Seen(tmp_path / "seen", now=0))
        reason, payload = admit.prepare(command, situation)
        assert reason is None
        assert payload[netns.FIELD] == netns.here()
    assert payload[netns.FIELD] != netns.here()


def test_only_what_is_in_the_network_is_bound_to_its_namespace() -> None:
    assert netns.FIELD in netns.stamped("storage-disconnect", {"table": nft.table_name("f1")})
    assert netns.FIELD in netns.stamped("rdma-link", {})
    for payload in ({"mode": "readonly"}, {"mode": "erring", "table": "0 1 linear 8:0 0"}):
        assert netns.stamped("storage-disconnect", payload) == payload
    assert netns.stamped("process-stop", {"pid": 1}) == {"pid": 1}
