"""What all ways to the kernel log have in common: records with a key for good, and a position that is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpuchaos_agent.logs.record import LogRecord

Info = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Sourced:
    """One record. `key` is the same whenever it is read again; its time is on this node's clock, where known.

    `lost` is how many records before it were overwritten, or dropped, before anybody read them.
    """

    key: str
    record: LogRecord
    lost: int = 0


class KernelSource(Protocol):
    """One way to the kernel log. Nothing of it waits, nothing raises but `save`."""

    @property
    def name(self) -> str: ...

    @property
    def problem(self) -> str:
        """Why it cannot be read, in words; empty while it can."""

    @property
    def behind(self) -> bool:
        """Whether more is there than the last call took, and no descriptor says so."""

    def open(self) -> bool:
        """Whether it can be read now; opens it if need be."""

    def fileno(self) -> int | None:
        """What to wait on for reading; None where nothing can be waited on."""

    def records(self, now: float) -> list[Sourced]:
        """What has come since the last call, those of interest alone; bounded. `now` is the node's clock, seconds."""

    def info(self) -> Info:
        """Where in the log we are and what was left out, for people."""

    def save(self) -> None:
        """Keeps the position: everything handed out is safe elsewhere.

        Raises:
            OSError: it cannot be written.
        """

    def close(self) -> None:
        """Gives back what is open. May be called twice; `open` goes on where it was."""


def keep(path: Path, position: dict[str, str | int]) -> None:
    """Written whole beside and moved over, so that a crash leaves the old one.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(position))
    fresh.replace(path)


def kept(path: Path | None) -> dict[str, object]:
    """What was kept; empty at the first start ever, and where it cannot be read."""
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
