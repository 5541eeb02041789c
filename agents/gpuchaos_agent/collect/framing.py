r"""Records of /dev/kmsg (Documentation/ABI/testing/dev-kmsg): `prefix,seq,usec,flags;text`, then tag lines.

`prefix` is facility * 8 + level. The kernel speaks with facility 0; the kernel itself raises what a process
writes to facility 1 at least, so the difference cannot be forged. Control characters, backslashes and bytes
over 126 arrive as `\xNN`; lines that begin with a blank are tags of the record above (`DEVICE=+pci:…`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_HEAD: Final = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),([^;\n]{0,200});(.*)\Z", re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")
#: Longest text kept while a record is incomplete, bytes; the kernel's longest is 8 KiB.
_LONGEST: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record. `usec` is microseconds since boot; `text` is unescaped and may hold several lines."""

    prefix: int
    seq: int
    usec: int
    text: str
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def facility(self) -> int:
        """0 for the kernel, 1 and more for what a process wrote."""
        return self.prefix >> 3

    @property
    def level(self) -> int:
        """0 (emergency) to 7 (debug)."""
        return self.prefix & 7

    @property
    def by_process(self) -> bool:
        """Whether a process wrote it."""
        return self.facility != 0


def unescape(raw: bytes) -> str:
    r"""The text with `\xNN` made bytes again; what is no UTF-8 becomes U+FFFD."""
    return _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), raw).decode("utf-8", "replace")


class Framer:
    """Cuts bytes into records. Lines that are neither a record nor a tag are counted in `bad` and skipped."""

    def __init__(self) -> None:
        self.bad = 0
        self._rest = b""
        self._open: tuple[re.Match[bytes], dict[str, str]] | None = None

    def feed(self, data: bytes) -> list[LogRecord]:
        """The records that `data` completes: each is complete when the next one begins."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _LONGEST:
            self._rest = b""
            self.bad += 1
        done: list[LogRecord] = []
        for line in lines:
            if line.startswith(b" ") and self._open is not None:
                name, _, value = unescape(line[1:]).partition("=")
                self._open[1][name] = value
                continue
            head = _HEAD.match(line)
            if head is not None:
                done += self.flush()
                self._open = (head, {})
            elif line:
                self.bad += 1
        return done

    def flush(self) -> list[LogRecord]:
        """The record that stands open: a read of the device gives whole records, so it is complete."""
        if self._open is None:
            return []
        head, tags = self._open
        self._open = None
        return [LogRecord(int(head[1]), int(head[2]), int(head[3]), unescape(head[5]), tags)]
