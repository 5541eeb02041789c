"""`gpuchaos rules`: check and test rules before they guard anything, in the manner of promtool."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.guard import ruletest
from gpuchaos_stream.guard.rules import load, rule_files
from gpuchaos_stream.guard.shipped import shipped_rules

_PATHS = click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
_OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="json is one object a line"
)


@click.group()
def rules() -> None:
    """Rules: which ones are in force, whether they are right, and whether they fire when they should.

    PATHS are files or folders; without any, the rules that come with gpuchaos.
    """


@rules.command()
@_PATHS
@_OUTPUT
def check(paths: tuple[Path, ...], output: str) -> None:
    """Reads rules and names every mistake. Exit status: 0 all good, 2 not."""
    with _Exit(output):
        files = rule_files(paths or [shipped_rules()])
        loaded = load(files).rules
        if output == "json":
            for rule in loaded:
                body = {"where": rule.where, "group": rule.group} | rule.rule.model_dump(mode="json", by_alias=True)
                click.echo(json.dumps(body))
            return
        for file in files:
            count = sum(rule.where.startswith(f"{file}:") for rule in loaded)
            click.echo(f"{file}: {count} rules, all good")
        width = max((len(rule.rule.name) for rule in loaded), default=0)
        for rule in loaded:
            wait = f"for {rule.rule.for_:g} s" if rule.rule.for_ else "at once"
            click.echo(f"  {rule.rule.name:<{width}}  {rule.rule.scope:<10}  {rule.rule.action:<8}  {wait}")


@rules.command()
@_PATHS
@_OUTPUT
def test(paths: tuple[Path, ...], output: str) -> None:
    """Runs rule tests. Exit status: 0 all hold, 1 one does not, 2 a file cannot be used."""
    with _Exit(output):
        failed = 0
        for file in ruletest.files_of_tests(paths or [shipped_rules()]):
            outcomes = ruletest.run_file(file)
            failed += sum(bool(outcome.problem) for outcome in outcomes)
            for line in _lines(file, outcomes, output):
                click.echo(line)
    if failed:
        sys.exit(1)


def _lines(file: Path, outcomes: list[ruletest.Outcome], output: str) -> Iterable[str]:
    if output == "json":
        for outcome in outcomes:
            yield json.dumps(
                {
                    "where": outcome.where,
                    "test": outcome.test,
                    "rule": outcome.rule,
                    "eval_time_s": outcome.eval_time,
                    "ok": not outcome.problem,
                    "problem": outcome.problem,
                }
            )
        return
    bad = [outcome for outcome in outcomes if outcome.problem]
    yield f"{file}: {len(outcomes) - len(bad)} of {len(outcomes)} checks hold"
    for outcome in bad:
        yield f"  {outcome.where}: {outcome.test}: {outcome.rule} at {outcome.eval_time:g} s: {outcome.problem}"


class _Exit:
    """Turns bad input into exit status 2, also where the group is called without `main`."""

    def __init__(self, output: str) -> None:
        self._output = output

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UserError):
            for one in getattr(error, "errors", (error,)):
                body = {"where": one.where, "problem": one.problem, "fix": one.fix}
                click.echo(json.dumps(body) if self._output == "json" else str(one), err=self._output != "json")
            sys.exit(2)
