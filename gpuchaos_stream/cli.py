"""`gpuchaos`: the command line. Each command lives beside what it commands; this file only finds it."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import click

from gpuchaos_stream import __version__
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.observe import logs

#: Command → module:attribute, imported only when it is asked for.
COMMANDS: Final[dict[str, str]] = {
    "dev": "gpuchaos_stream.stream.dev:dev",
    "demo": "gpuchaos_stream.sim.demo:demo",
    "explain": "gpuchaos_stream.report.cli:explain",
    "experiment": "gpuchaos_stream.experiments.cli:experiment",
    "faults": "gpuchaos_stream.experiments.faults_cli:faults",
    "keys": "gpuchaos_stream.events.cli:keys",
    "breaker": "gpuchaos_stream.act.cli:breaker",
    "notify": "gpuchaos_stream.stream.notify:notify",
    "record": "gpuchaos_stream.stream.record:record",
    "replay": "gpuchaos_stream.loop.replay:replay",
    "report": "gpuchaos_stream.report.cli:report",
    "rules": "gpuchaos_stream.guard.cli:rules",
    "schema": "gpuchaos_stream.events.cli:schema",
    "sim": "gpuchaos_stream.stream.simulate:sim",
    "topics": "gpuchaos_stream.stream.cli:topics",
    "worker": "gpuchaos_stream.stream.cli:worker",
}


class Lazy(click.Group):
    """A group whose commands are imported when they are called, so that `gpuchaos rules` needs no Faust."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Chaos experiments on GPU clusters: attributed, timed, and halted by themselves."""
    logs.configure(level="WARNING")


def main(argv: list[str] | None = None) -> Any:
    """Entry point of `gpuchaos`. A `UserError` is printed and ends with status 2; Ctrl-C with 130."""
    try:
        return cli.main(args=argv, prog_name="gpuchaos", standalone_mode=True)
    except UserError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
