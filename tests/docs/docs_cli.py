"""The command line as the documentation has it: every command, option and exit status, read from click and argparse."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import click

from gpuchaos_agent.agent import _parser
from gpuchaos_stream.cli import cli
from gpuchaos_stream.commandline import COMMON, exit_statuses

_MEANINGS: Final = ("exit status", "meaning")


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with the words that call it."""
    yield from _below(cli, ("gpuchaos",))


def _below(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group, info_name=words[-1])
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield (*words, name), command
        if isinstance(command, click.Group):
            yield from _below(command, (*words, name))


def reference() -> str:
    """A section for each command: what it does, its arguments and options, with what it ends."""
    return "\n".join(_section(words, command) for words, command in commands())


def statuses() -> str:
    """What means the same in every command."""
    return _rows(_MEANINGS, [(str(number), meaning) for number, meaning in sorted(COMMON.items())])


def agent_options() -> str:
    """The agent's options."""
    rows = []
    for action in _parser()._actions:
        flags = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{action.dest}`"
        takes = " or ".join(f"`{each}`" for each in action.choices) if action.choices else _takes(action)
        rows.append((flags, takes, (action.help or "").replace("%%", "%")))
    return _rows(("option", "takes", "meaning"), rows)


def _takes(action: argparse.Action) -> str:
    if action.nargs == 0 or not action.option_strings:
        return ""
    return f"`{action.metavar or action.dest.upper()}`"


def _section(words: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(words))
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"### {' '.join(words)}", f"```text\n{usage}\n```", _help(command)]
    rows = [row for each in command.get_params(context) if (row := _row(each, context)) is not None]
    if rows:
        parts.append(_rows(("option", "takes", "meaning"), rows))
    own = {number: said for number, said in exit_statuses(command).items() if COMMON.get(number) != said}
    if own:
        parts.append(_rows(_MEANINGS, [(str(number), said) for number, said in own.items()]))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _help(command: click.Command) -> str:
    """The help without the exit statuses, which have a table, each paragraph on a line of the page's width."""
    text = (command.help or "").split("\n\n\b\nExit status:")[0]
    return "\n\n".join(textwrap.fill(" ".join(part.split()), 118) for part in text.split("\n\n"))


def _row(parameter: click.Parameter, context: click.Context) -> tuple[str, str, str] | None:
    if not isinstance(parameter, click.Option) or parameter.name == "help":
        return None
    record = parameter.get_help_record(context)
    assert record is not None, parameter.name
    flags = ", ".join(f"`{flag}`" for flag in (*parameter.opts, *parameter.secondary_opts))
    kind = parameter.type
    takes = " or ".join(f"`{each}`" for each in kind.choices) if isinstance(kind, click.Choice) else ""
    if not takes and not parameter.is_flag:
        takes = f"`{parameter.make_metavar(context)}`"
    return flags, takes, _one_line(record[1])


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _rows(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)
