"""One pattern for many literals, fast enough to be asked of every line of a flood.

Python's `re` tries each branch at each position at which any branch could begin. So the pattern begins, for each
literal, not with its first character but with one that is seldom in logs, and looks back for the rest:
`nvme` becomes `vme(?<=nvme)`. That is tried at the few v of a line instead of at most of its letters. With 89
literals and lines of 140 characters: 1.2 us a line; 8 us if each begins at its first character, 16 us as plain
branches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

#: Characters of kernel logs from the most frequent on; what is not here is rarer than all of them. The order only
#: matters for speed.
_FREQUENT: Final = " e0taoinsrdlc1u:m2p.h4g3=fb58y6k79-_/vw[]()\"x,'qjzETASCRINPOMDLUFBHV"
_WEIGHTS: Final[Mapping[str, float]] = {character: 100.0 / (at + 2) for at, character in enumerate(_FREQUENT)}
_LEAST: Final = 1.0


@dataclass(slots=True)
class _Node:
    """What may follow a character, and the literals that are complete with it."""

    below: dict[str, _Node] = field(default_factory=dict)
    complete: list[str] = field(default_factory=list)


def any_of(literals: Iterable[str]) -> str:
    """Source of a pattern that finds where any of the literals is, one that finds nothing where there are none."""
    wanted = sorted({literal for literal in literals if literal})
    chosen = _seldom(wanted)
    root = _Node()
    for literal in wanted:
        at = min((literal.index(character) for character in chosen if character in literal), default=0)
        node = root
        for character in literal[at:]:
            node = node.below.setdefault(character, _Node())
        node.complete.append(literal)
    return "|".join(_branches(root)) or r"(?!)"


def any_bytes(literals: Iterable[bytes]) -> re.Pattern[bytes]:
    """The same, compiled, for bytes."""
    source = any_of(literal.decode("latin-1") for literal in literals)
    return re.compile(source.encode("latin-1"))


def _seldom(literals: list[str]) -> set[str]:
    """Characters of which each literal has one, chosen to be met as seldom as may be (greedy weighted cover)."""
    chosen: set[str] = set()
    left = set(literals)
    while left:
        candidates = sorted({character for literal in left for character in literal})

        def cost(character: str) -> float:
            return _WEIGHTS.get(character, _LEAST) / sum(character in literal for literal in left)  # noqa: B023

        best = min(candidates, key=cost)
        chosen.add(best)
        left = {literal for literal in left if best not in literal}
    return chosen


def _branches(node: _Node) -> list[str]:
    """Depth is the length of the longest literal."""
    found = [f"(?<={re.escape(literal)})" for literal in node.complete]
    for character, below in node.below.items():
        literal, rest = re.escape(character), below
        while len(rest.below) == 1 and not rest.complete:
            ((character_below, rest),) = rest.below.items()
            literal += re.escape(character_below)
        branches = _branches(rest)
        found.append(literal + (branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"))
    return found
