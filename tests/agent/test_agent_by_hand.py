"""`gpuchaos-agent inject` and `undo` as a person uses them: what is refused, what is said, what ends a fault."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_kit import FakeNode, FakeStrategy
from lab.waiting import until

from gpuchaos_agent import agent, clock, trial
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.network_partition import NetworkPartition
from gpuchaos_agent.inject.process_stop import read_process
from gpuchaos_agent.inject.storage_disconnect import StorageDisconnect
from gpuchaos_agent.journal import EntryState, Journal, JournalEntry
from gpuchaos_agent.runtime import Agent
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.stream.settings import KafkaSettings

NODE = "n1"


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    file = tmp_path / "agent.yaml"
    file.write_text("any_process: true\n")
    return ["--node", NODE, "--config", str(file), "--state-dir", str(tmp_path / "state")]


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def called(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        agent.main(list(words))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def standing(pid: int, **update: object) -> JournalEntry:
    made = JournalEntry(
        fault_id="f1", experiment_id="e1", command_id="c1", fault="process-stop", entity=f"process/{NODE}/{pid}",
        boot_id=clock.boot_id(), order=0, created=0, lease_s=10, lease_expires=10, lease_deadline=10,
        state=EntryState.INJECTED, payload={"pid": pid, "start": 1},
    )  # fmt: skip
    return made.model_copy(update=update)


def stopped(pid: int) -> bool:
    process = read_process(Path("/proc"), pid)
    return process is not None and process.state == "T"


def by_hand(config: list[str], pid: int, seconds: float = 60.0) -> subprocess.Popen[str]:
    words = ["inject", "process-stop", f"process/{NODE}/{pid}", "--seconds", str(seconds), *config]
    # What ran the tests may ignore a signal, as nohup does, and its children would as well.
    heard = ["env", "--default-signal=HUP,INT,TERM"]
    return subprocess.Popen(
        [*heard, sys.executable, "-m", "gpuchaos_agent.agent", *words], stdout=subprocess.PIPE, text=True
    )


def switches(config: list[str]) -> list[int]:
    """The dead man's switches of a state directory."""
    wanted = f"{config[-1]}/journal".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"gpuchaos_agent.deadman" in words and wanted in words:
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_ends_an_inject_by_hand_ends_its_fault_first(
    config: list[str], victim: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    with by_hand(config, victim.pid) as injecting:
        until(lambda: stopped(victim.pid))
        os.kill(injecting.pid, number)
        os.kill(injecting.pid, number)
        said, _ = injecting.communicate(timeout=30)
    assert injecting.returncode == 128 + number
    assert "undone, and verified gone" in said
    assert not stopped(victim.pid)
    assert Journal(Path(config[-1]) / "journal").read() == ([], [])
    assert switches(config) == []


def test_an_inject_by_hand_that_is_killed_is_undone_by_its_dead_mans_switch(
    config: list[str], victim: subprocess.Popen[bytes]
) -> None:
    with by_hand(config, victim.pid) as injecting:
        until(lambda: stopped(victim.pid))
        injecting.kill()
    until(lambda: not stopped(victim.pid))
    until(lambda: switches(config) == [])


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "-1", "0", "301", "1000000"])
def test_a_time_that_a_fault_cannot_stand_is_refused_before_anything_is_touched(
    config: list[str], victim: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    assert called("inject", "process-stop", f"process/{NODE}/{victim.pid}", f"--seconds={seconds}", *config) == 2
    assert capsys.readouterr().err.startswith("--seconds: ")
    assert not stopped(victim.pid)
    assert not Path(config[-1]).exists()


def test_an_entry_of_a_fault_that_this_agent_does_not_know_keeps_others_away_and_is_told(
    config: list[str], victim: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    Journal(Path(config[-1]) / "journal").write(standing(victim.pid, fault="moon-phase"))
    assert called("inject", "process-stop", f"process/{NODE}/{victim.pid}", *config) == 2
    assert "fault f1 (moon-phase) stands" in capsys.readouterr().err
    assert called("undo", "--all", *config) == 1
    assert "NOT UNDONE: this agent does not know fault 'moon-phase'" in capsys.readouterr().out
    assert called("undo", "--forget", "f1", *config) == 0
    assert called("undo", "--forget", "f1", *config) == 2
    assert called("undo", "--all", *config) == 0


@pytest.mark.root
def test_a_full_state_disk_is_told_with_its_folder_and_nothing_is_touched(
    tmp_path: Path, config: list[str], victim: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(state)], check=True)
    try:
        subprocess.run(["dd", "if=/dev/zero", f"of={state / 'ballast'}"], check=False, capture_output=True)
        assert called("inject", "process-stop", f"process/{NODE}/{victim.pid}", "--no-deadman", *config) == 2
        assert "No space left on device" in capsys.readouterr().err
        assert not stopped(victim.pid)
    finally:
        subprocess.run(["umount", str(state)], check=True)


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 2}'])
def test_a_journal_file_that_cannot_be_read_is_told_until_a_person_has_settled_it(
    config: list[str], victim: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    journal = Journal(Path(config[-1]) / "journal")
    (journal.folder / "f1.json").write_bytes(content)
    for _ in range(2):
        assert called("undo", "--all", *config) == 1
        said = capsys.readouterr().out
        assert "f1  UNREADABLE" in said
        assert "undo --forget f1" in said
        assert "nothing to undo" not in said
    assert called("inject", "process-stop", f"process/{NODE}/{victim.pid}", *config) == 2
    assert "cannot read what it holds of f1" in capsys.readouterr().err
    assert called("undo", "--forget", "f1", *config) == 0
    assert called("undo", "--all", *config) == 0
    assert "nothing to undo" in capsys.readouterr().out


def test_an_agent_with_a_journal_file_that_cannot_be_read_is_not_healthy_until_it_is_settled(tmp_path: Path) -> None:
    settings = agent.config.load(None, node=NODE, state_dir=tmp_path, deadman=False, collectors=("place",))
    running = Agent(settings, KafkaSettings())
    try:
        assert running._healthy() is None
        journal = Journal(settings.journal_dir)
        (journal.folder / "f1.json").write_bytes(b"{")
        journal.read()
        assert "fault f1 may stand" in (running._healthy() or "")
        assert journal.forget("f1")
        assert running._healthy() is None
    finally:
        running._snapshot.close()
        running._eyes.shutdown()
        running._spool.close()
        running._lock.close()


def test_a_journal_file_that_can_be_read_after_all_is_taken_back(
    config: list[str], victim: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(Path(config[-1]) / "journal")
    path = journal.folder / "f1.json"
    path.write_text(json.dumps({**json.loads(standing(victim.pid).model_dump_json()), "version": 2}))
    assert called("undo", "--all", *config) == 1
    (kept,) = (journal.folder / "aside").iterdir()
    kept.write_text(standing(victim.pid).model_dump_json())  # as an agent of that version would read it
    capsys.readouterr()
    assert called("undo", "--all", *config) == 0
    assert "f1  process-stop" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pairs", "meant"),
    [
        (["peers=10.9.9.9", "ports=5432"], {"peers": "10.9.9.9", "ports": "5432"}),
        (["peers=10", "loss_percent=50"], None),
        (["peers=true", "loss_percent=50"], {"peers": "true", "loss_percent": 50}),
        (["peers=all", "force=true"], {"peers": "all", "force": True}),
    ],
)
def test_a_value_is_what_its_parameter_says_it_is(pairs: list[str], meant: dict[str, object] | None) -> None:
    fault = NetworkPartition(Env(node=NODE, boot_id="b"))
    if meant is None:
        with pytest.raises(UserError, match="--param peers"):
            trial.typed(fault, trial.parameters(pairs))
    else:
        assert trial.typed(fault, trial.parameters(pairs)) == meant


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["peers=all", "loss_percent=half"], "--param loss_percent: .*valid integer.*network-partition takes peers"),
        (["peer=all"], "--param peer: there is no such parameter; did you mean 'peers'?"),
        (["peers"], "--param: 'peers' is no name=value"),
    ],
)
def test_a_parameter_that_is_wrong_is_named_with_the_fix(pairs: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        trial.typed(NetworkPartition(Env(node=NODE, boot_id="b")), trial.parameters(pairs))
    with pytest.raises(UserError, match=r"--param path: .*pattern"):
        trial.typed(StorageDisconnect(Env(node=NODE, boot_id="b")), {"mode": "full", "path": "123"})


def test_a_broker_that_nobody_configured_is_on_no_node(
    config: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where no .env is
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    settings = agent.config.load(None, node=NODE, state_dir=Path(config[-1]))
    assert agent.brokers(settings, None) == ()
    assert agent.brokers(settings, "10.0.0.1:9092, 10.0.0.2:9092") == ("10.0.0.1:9092", "10.0.0.2:9092")
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
    assert agent.brokers(settings, None) == ("127.0.0.1:9092",)


def test_what_is_not_known_of_a_standing_fault_is_no_leave_for_another(tmp_path: Path) -> None:
    known = {"fake": FakeStrategy(FakeNode())}
    journal = Journal(tmp_path)
    journal.write(standing(1, fault="gone"))
    with pytest.raises(UserError, match="cannot tell what it holds"):
        trial.entry_for(
            known, journal, fault="fake", target="process/n1/2", params={}, seconds=1.0,
            boot_id="b", now=clock.now(),
        )  # fmt: skip
