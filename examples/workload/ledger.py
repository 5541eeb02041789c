"""What was trained, a line for each step by rank 0, and the audit that finds lost, doubled and changed ones.

A step's line says how many samples all ranks together trained and the sum of their indices: the ranks add both up in
the same collective as their gradients, so a rank that left its share out shows. A line `resume` says from which
checkpoint an attempt goes on; the steps after that one do not count any more.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from workload.model import Order, place

#: Lines kept in memory while they cannot be written, bytes.
_MOST_WAITING: Final = 4 << 20


class Ledger:
    """Appends. What cannot be written now is written with the next line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting = b""
        self._fd = -1

    def add(self, line: dict[str, Any]) -> None:
        """One line."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting += json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                if not _ends_whole(self._path):
                    self._waiting = b"\n" + self._waiting
            while self._waiting:
                self._waiting = self._waiting[os.write(self._fd, self._waiting) :]
        except OSError:
            return


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            return True
        file.seek(size - 1)
        return file.read(1) == b"\n"


@dataclass(slots=True)
class _Step:
    digest: str
    whole: bool


@dataclass(slots=True)
class Audit:
    """What the ledger comes to; `read` again takes what was added meanwhile."""

    path: Path
    seed: int
    batch: int
    steps_lost: int = 0
    resumes: int = 0
    resumed_from: str = ""
    refused: list[str] = field(default_factory=list)
    bad_weights: int = 0
    replayed_other: int = 0
    loss: float | None = None
    _order: Order | None = None
    _steps: dict[int, _Step] = field(default_factory=dict)
    _dropped: dict[int, str] = field(default_factory=dict)
    _at: int = 0
    _rest: bytes = b""
    _last: int = 0

    def read(self) -> Audit:
        """Takes the new lines."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except OSError:
            return self
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # torn by a crash or a full disk; a step that is missing shows
            if "resume" in said:
                self._resume(said)
            elif "step" in said:
                self._step(said)
        return self

    @property
    def step(self) -> int:
        """Finished steps that count."""
        return self._last

    def data_lost(self) -> int:
        """Samples that were not trained exactly once, of those up to the last finished step."""
        bad = sum(1 for step in self._steps.values() if not step.whole)
        return (self._last - len(self._steps) + bad) * self.batch

    def _resume(self, said: dict[str, Any]) -> None:
        step = int(said["resume"])
        known = self._steps.get(step)
        if known is not None and known.digest != said["digest"]:
            self.bad_weights += 1
        if said["attempt"] > 1 or self._last:
            self.resumes += 1
        self.resumed_from = str(said["from"])
        self.refused += [name for name in said["refused"] if name not in self.refused]
        self.steps_lost += max(0, self._last - step)
        for gone in range(step + 1, self._last + 1):
            dropped = self._steps.pop(gone, None)
            if dropped is not None:
                self._dropped[gone] = dropped.digest
        self._last = min(self._last, step)

    def _step(self, said: dict[str, Any]) -> None:
        step = int(said["step"])
        self._order = self._order or Order(self.seed)
        indices = self._order.batch(step, self.batch)
        epoch, position = place(step, self.batch)
        whole = (said["epoch"], said["position"], said["count"]) == (epoch, position, self.batch)
        whole = whole and said["indices"] == int(indices.sum()) and step not in self._steps
        self._steps[step] = _Step(said["digest"], whole)
        before = self._dropped.pop(step, None)
        if before is not None and before != said["digest"]:
            self.replayed_other += 1
        self._last = max(self._last, step)
        self.loss = said["loss"]
