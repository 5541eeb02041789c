"""All words, found by looking into this package: a record in, what it says out."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from gpuchaos_agent import words
from gpuchaos_agent.logs import literals
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import Family, Finding, Words

#: Longest text that is looked at, characters: longer ones are cut (the kernel's longest record is 8 KiB).
LONGEST: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class _Readers:
    """The modules that read one writer's records, and one pattern that says whether any may have a word."""

    hint: re.Pattern[str]
    modules: tuple[Words, ...]


@cache
def modules() -> tuple[Words, ...]:
    """Every module of the package that has HINTS, by name."""
    found = []
    for info in sorted(pkgutil.iter_modules(words.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{words.__name__}.{info.name}")
        if hasattr(module, "HINTS"):
            found.append(module)
    return tuple(found)


@cache
def families() -> dict[str, Family]:
    """Every family by name."""
    return {family.name: family for module in modules() for family in module.FAMILIES}


@cache
def _readers(writer: Writer) -> _Readers:
    mine = tuple(module for module in modules() if writer in module.WRITERS)
    return _Readers(re.compile(literals.any_of(hints(writer))), mine)


@cache
def hints(writer: Writer) -> frozenset[str]:
    """The literals of which any text holds one that `read` understands of this writer."""
    return frozenset(hint for module in modules() if writer in module.WRITERS for hint in module.HINTS)


def read(record: LogRecord) -> Finding | None:
    """What the record says, by the first module that understands it; None where nobody does. Never raises."""
    readers = _readers(record.writer)
    if readers.hint.search(record.text, 0, LONGEST) is None:
        return None
    if len(record.text) > LONGEST:
        record = replace(record, text=record.text[:LONGEST])
    text = record.text
    for module in readers.modules:
        for hint in module.HINTS:  # a plain loop: in a flood of faults `any` costs more than all the reading
            if hint in text:
                break
        else:
            continue
        finding = module.read(record)
        if finding is not None:
            return finding
    return None
