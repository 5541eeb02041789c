"""Every command line in the documentation exists, with the options that it is given; the safe ones are run."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from typing import Final

import click
import pytest
from docs_blocks import CommandLine, blocks, command_lines
from docs_tables import ROOT

from gpuchaos_agent.agent import _parser
from gpuchaos_stream.cli import cli

LINES: Final = sorted(set(command_lines()), key=lambda line: (line.where, line.words))

#: Programs that are not ours, of which only the name is checked.
OTHERS: Final = frozenset({"cp", "docker", "export", "helm", "kubectl", ".", "ruff"})
#: Commands that only look, and may be run anywhere.
SAFE: Final = (
    ("gpuchaos", "--version"),
    ("gpuchaos", "experiment", "check"),
    ("gpuchaos", "notify", "--check"),
    ("gpuchaos", "rules"),
    ("gpuchaos", "schema"),
    ("gpuchaos-agent", "--once"),
    ("gpuchaos-agent", "faults"),
    ("gpuchaos-agent", "--version"),
)
#: Paths that a reader is told to make, or has.
THEIRS: Final = re.compile(r"^(/|keys|my-|capture|recording|agent\.yaml|kafka\.yaml|data|rules/mine)")


def plain(line: CommandLine) -> tuple[str, ...]:
    """Its words, the program without its folder and without what only chooses a user."""
    words = line.words[1:] if line.words[0] == "sudo" else line.words
    return (words[0].rsplit("/", 1)[-1] if words[0].startswith(".venv/") else words[0], *words[1:])


def ids(line: CommandLine) -> str:
    return f"{line.where} {line}"


def of(program: str) -> list[CommandLine]:
    return [line for line in LINES if plain(line)[0] == program]


def test_the_documentation_has_commands_of_every_kind() -> None:
    assert {"gpuchaos", "gpuchaos-agent", "make"} <= {plain(line)[0] for line in LINES}


def test_shell_blocks_are_marked_sh() -> None:
    wrong = [block.where for block in blocks() if block.language in ("bash", "shell", "console", "")]
    assert wrong == [], "mark it `sh` to have it checked, or `text`"


def test_every_program_is_known() -> None:
    ours = {"gpuchaos", "gpuchaos-agent", "make", "pytest", "python", ".ci/run", ".ci/setup"}
    assert [ids(line) for line in LINES if plain(line)[0] not in ours | OTHERS] == []


def parse(words: tuple[str, ...]) -> None:
    """Parses as the program would, to the last option; runs nothing."""
    command: click.Command = cli
    rest = list(words[1:])
    parent: click.Context | None = None
    while isinstance(command, click.Group):
        context = command.make_context(command.name, rest, parent=parent, allow_interspersed_args=False)
        # make_context consumed the group's own options; what is left names the next command.
        left = [*context._protected_args, *context.args]
        if not left and command.invoke_without_command:
            return
        name, command, rest = command.resolve_command(context, left)  # type: ignore[assignment]
        assert command is not None, name
        parent = context
    command.make_context(command.name, rest, parent=parent)


@pytest.mark.parametrize("line", of("gpuchaos"), ids=ids)
def test_a_command_and_its_options_exist(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with contextlib.suppress(click.exceptions.Exit):  # --help and --version end there
        parse(plain(line))


@pytest.mark.parametrize("line", of("gpuchaos-agent"), ids=ids)
def test_an_agent_command_and_its_options_exist(line: CommandLine) -> None:
    try:
        _parser().parse_args(list(plain(line)[1:]))
    except SystemExit as end:
        assert end.code == 0, "--help and --version end so"  # noqa: PT017  (argparse ends by exception)


@pytest.mark.parametrize("line", of("make"), ids=ids)
def test_a_make_target_exists(line: CommandLine) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert plain(line)[1] in targets


@pytest.mark.parametrize("line", LINES, ids=ids)
def test_a_file_of_the_project_that_a_command_names_is_there(line: CommandLine) -> None:
    for word in plain(line)[1:]:
        looks_like_path = re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?|[\w-]+\.(yaml|yml|py|json|md)", word)
        if looks_like_path and not THEIRS.match(word):
            assert (ROOT / word).exists(), f"{word} is not in the project"


def is_safe(line: CommandLine) -> bool:
    """Whether it only looks, and at nothing that the reader has yet to make."""
    words = plain(line)
    looks = any(words[: len(safe)] == safe for safe in SAFE) and "--write" not in words
    return looks and not any(THEIRS.match(word) for word in words[1:])


@pytest.mark.parametrize("line", {plain(line): line for line in LINES if is_safe(line)}.values(), ids=ids)
def test_a_command_that_only_looks_does_what_the_page_says(line: CommandLine) -> None:
    program, *words = plain(line)
    module = {"gpuchaos": "gpuchaos_stream.cli", "gpuchaos-agent": "gpuchaos_agent.agent"}[program]
    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
