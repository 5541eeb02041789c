"""An experiment file as a checked plan."""

from __future__ import annotations

from pathlib import Path

from gpuchaos_stream import yamlfile
from gpuchaos_stream.errors import UserError, UserErrors
from gpuchaos_stream.experiments.check import Places, check
from gpuchaos_stream.experiments.plan import Plan


def plan_files(path: Path) -> list[Path]:
    """The file itself, or each `*.yaml` of a folder, by name.

    Raises:
        UserError: a folder without any.
    """
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.yaml"))
    if not files:
        raise UserError(str(path), "there is no *.yaml in this folder", "put an experiment file there")
    return files


def load(path: Path, places: Places | None = None) -> Plan:
    """The plan in `path`, checked in every way that needs no cluster (and against `places` where given).

    Raises:
        UserError: the file cannot be read, or is no YAML.
        UserErrors: every mistake of the plan, each with file, line, field and fix.
    """
    document = yamlfile.read(path)
    if isinstance(document.data, dict):
        if document.data.keys() <= {"groups", "safety"}:
            raise UserError(str(path), "holds rules, not an Experiment", "gpuchaos rules check checks it")
        if document.data.get("kind") == "Notify":
            raise UserError(str(path), "says who is told, it is no Experiment", "gpuchaos notify --check checks it")
    plan = document.validate(Plan)
    errors = check(plan, document=document, places=places)
    if errors:
        raise UserErrors(errors)
    return plan
