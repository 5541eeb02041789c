r"""What container runtimes put round a program's line, taken off again: Docker's json-file, and CRI's text.

- Docker (`json-file`): `{"log":"text\n","stream":"stdout","time":"2026-01-31T10:00:00.123456789Z"}`. A line of over
  16 KiB comes in pieces, of which only the last one's text ends with a line feed.
- CRI (containerd, CRI-O; Kubernetes' logging design): `2026-01-31T10:00:00.123456789Z stdout F text`, where `P`
  instead of `F` marks a piece that goes on in the next line of the same stream.

What is neither is a program's own line and is passed on as it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from gpuchaos_agent.logs import stamps

#: Longest text that is put together of pieces, characters; what is longer is passed on in several.
LONGEST: Final = 256 * 1024

_DOCKER: Final = b'{"log":'
_CRI: Final = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (stdout|stderr) ([FP])(?::\S{0,32})? ?(.*)\Z",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A program's line: `key` is that of its first piece, `time` the runtime's, None where there was no wrapping."""

    text: str
    key: str = ""
    time: float | None = None
    stream: str = ""


@dataclass(slots=True)
class _Open:
    """The pieces of a line that is not complete."""

    key: str
    time: float | None
    pieces: list[str]
    length: int = 0


class Unwrapper:
    """Takes wrapping off line by line; each line is looked at for itself, so that a file may hold both."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    @property
    def waiting(self) -> bool:
        """Whether a line stands open that the next one may complete."""
        return bool(self._open)

    @staticmethod
    def wrapped(line: bytes) -> bool:
        """Whether a runtime wrote round the line."""
        return line.startswith(_DOCKER) or _CRI.match(line) is not None

    def feed(self, line: bytes, key: str = "") -> Unwrapped | None:
        """The program's line that `line` completes, None where it is a piece of one. Never raises."""
        found = _docker(line) or _cri(line)
        if found is None:
            return Unwrapped(line.decode("utf-8", "replace"), key)
        text, stream, time, whole = found
        open_ = self._open.setdefault(stream, _Open(key, time, []))
        open_.pieces.append(text)
        open_.length += len(text)
        if not whole and open_.length < LONGEST:
            return None
        del self._open[stream]
        return Unwrapped("".join(open_.pieces), open_.key, open_.time, stream)

    def flush(self) -> list[Unwrapped]:
        """The lines that stand open at the end."""
        left = [Unwrapped("".join(one.pieces), one.key, one.time, stream) for stream, one in self._open.items()]
        self._open.clear()
        return left


def _docker(line: bytes) -> tuple[str, str, float | None, bool] | None:
    if not line.startswith(_DOCKER):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    text = entry.get("log") if isinstance(entry, dict) else None
    if not isinstance(text, str):
        return None
    return (
        text.rstrip("\r\n"),
        str(entry.get("stream", ""))[:32],
        stamps.iso(str(entry.get("time", ""))),
        text.endswith("\n"),
    )


def _cri(line: bytes) -> tuple[str, str, float | None, bool] | None:
    match = _CRI.match(line)
    if match is None:
        return None
    stamp, stream, tag, text = match.groups()
    return text.decode("utf-8", "replace"), stream.decode(), stamps.iso(stamp.decode()), tag == b"F"
