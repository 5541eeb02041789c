"""Progress of a job as its own log tells it: the step it is at, how long a step takes, when it last moved."""

from __future__ import annotations

import math
import os
import re
from collections import deque
from pathlib import Path
from typing import Final

from gpuchaos_stream.errors import UserError

#: Read at most this much a tick, bytes; a log that grows faster is read from its end on.
READ_PER_TICK: Final = 256 * 1024
#: `steps_rate` is taken over this long, seconds: longer than a tick, shorter than a breach takes to matter.
WINDOW_S: Final = 5.0
#: A line longer than this is cut, bytes.
LONGEST_LINE: Final = 16 * 1024

#: `step=12`, `step: 12`, `Step 12/100`, `iteration  12` (Megatron-LM), `iter 12`.
STEP: Final = r"(?i)\b(?:global_?step|steps?|iteration|iter)\b[\"']?\s*[=: ]\s*(\d{1,15})\b"
#: Seconds a step: pattern and what makes seconds of it (Megatron-LM prints milliseconds).
STEP_TIMES: Final = (
    (r"(?i)\bstep_time(?:_s|_seconds)?\b[\"']?\s*[=:]\s*(\d{1,9}(?:\.\d{1,9})?)(?!\d|\.\d|\s*ms)", 1.0),
    (r"(?i)\bstep_time(?:_ms)?\b[\"']?\s*[=:]\s*(\d{1,9}(?:\.\d{1,9})?)\s*ms", 1e-3),
    (r"(?i)\belapsed time per iteration \(ms\):\s*(\d{1,9}(?:\.\d{1,9})?)", 1e-3),
)


class AppLog:
    """Follows one log file. Rotation (another file under the name) and truncation start it over.

    `step_pattern` and `time_pattern` (seconds) have one group each; None for the usual forms.

    Raises:
        UserError: a pattern is no regular expression, or has not exactly one group.
    """

    def __init__(self, path: Path, *, step_pattern: str | None = None, time_pattern: str | None = None) -> None:
        self._path = path
        times = STEP_TIMES if time_pattern is None else ((time_pattern, 1.0),)
        self._step_pattern = _compiled(step_pattern or STEP, "step_pattern")
        self._time_patterns = tuple((_compiled(pattern, "time_pattern"), scale) for pattern, scale in times)
        self._file: tuple[int, int] | None = None
        self._position = 0
        self._rest = b""
        self._samples: deque[tuple[float, int]] = deque()
        self._moved: float | None = None
        self.step: int | None = None
        self.step_time: float | None = None
        self.problem = ""

    def poll(self, now: float) -> None:
        """Reads what was added. `now` is the node's clock, seconds; `problem` says why nothing could be read."""
        try:
            fresh = self._read()
        except OSError as error:
            self.problem = f"{self._path}: {os.strerror(error.errno or 0)}"
            self._file = None
        else:
            self.problem = ""
            first = self.step is None
            if self._take(fresh):
                # What was there before us was written when the file was last written, not now.
                self._moved = min(now, self._path_time(now)) if first else now
        if self.step is not None:
            self._samples.append((now, self.step))
            while len(self._samples) > 2 and self._samples[1][0] <= now - WINDOW_S:
                self._samples.popleft()

    def steps_rate(self) -> float | None:
        """Steps a second over the last `WINDOW_S`; None before two readings, or where the step went back."""
        if len(self._samples) < 2:
            return None
        (then, before), (now, step) = self._samples[0], self._samples[-1]
        return (step - before) / (now - then) if now > then and step >= before else None

    def progress_age(self, now: float) -> float | None:
        """Seconds since the last line that names a step; None while there was none."""
        return None if self._moved is None else max(0.0, now - self._moved)

    def _read(self) -> bytes:
        with self._path.open("rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity != self._file:
                # The first time, the tail tells where the job is; a rotated log is read from its start.
                self._position = 0 if self._file else max(0, status.st_size - READ_PER_TICK)
                self._file, self._rest = identity, b""
            elif status.st_size < self._position:
                self._position, self._rest = 0, b""
            if status.st_size - self._position > READ_PER_TICK:
                self._position, self._rest = status.st_size - READ_PER_TICK, b""
            file.seek(self._position)
            data = file.read(READ_PER_TICK) or b""
            self._position += len(data)
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-LONGEST_LINE:]
        return b"\n".join(line[:LONGEST_LINE] for line in lines)

    def _take(self, data: bytes) -> bool:
        """Takes the last step and step time out of whole lines; whether a step was named."""
        for pattern, scale in self._time_patterns:
            seconds = _last_number(pattern, data)
            if seconds is not None:
                self.step_time = seconds * scale
                break
        found = _last_number(self._step_pattern, data)
        if found is None:
            return False
        step = int(found)
        if self.step is not None and step < self.step:
            self._samples.clear()  # resumed from a checkpoint: a new count
        self.step = step
        return True

    def _path_time(self, now: float) -> float:
        try:
            return self._path.stat().st_mtime
        except OSError:
            return now


def _compiled(pattern: str, field: str) -> re.Pattern[bytes]:
    try:
        compiled = re.compile(pattern.encode())
    except re.error as error:
        raise UserError(field, f"{pattern!r} is no regular expression: {error}") from error
    if compiled.groups != 1:
        raise UserError(field, f"{pattern!r} has {compiled.groups} groups", "put ( ) around the number, and only there")
    return compiled


def _last_number(pattern: re.Pattern[bytes], data: bytes) -> float | None:
    """The last finite number that `pattern` finds; a pattern of one's own may find what is none."""
    for found in reversed(pattern.findall(data)):
        try:
            number = float(found)
        except ValueError:
            continue
        if math.isfinite(number):
            return number
    return None
