"""Progress of a job as its own log tells it: the step it is at, how long a step takes, when it last moved."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpuchaos_agent.jobs import patterns
from gpuchaos_agent.jobs.patterns import Pattern
from gpuchaos_agent.jobs.rates import WINDOW_S, Rate
from gpuchaos_agent.logs.follow import FileFollower, Line

__all__ = ["READ_PER_TICK", "WINDOW_S", "AppLog"]

#: Read at most this much a tick, bytes. Where a log grows faster, the step is taken from its end meanwhile.
READ_PER_TICK: Final = 256 * 1024
#: Patterns look at so much of a line, bytes: a progress bar or a dict of metrics is shorter.
LOOKED_AT: Final = 4096

_COLOUR: Final = re.compile(rb"\x1b\[[0-9;]{0,16}m")


class AppLog:
    """Follows one log file. Rotation (another file under the name) and truncation start it over.

    `step_pattern` and `time_pattern` (seconds) have one group each; None for the usual forms (`patterns.py`).

    Raises:
        UserError: a pattern is no regular expression, or has not exactly one group.
    """

    def __init__(self, path: Path, *, step_pattern: str | None = None, time_pattern: str | None = None) -> None:
        self._path = path
        self._steps = patterns.STEPS if step_pattern is None else (patterns.own(step_pattern, "step_pattern"),)
        self._times = patterns.TIMES if time_pattern is None else (patterns.own(time_pattern, "time_pattern"),)
        self._follower = FileFollower(path, start="tail", per_call_bytes=READ_PER_TICK)
        self._rate = Rate()
        self._looked: tuple[int, int, int] = (-1, 0, 0)
        self._moved: float | None = None
        self.step: int | None = None
        self.step_time: float | None = None
        self.loss: float | None = None
        self._tokens_rate: float | None = None
        self.problem = ""
        #: The lines of the last poll, for those who read more than progress in them.
        self.lines: tuple[Line, ...] = ()

    @property
    def behind(self) -> int:
        """Bytes of the log that the next poll has to read at once."""
        return self._follower.behind

    def poll(self, now: float) -> None:
        """Reads what was added. `now` is the node's clock, seconds; `problem` says why nothing could be read."""
        self.lines = tuple(self._follower.read())
        self.problem = self._follower.problem
        first = self.step is None
        if self._take(self._news()):
            # What was there before us was written when the file was last written, not now.
            self._moved = min(now, self._path_time(now)) if first else now
        if self.step is not None:
            self._rate.see(now, self.step)

    def steps_rate(self) -> float | None:
        """Steps a second over the last `WINDOW_S`; None before two readings, or where the step went back."""
        return self._rate.per_second()

    def tokens_rate(self) -> float | None:
        """Tokens a second as the log last told them."""
        return self._tokens_rate

    def progress_age(self, now: float) -> float | None:
        """Seconds since the last line that names a step; None while there was none."""
        return None if self._moved is None else max(0.0, now - self._moved)

    def close(self) -> None:
        """Closes the file."""
        self._follower.close()

    def _news(self) -> list[bytes]:
        """The lines that tell where the job is now: those read, or the file's last ones while we are behind."""
        behind = self._follower.behind > 0
        fresh = [
            line
            for line in (self._follower.peek_end(READ_PER_TICK) if behind else self.lines)
            if (line.inode, line.generation) != self._looked[:2] or line.offset > self._looked[2]
        ]
        if fresh:
            self._looked = (fresh[-1].inode, fresh[-1].generation, fresh[-1].offset)
        return [line.data[:LOOKED_AT] for line in fresh]

    def _take(self, lines: list[bytes]) -> bool:
        """Takes the last of each number out of whole lines; whether a step was named."""
        data = _COLOUR.sub(b"", b"\n".join(lines))
        if not data:
            return False
        self.step_time = _or(_last(self._times, data), self.step_time)
        loss = _last(patterns.LOSSES, data, finite=False)
        if loss is not None:
            self.loss = loss if math.isfinite(loss) else None  # it is no number any more: the last one is history
        self._tokens_rate = _or(_last(patterns.TOKENS, data), self._tokens_rate)
        found = _last(self._steps, data)
        if found is None:
            return False
        self.step = int(found)
        return True

    def _path_time(self, now: float) -> float:
        try:
            return self._path.stat().st_mtime
        except OSError:
            return now


def _or(found: float | None, kept: float | None) -> float | None:
    return kept if found is None else found


def _last(forms: Iterable[Pattern], data: bytes, *, finite: bool = True) -> float | None:
    """The last number that a pattern finds; one of one's own may find what is none."""
    for form in forms:
        for found in reversed(form.text.findall(data)):
            try:
                number = form.value(found)
            except ValueError:
                continue
            if math.isfinite(number) or not finite:
                return number
    return None
