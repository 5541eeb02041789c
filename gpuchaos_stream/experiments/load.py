"""An experiment file as a checked plan."""

from __future__ import annotations

from pathlib import Path

from gpuchaos_stream import yamlfile
from gpuchaos_stream.errors import UserErrors
from gpuchaos_stream.experiments.check import Places, check
from gpuchaos_stream.experiments.plan import Plan


def load(path: Path, places: Places | None = None) -> Plan:
    """The plan in `path`, checked in every way that needs no cluster (and against `places` where given).

    Raises:
        UserError: the file cannot be read, or is no YAML.
        UserErrors: every mistake of the plan, each with file, line, field and fix.
    """
    document = yamlfile.read(path)
    plan = document.validate(Plan)
    errors = check(plan, document=document, places=places)
    if errors:
        raise UserErrors(errors)
    return plan
