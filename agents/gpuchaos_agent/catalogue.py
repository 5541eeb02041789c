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
class Nvlink5Rule:
    """One rule for Xids 144 to 150: what two numbers of the record mean for one unit of the link.

    `forms` are mask and value of `intrinfo`, one for drivers before R575 and one for those since.
    """

    code: int
    units: frozenset[str]
    forms: tuple[tuple[int, int], ...]
    status: int
    fatal: bool
    action: str
    follow_up: str

    def fits(self, code: int, unit: str, intrinfo: int, status: int) -> bool:
        """Whether the rule is for this record."""
        named = code == self.code and status == self.status and unit in self.units
        return named and any(intrinfo & mask == value for mask, value in self.forms)


@dataclass(frozen=True, slots=True)
class SxidEntry:
    """One SXid of NVSwitch. `fatal` is `always`, `maybe` (the record says), `no`, or `unknown`."""

    code: int
    name: str
    fatal: str
    fault: str
    severity: Severity
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
def sxids() -> dict[int, SxidEntry]:
    """The SXid table by code (`data/sxid_catalogue.tsv`)."""
    rows = _rows("sxid_catalogue.tsv", columns=6)
    return {
        int(code): SxidEntry(int(code), name, fatal, fault, Severity(severity), action)
        for code, name, fatal, fault, severity, action in rows
    }


@cache
def nvlink5_rules() -> tuple[Nvlink5Rule, ...]:
    """The rules for Xids 144 to 150, in the order in which they are tried (`data/nvlink5_rules.tsv`)."""
    return tuple(
        Nvlink5Rule(
            int(code), frozenset(unit.split("/")), (_form(v1), _form(v2)), int(status, 16), fatal == "yes", *todo
        )
        for code, unit, v1, v2, status, fatal, *todo in _rows("nvlink5_rules.tsv", columns=8)
    )


def nvlink5_rule(code: int, unit: str, intrinfo: int, status: int) -> Nvlink5Rule | None:
    """The first rule that fits, None where the table holds none."""
    return next((rule for rule in nvlink5_rules() if rule.fits(code, unit, intrinfo, status)), None)


@cache
def fault_names() -> dict[str, FaultName]:
    """The fault names that facts may carry, by name (`data/fault_names.tsv`)."""
    return {row[0]: FaultName(*row) for row in _rows("fault_names.tsv", columns=3)}


@cache
def actions() -> dict[str, str]:
    """The sentence for each action token (`data/actions.tsv`)."""
    return {row[0]: row[1] for row in _rows("actions.tsv", columns=2)}


def advice(action: str) -> str:
    """What to do, as a sentence for whoever is on call; empty for a token that the table does not hold."""
    return actions().get(action, "")


def _form(pattern: str) -> tuple[int, int]:
    """Mask and value of a pattern of 32 digits, the highest bit first, `-` for any."""
    mask = pattern.replace("0", "1").replace("-", "0")
    return int(mask, 2), int(pattern.replace("-", "0"), 2)


def _rows(file: str, *, columns: int) -> list[list[str]]:
    text = resources.files("gpuchaos_agent").joinpath("data", file).read_text("utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    rows = [line.split("\t") for line in lines[1:]]
    for row in rows:
        if len(row) != columns:
            raise ValueError(f"{file}: {len(row)} columns instead of {columns} in {row!r}")
    return rows
