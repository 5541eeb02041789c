"""What `guest_watch.py` wrote, waited for: the facts and numbers of a running agent's collectors, in order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

#: From the effect to its fact, seconds, on the watched machine's clock.
SOON_S: Final = 2.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Told:
    """A fact, when it was handed out, and when it happened; both seconds since the epoch, watched clock."""

    fault: str
    seen: float
    time: float
    evidence: dict[str, Any] = field(default_factory=dict)
    severity: str = ""
    kind: str = ""
    local: str = ""
    origin: str = ""


class Facts:
    """The lines of one watcher. `diagnosis` says what else is known when a fact does not come."""

    def __init__(self, path: Path, diagnosis: Callable[[], str] = lambda: "") -> None:
        self.path = path
        self._diagnosis = diagnosis

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every whole line so far."""
        text = self.path.read_text() if self.path.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)

    def wait_ready(self, timeout: float) -> None:
        """Until the first tick is done: what comes later is seen."""
        self._until(lambda: next((line for line in self.lines() if "ready" in line), None), "the first tick", timeout)

    def told(self, fault: str, *, after: float, **evidence: Any) -> Iterator[Told]:
        """Facts of that name that were handed out after a time and carry the evidence."""
        for line in self.lines():
            if line.get("fault") == fault and line["seen"] >= after:
                found = line["evidence"]
                if all(str(found.get(name)) == str(value) for name, value in evidence.items()):
                    names = ("fault", "seen", "time", "evidence", "severity", "kind", "local", "origin")
                    yield Told(**{name: line[name] for name in names})

    def wait(self, fault: str, *, after: float, timeout: float = 15.0, **evidence: Any) -> Told:
        """The first such fact. `after` is when its effect was made, seconds since the epoch, watched clock."""
        what = f"{fault} {evidence or ''} after {after:.1f}"
        return self._until(lambda: next(self.told(fault, after=after, **evidence), None), what, timeout)

    def wait_number(
        self,
        kind: str,
        device: str,
        metric: str,
        holds: Callable[[float], bool],
        *,
        after: float,
        timeout: float = 15.0,
    ) -> tuple[float, float]:
        """When a number first held after a time, and the number."""

        def look() -> tuple[float, float] | None:
            for line in self.lines():
                if line.get("kind") == kind and "numbers" in line and line["seen"] >= after:
                    value = line["numbers"].get(device, {}).get(metric)
                    if value is not None and holds(value):
                        return line["seen"], value
            return None

        return self._until(look, f"{kind} {device} {metric}", timeout)

    def _until(self, look: Callable[[], T | None], what: str, timeout: float) -> T:
        until = time.monotonic() + timeout
        while (found := look()) is None:
            if time.monotonic() > until:
                raise AssertionError(f"not told in {timeout:.0f} s: {what}. {self._summary()} {self._diagnosis()}")
            time.sleep(0.05)  # a file on a shared folder announces nothing
        return found

    def _summary(self) -> str:
        facts = [f"{line['fault']}@{line['seen']:.1f}" for line in self.lines() if "fault" in line]
        return f"Told so far: {', '.join(facts) or 'nothing'}."
