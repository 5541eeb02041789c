"""Completion at TAB, in the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_kit import call, terminal

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "completion.bash"
    path.write_text(call(capsys, "completion", "bash").out)
    return path


def program(folder: Path) -> Path:
    """A folder for PATH with `gpuchaos` in it."""
    place = folder / "bin"
    place.mkdir()
    (place / "gpuchaos").write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuchaos_stream.cli "$@"\n')
    (place / "gpuchaos").chmod(0o755)
    return place


def tab(script: Path, line: str, folder: Path) -> list[str]:
    """What a bash that has the script offers at the end of `line`, in `folder`."""
    asks = f"""
        PATH={program(folder)}:$PATH
        source {script}
        COMP_LINE={line!r}
        read -ra COMP_WORDS <<< "$COMP_LINE"
        case $COMP_LINE in *' ') COMP_WORDS+=('') ;; esac
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _gpuchaos_completion gpuchaos
        printf '%s\\n' "${{COMPREPLY[@]}}"
        complete -p gpuchaos >&2
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", asks], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    assert "_gpuchaos_completion" in done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("gpuchaos ex", ["experiment", "explain"]),
        ("gpuchaos experiment s", ["show", "stop"]),
        ("gpuchaos keys make --role ", ["control", "operator"]),
        ("gpuchaos rules check -o ", ["table", "json", "yaml"]),
        ("gpuchaos rules check --out", ["--output"]),
    ],
)
def test_bash_completes_commands_options_and_choices(
    script: Path, tmp_path: Path, line: str, offers: list[str]
) -> None:
    assert sorted(tab(script, line, tmp_path)) == sorted(offers)


def test_somebody_at_a_bash_presses_tab_for_a_choice_and_for_a_file(script: Path, tmp_path: Path) -> None:
    (tmp_path / "my-plan.yaml").touch()
    path = f"{program(tmp_path)}:{os.environ['PATH']}"
    with terminal("bash", "--norc", "-i", PATH=path, PS1="> ") as screen:
        screen.press(f"cd {tmp_path}; source {script}; echo re''ady\n")
        screen.until("\rready")
        screen.press("gpuchaos keys make --role op\t")
        screen.until("--role operator ")
        screen.press("\x15gpuchaos experiment check my-\t")
        screen.until("check my-plan.yaml ")
        screen.press("\x15exit\n")
        assert screen.ended() == 0


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_that_its_shell_reads(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = call(capsys, "completion", shell)
    assert ended.status == 0
    assert "_GPUCHAOS_COMPLETE" in ended.out
    path = tmp_path / "script"
    path.write_text(ended.out)
    # Of the three only bash is on every machine.
    if shell == "bash" or shutil.which(shell):
        subprocess.run([shell, "-n", str(path)], check=True, timeout=30)
