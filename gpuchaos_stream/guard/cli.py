"""`gpuchaos rules`: check and test rules before they guard anything, in the manner of promtool."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from gpuchaos_stream.commandline import Group, exits, output_option
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.guard import ruletest
from gpuchaos_stream.guard.rules import load, rule_files
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.output import Form, table, text, write

_PATHS = click.argument("paths", nargs=-1, type=click.Path(path_type=Path))


@click.group(cls=Group)
def rules() -> None:
    """Rules: which ones are in force, whether they are right, and whether they fire when they should.

    PATHS are files or folders; without any, the rules that come with gpuchaos.
    """


@rules.command()
@_PATHS
@output_option
@exits({0: "all good", 2: "a mistake in one of them (file, line, fix)"})
def check(paths: tuple[Path, ...], output: Form) -> None:
    """Reads rules and names every mistake."""
    with _Exit(output):
        files = rule_files(paths or [shipped_rules()])
        loaded = load(files).rules
        if output != "table":
            for rule in loaded:
                body = {"where": rule.where, "group": rule.group} | rule.rule.model_dump(mode="json", by_alias=True)
                write([body], output)
            return
        for file in files:
            count = sum(rule.where.startswith(f"{file}:") for rule in loaded)
            click.echo(f"{file}: {count} rule{'s' * (count != 1)}, all good")
        waits = {rule.where: f"after {rule.rule.for_:g} s" if rule.rule.for_ else "at once" for rule in loaded}
        rows = [(rule.rule.name, rule.rule.scope, rule.rule.action, waits[rule.where]) for rule in loaded]
        table(("rule", "scope", "action", "when it holds"), rows)


@rules.command()
@_PATHS
@output_option
@exits({0: "all hold", 1: "one does not", 2: "a file cannot be used"})
def test(paths: tuple[Path, ...], output: Form) -> None:
    """Runs rule tests."""
    with _Exit(output):
        failed = 0
        for file in ruletest.files_of_tests(paths or [shipped_rules()]):
            outcomes = ruletest.run_file(file)
            failed += sum(bool(outcome.problem) for outcome in outcomes)
            for line in _lines(file, outcomes, output):
                click.echo(line, nl=False)
    if failed:
        sys.exit(1)


def _lines(file: Path, outcomes: list[ruletest.Outcome], output: Form) -> Iterable[str]:
    if output != "table":
        for outcome in outcomes:
            yield text(
                {
                    "where": outcome.where,
                    "test": outcome.test,
                    "rule": outcome.rule,
                    "eval_time_s": outcome.eval_time,
                    "ok": not outcome.problem,
                    "problem": outcome.problem,
                },
                output,
            )
        return
    bad = [outcome for outcome in outcomes if outcome.problem]
    yield f"{file}: {len(outcomes) - len(bad)} of {len(outcomes)} checks hold\n"
    for outcome in bad:
        yield f"  {outcome.where}: {outcome.test}: {outcome.rule} at {outcome.eval_time:g} s: {outcome.problem}\n"


class _Exit:
    """Turns bad input into exit status 2, also where the group is called without `main`."""

    def __init__(self, output: Form) -> None:
        self._output = output

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError):
            for one in getattr(error, "errors", (error,)):
                if self._output == "table":
                    click.echo(str(one), err=True)
                else:
                    write([{"where": one.where, "problem": one.problem, "fix": one.fix}], self._output)
            sys.exit(2)
