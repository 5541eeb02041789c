"""Which kind a recording is: every kind is asked how sure it is of the beginning."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, cast

from gpuchaos_agent.read import kinds
from gpuchaos_agent.read.base import HEAD, Kind, Sample
from gpuchaos_agent.read.recording import Recording, opened, shown
from gpuchaos_stream.errors import UserError, nearest

#: From here on a kind is sure; below, what was guessed is said to be a guess.
SURE: Final = 0.5
#: Up to here it is not where another kind knows this much of the rest.
MIXED: Final = 0.75
REST: Final = 0.25
#: So little is known of any text.
LITTLE: Final = 0.1
#: From here on it is certain that a recording is of this kind, and no other that does not know it at all.
CERTAIN: Final = 0.9

#: Control sequences of terminals (ECMA-48 CSI): `nvidia-smi topo -m` underlines its header.
_ANSI: Final = re.compile(r"\x1b\[[0-9;]{0,16}[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Guess:
    """`doubt` is empty where the kind is sure, else says in words why it is not."""

    kind: Kind
    doubt: str = ""


@cache
def known() -> dict[str, Kind]:
    """Every kind by name."""
    return {name: _module(name) for name in kinds.names()}


def plain(text: str) -> str:
    """The text without terminals' control sequences."""
    return _ANSI.sub("", text)


def sample(name: str, head: bytes) -> Sample:
    """The sample of a recording that begins with `head`. A last line that is cut off is left out."""
    if len(head) >= HEAD:
        head = head[: head.rfind(b"\n") + 1] or head
    return Sample(name=name, text=plain(head.replace(b"\0", b"").decode("utf-8", "replace")))


def guess(path: Path) -> Kind:
    """The kind that is surest of the file.

    Raises:
        UserError: it cannot be read, or is no text.
    """
    with opened(path) as recording:
        return guessed(recording).kind


def guessed(recording: Recording) -> Guess:
    """The kind that is surest of the recording's beginning. Any text is a program's log if it is nothing else."""
    ranked = _ranked(recording)
    (best, kind), (second, other) = ranked[:2]
    if not recording.head.strip(b"\0\r\n\t "):
        return Guess(kind, "it is empty")
    if best >= MIXED or (best >= SURE and second <= REST):
        return Guess(kind)
    if best > LITTLE and second <= LITTLE:
        return Guess(kind, f"only some of its lines look like {kind.SUMMARY}")
    if second > LITTLE:
        return Guess(kind, f"its lines are of several kinds: {kind.NAME} or {other.NAME}? name one with --kind")
    return Guess(kind, "nothing in its beginning is known; if it is something else name it with --kind")


def named(name: str) -> Kind:
    """The kind of that name.

    Raises:
        UserError: there is none.
    """
    if name not in kinds.names():
        raise UserError("--kind", f"no kind {shown(name)!r}", nearest(name, kinds.names()))
    return _module(name)


def asked(name: str, recording: Recording) -> Guess:
    """The kind that a person named for the recording.

    Raises:
        UserError: there is no such kind, or the recording is certainly of another.
    """
    kind = named(name)
    likely = kind.likelihood(sample(recording.name, recording.head))
    if likely >= SURE or not recording.head:
        return Guess(kind)
    best, other = _ranked(recording)[0]
    if likely == 0 and best >= CERTAIN:
        raise UserError(recording.name, f"is {other.SUMMARY}, not {kind.SUMMARY}", f"write --kind {other.NAME}")
    if best >= CERTAIN:
        return Guess(kind, f"it looks like {other.SUMMARY}: --kind {other.NAME}")
    return Guess(kind, "" if likely else f"its beginning does not look like {kind.SUMMARY}")


def _ranked(recording: Recording) -> list[tuple[float, Kind]]:
    seen = sample(recording.name, recording.head)
    rated = [(kind.likelihood(seen), kind) for kind in known().values()]
    return sorted(rated, key=lambda pair: pair[0], reverse=True)


def _module(name: str) -> Kind:
    return cast("Kind", importlib.import_module(f"{kinds.__name__}.{name.replace('-', '_')}"))
