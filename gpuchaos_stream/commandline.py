"""What the commands share with click: how a group looks for a command, `-o`, and which exit statuses there are."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from gpuchaos_stream.errors import nearest
from gpuchaos_stream.output import FORMS, HELP, NOBODY_READS

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

#: Those that mean the same everywhere.
WELL: Final = "done"
BAD_INPUT: Final = "bad input, or no broker answers: the message says what to change"
INTERRUPTED: Final = "interrupted (Ctrl-C)"
#: sysexits' EX_SOFTWARE.
INTERNAL: Final = "a fault of gpuchaos itself, with its traceback"
#: Exit status → what it means in every command that does not say otherwise.
COMMON: Final[Mapping[int, str]] = {
    0: WELL,
    2: BAD_INPUT,
    70: INTERNAL,
    130: INTERRUPTED,
    NOBODY_READS: "who read the output has gone (`| head`)",
}
#: What each command's help repeats; the rest stands in the documentation alone.
_IN_HELP: Final = (0, 2)
_WIDTH: Final = 70


class Group(click.Group):
    """A group that suggests the nearest of its commands where there is none of that name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(f"no such command {name!r}; {nearest(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def output_option(command: Decorated) -> Decorated:
    """Adds -o table|json|yaml, given to the command as `output`."""
    return click.option("-o", "--output", type=click.Choice(FORMS), default="table", show_default=True, help=HELP)(
        command
    )


def exits(meanings: Mapping[int, str] | None = None) -> Callable[[Decorated], Decorated]:
    """Says in the command's help with what it ends. `meanings` are the command's own, beside those of all (`COMMON`).

    It stands below `@click.command()`, nearest to the function.
    """

    def decorate(command: Decorated) -> Decorated:
        said = {number: COMMON[number] for number in _IN_HELP} | dict(meanings or {})
        lines = ["\b", "Exit status:"]
        for number, meaning in sorted(said.items()):
            lines += textwrap.wrap(meaning, _WIDTH, initial_indent=f"  {number:<4}", subsequent_indent=" " * 6)
        command.__doc__ = "\n\n".join([textwrap.dedent(_unindented(command.__doc__ or "")), "\n".join(lines)])
        command.exit_statuses = dict(COMMON) | dict(meanings or {})  # type: ignore[attr-defined]
        return command

    return decorate


def exit_statuses(command: click.Command) -> dict[int, str]:
    """With what a command can end, and what each means; empty where it does not say."""
    found: Mapping[int, str] = getattr(command.callback, "exit_statuses", {})
    return dict(sorted(found.items()))


def _unindented(doc: str) -> str:
    first, _, rest = doc.partition("\n")
    return f"{first}\n{textwrap.dedent(rest)}".strip()
