"""What the RDMA source knows over a restart of the agent, in one small file: downs since boot, and what was told."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent.collect.rdma_links import Kept

_TELLABLE: Final = ("port_down", "port_disabled")


@dataclass(frozen=True, slots=True)
class Mark:
    """One port: its count of downs when it was last seen (None where unreadable), and what was told of it."""

    downs: int | None = None
    kept: Kept = field(default_factory=Kept)


class Baseline:
    """The file `path`, None to keep nothing. A file that is missing or damaged is as if there were none."""

    def __init__(self, path: Path | None, boot: str) -> None:
        self._path = path
        self._boot = boot
        self._saved: dict[str, Mark] | None = None

    def load(self) -> tuple[bool, dict[str, Mark]]:
        """Whether the marks are of this boot, and the marks by port."""
        try:
            raw = json.loads(self._path.read_text("utf-8")) if self._path is not None else {}
        except (OSError, ValueError, RecursionError):
            return False, {}
        marks = raw.get("ports") if isinstance(raw, dict) else None
        if not isinstance(marks, dict):
            return False, {}
        return raw.get("boot_id") == self._boot, {
            str(name): _mark(entry) for name, entry in marks.items() if isinstance(entry, dict)
        }

    def save(self, marks: dict[str, Mark]) -> None:
        """Writes the marks where they have changed; whole beside the file and moved over it.

        Raises:
            OSError: it cannot be written.
        """
        if self._path is None or not marks or marks == self._saved:
            return
        entries = {
            name: {
                "downs": mark.downs,
                "expected": mark.kept.expected,
                "told": mark.kept.told,
                "down_since": mark.kept.down_since,
            }
            for name, mark in marks.items()
        }
        content = json.dumps({"boot_id": self._boot, "ports": entries})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(content, "utf-8")
        fresh.replace(self._path)
        self._saved = dict(marks)


def _mark(entry: dict[str, Any]) -> Mark:
    downs, told, since = entry.get("downs"), entry.get("told"), entry.get("down_since")
    return Mark(
        downs=downs if isinstance(downs, int) and not isinstance(downs, bool) and downs >= 0 else None,
        kept=Kept(
            expected=entry.get("expected") is True,
            told=told if told in _TELLABLE else None,
            down_since=float(since) if isinstance(since, int | float) else 0.0,
        ),
    )
