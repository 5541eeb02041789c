"""The tables that the collectors look things up in, read once from `data/`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from gpuchaos_stream.events.base import Severity

#: Severity word of the Xid table that says: read it from the message.
BY_TEXT: Final = "by_text"


@dataclass(frozen=True, slots=True)
class XidEntry:
    """One Xid code. `severity` is None where only the message tells it; `scope` is what it reaches."""

    code: int
    name: str
    fault: str
    severity: Severity | None
    scope: str
    action: str


@dataclass(frozen=True, slots=True)
class FaultName:
    """One name of the fault vocabulary: its class and, in words, what it means."""

    name: str
    kind: str
    meaning: str


@cache
def xids() -> dict[int, XidEntry]:
    """The Xid table by code (`data/xid_catalogue.tsv`; its source is named in its head)."""
    entries: dict[int, XidEntry] = {}
    for code, name, fault, severity, scope, action in _rows("xid_catalogue.tsv", columns=6):
        level = None if severity == BY_TEXT else Severity(severity)
        entries[int(code)] = XidEntry(int(code), name, fault, level, scope, action)
    return entries


@cache
def fault_names() -> dict[str, FaultName]:
    """The fault names that facts may carry, by name (`data/fault_names.tsv`)."""
    return {row[0]: FaultName(*row) for row in _rows("fault_names.tsv", columns=3)}


def _rows(file: str, *, columns: int) -> list[list[str]]:
    text = resources.files("gpuchaos_agent").joinpath("data", file).read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    rows = [line.split("\t") for line in lines[1:]]
    for row in rows:
        if len(row) != columns:
            raise ValueError(f"{file}: {len(row)} columns instead of {columns} in {row!r}")
    return rows
