"""With what a command ends, and that it says so: pipes that close, Ctrl-C, full disks, words that are no command."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import click
import pytest
from cli_kit import AGENT, GPUCHAOS, call, commands
from lab.waiting import until

from gpuchaos_stream.commandline import COMMON, exit_statuses
from gpuchaos_stream.output import NOBODY_READS


@pytest.mark.parametrize(("words", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in commands()])
def test_every_command_says_with_what_it_ends(words: tuple[str, ...], command: click.Command) -> None:
    context = click.Context(command, info_name=" ".join(words))
    assert "Exit status:" in command.get_help(context)
    assert set(COMMON) <= set(exit_statuses(command))
    assert set(exit_statuses(command)) <= {0, 1, *COMMON}, "no command has a status of its own"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("experimnt",), "no such command 'experimnt'; did you mean 'experiment'?"),
        (("experiment", "lst"), "no such command 'lst'; did you mean 'list'?"),
        (("keys", "zzz"), "no such command 'zzz'; known are list, make, rotate"),
        (("faults", "chek"), "no such command 'chek'; did you mean 'check'?"),
        (("rules", "check", "--outptu", "json"), "No such option: --outptu"),
        (("rules", "check", "-o", "xml"), "'xml' is not one of"),
    ],
)
def test_a_word_that_is_none_ends_with_2_and_what_was_meant(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = call(capsys, *words)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.err


@pytest.mark.parametrize("words", [(*GPUCHAOS, "schema"), (*GPUCHAOS, "faults", "-o", "yaml"), (*AGENT, "faults")])
def test_who_reads_no_further_ends_it_without_a_word(words: tuple[str, ...]) -> None:
    assert _unread(words) == (NOBODY_READS, b"")


def test_the_commands_of_a_dry_run_may_be_read_in_part(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "300"]) as victim:
        try:
            words = (*AGENT, "inject", "process-stop", f"process/here/{victim.pid}", "--dry-run", "--node", "here")
            job = ("--state-dir", str(tmp_path), "--job", f"job=me,pid={victim.pid}")
            assert _unread((*words, *job)) == (NOBODY_READS, b"")
        finally:
            victim.kill()


def _unread(words: tuple[str, ...]) -> tuple[int, bytes]:
    """Status and standard error of a program of which nobody reads what it prints."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as out:
        done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, check=False, timeout=60)
    return done.returncode, done.stderr


def test_a_full_disk_is_told_in_words() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*GPUCHAOS, "faults"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert done.returncode == 2
    assert done.stderr == "standard output: cannot be used: No space left on device; name another, or make it usable\n"


def test_ctrl_c_ends_with_130_and_no_traceback(tmp_path: Path) -> None:
    pipe = tmp_path / "capture.jsonl"
    os.mkfifo(pipe)
    with subprocess.Popen([*GPUCHAOS, "replay", str(pipe)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        # It opens the pipe, which nobody else does: now it is at work.
        writer = until(lambda: _opened(pipe), 60)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
        os.close(writer)
    assert (running.returncode, out) == (130, b"")
    assert b"Traceback" not in err


def _opened(pipe: Path) -> int:
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # nobody reads
        return 0


def test_a_fault_of_ours_ends_with_70_and_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuchaos_stream.guard.cli.load", lambda _files: 1 / 0)
    ended = call(capsys, "rules", "check")
    assert ended.status == 70
    assert "ZeroDivisionError" in ended.err
