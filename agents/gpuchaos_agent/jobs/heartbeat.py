"""A file that any job can write after each step, for what its log does not say.

Either one JSON object with any of these, or the words `step 123` (or the number alone):

    {"step": 1200, "time": 1767225600.5, "step_time": 0.81, "loss": 2.31, "tokens": 5033164800}

`step` counts finished steps, `tokens` the tokens trained so far; `tokens_rate` (a second) may stand instead of it.
`step_time` is in seconds, `time` in seconds since the epoch (the file's own time where it is absent). Write it whole:
to another name and renamed over, or in one write; a file caught half written is read again with the next tick. The
file's time is the sign of life. Where it names a step, only another step is progress, so that a thread that goes on
writing while the training hangs is seen through.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Final

from gpuchaos_agent.jobs.rates import Rate

#: Read at most this much, bytes.
LARGEST: Final = 64 * 1024
#: So many readings in a row may find no whole heartbeat before it is said.
PATIENCE: Final = 3

_PLAIN: Final = re.compile(r"\s{0,16}(?:step\s{0,4}[=: ]?\s{0,4})?(\d{1,15})\s{0,16}\Z", re.IGNORECASE)


class Heartbeat:
    """Reads the heartbeat file of one job."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps = Rate()
        self._tokens = Rate()
        self._told_tokens_rate: float | None = None
        self._moved: float | None = None
        self._bad = 0
        self._seen: tuple[int, int, int] | None = None
        self.step: int | None = None
        self.step_time: float | None = None
        self.loss: float | None = None
        self.problem = ""

    def poll(self, now: float) -> None:
        """Reads the file if it changed."""
        try:
            read = _read(self._path)
        except OSError as error:
            self.problem = f"{self._path}: {os.strerror(error.errno or 0)}"
            return
        if read is None:
            self.problem = f"{self._path}: is no regular file"
            return
        content, seen, mtime = read
        if seen != self._seen or self._bad:
            beat = _beat(content)
            self._bad = 0 if beat else self._bad + 1
            if beat:
                self._seen = seen
                self._take(beat, min(now, beat.get("time", mtime)), now)
        self.problem = f"{self._path}: holds no heartbeat" if self._bad >= PATIENCE else ""
        if self.step is not None:
            self._steps.see(now, self.step)

    def steps_rate(self) -> float | None:
        """Steps a second."""
        return self._steps.per_second()

    def tokens_rate(self) -> float | None:
        """Tokens a second, as told or from what was counted."""
        return self._told_tokens_rate if self._told_tokens_rate is not None else self._tokens.per_second()

    def progress_age(self, now: float) -> float | None:
        """Seconds since the step last changed; since the file was written where it names none."""
        return None if self._moved is None else max(0.0, now - self._moved)

    def close(self) -> None:
        """Nothing is held open."""

    def _take(self, beat: dict[str, float], at: float, now: float) -> None:
        step = beat.get("step")
        if step is None or int(step) != self.step:
            self._moved = at
        if step is not None:
            self.step = int(step)
        self.step_time = beat.get("step_time", self.step_time)
        self.loss = beat.get("loss")
        self._told_tokens_rate = beat.get("tokens_rate")
        if "tokens" in beat:
            self._tokens.see(now, beat["tokens"])


def _read(path: Path) -> tuple[bytes, tuple[int, int, int], float] | None:
    """Content, identity and time; None for what is no regular file, which could keep us waiting."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        return os.read(fd, LARGEST), (status.st_ino, status.st_mtime_ns, status.st_size), status.st_mtime
    finally:
        os.close(fd)


def _beat(content: bytes) -> dict[str, float]:
    """What the file says; empty where it says nothing whole."""
    text = content.decode("utf-8", "replace")
    plain = _PLAIN.match(text)
    if plain is not None:
        return {"step": float(plain[1])}
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(raw, dict):
        return {}
    names = ("step", "time", "step_time", "loss", "tokens", "tokens_rate")
    return {name: value for name in names if (value := _number(raw.get(name))) is not None}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) < 1e18 else None
