"""`gpuchaos`: the command line. Each command lives beside what it commands; this file only finds it."""

from __future__ import annotations

import errno
import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, NoReturn

import click
from click.shell_completion import CompletionItem

from gpuchaos_stream import __version__
from gpuchaos_stream.commandline import Group
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.observe import logs
from gpuchaos_stream.output import NOBODY_READS, forget_stdout


class Entry(NamedTuple):
    """Where a command is, `module:attribute`, and what the list of commands says of it: one line."""

    where: str
    about: str


#: Commands by what a person is about to do; each is imported only when it is called.
SECTIONS: Final[dict[str, dict[str, Entry]]] = {
    "Trying": {
        "demo": Entry("sim.demo:demo", "Run three experiments here and say how they ended."),
        "dev": Entry("stream.dev:dev", "Start a broker, a worker, a simulated cluster and the page."),
        "sim": Entry("stream.simulate:sim", "Run a simulated cluster on the topics."),
    },
    "Experiments": {
        "experiment": Entry("experiments.cli:experiment", "Check, run, stop and follow experiments."),
        "faults": Entry("experiments.faults_cli:faults", "List every fault, and which a node can have."),
        "rules": Entry("guard.cli:rules", "List, check and test the rules that halt experiments."),
        "schedule": Entry("experiments.schedule:schedule", "Run experiments in turn, again and again."),
        "breaker": Entry("act.cli:breaker", "Trip the breaker, reset it, or show it."),
    },
    "Seeing": {
        "watch": Entry("watch.cli:watch", "Watch what runs."),
        "serve": Entry("stream.serve:serve", "Serve the live page and its API."),
        "explain": Entry("report.cli:explain", "Say why an experiment's verdict is what it is."),
        "report": Entry("report.cli:report", "Report on an experiment, or on a period."),
        "record": Entry("stream.record:record", "Record all topics into a file."),
        "replay": Entry("loop.replay:replay", "Judge a recording again."),
    },
    "Running": {
        "keys": Entry("events.cli:keys", "Make, rotate and list the keys that sign commands."),
        "topics": Entry("stream.cli:topics", "Make the topics that are missing."),
        "worker": Entry("stream.cli:worker", "Detect, attribute, time and halt."),
        "notify": Entry("stream.notify:notify", "Tell Alertmanager, PagerDuty, Slack, Opsgenie, webhooks."),
        "schema": Entry("events.cli:schema", "Print the contract as JSON Schema."),
        "completion": Entry("completion:completion", "Print what completes commands at TAB."),
    },
}
#: Every command.
COMMANDS: Final[dict[str, Entry]] = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

#: Characters of the longest name: all sections have one column.
_NAME: Final = max(map(len, COMMANDS))
#: A full disk, a quota, a file that may not grow.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class _NobodyReadsError(Exception):
    """A broken pipe, under a name that click does not turn into status 1."""


@contextmanager
def _noticing_who_reads() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _NobodyReadsError from error


class Lazy(Group):
    """A group whose commands are imported when they are called, so that `gpuchaos rules` needs no Faust."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].where.partition(":")
        command: click.Command = getattr(importlib.import_module(f"gpuchaos_stream.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The commands by section; click would import each for its help, Faust among them."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(_NAME), entry.about) for name, entry in commands.items()])

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _noticing_who_reads():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _noticing_who_reads():
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names alone: click would import every command for its help, and who presses TAB would wait for Faust."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Chaos experiments on GPU clusters: attributed, timed, and halted by themselves.

    Each command says with what it ends; docs/cli.md has them all.
    """
    logs.configure(level="WARNING")


def main(argv: list[str] | None = None) -> NoReturn:
    """Entry point of `gpuchaos`: every way to end has its exit status, and none but a bug of ours a traceback."""
    status = _status(argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = NOBODY_READS
        forget_stdout()
    except OSError as error:
        status = 2
        forget_stdout()
        click.echo(f"standard output: cannot be written: {error.strerror}; write somewhere else", err=True)
    sys.exit(status)


def _status(argv: list[str] | None) -> Any:
    try:
        status = cli.main(args=argv, prog_name="gpuchaos", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except UserError as error:
        click.echo(str(error), err=True)
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (_NobodyReadsError, BrokenPipeError):
        forget_stdout()
        return NOBODY_READS
    except SystemExit as end:
        return end.code
    except OSError as error:
        if error.filename is None and error.errno not in _NO_ROOM:
            traceback.print_exc()
            return 70
        where = "standard output" if error.filename is None else str(error.filename)
        click.echo(f"{where}: cannot be used: {error.strerror}; name another, or make it usable", err=True)
        forget_stdout()
        return 2
    except Exception:  # noqa: BLE001  (a bug of ours must not end with the status of a failed experiment)
        traceback.print_exc()
        return 70
    # click hands over the status of --help and --version, or what the command returned.
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    main()
