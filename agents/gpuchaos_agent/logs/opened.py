"""One open log file and how far it is read: whole lines, whatever its writer does to it."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gpuchaos_agent.logs import position

#: A longer line is cut, bytes: 16 KiB of text with each character escaped by a container's JSON.
LONGEST_LINE: Final = 96 * 1024
#: `start="tail"` begins this far before the end, bytes.
TAIL: Final = 256 * 1024

_CHUNK: Final = 256 * 1024
_ENDS: Final = re.compile(rb"[\r\n]")

Start = Literal["start", "end", "tail"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end. `generation` counts how often the file was truncated; `offset` is in bytes."""

    data: bytes
    inode: int = 0
    generation: int = 0
    offset: int = 0

    @property
    def key(self) -> str:
        """The same whenever the same line is read again, another one for another line at its place."""
        return f"{self.inode}.{self.generation}.{self.offset}.{zlib.crc32(self.data):08x}"

    @property
    def text(self) -> str:
        """What is no UTF-8 becomes U+FFFD."""
        return self.data.decode("utf-8", "replace")


class OpenFile:
    """Opens `path` at its beginning. A line ends with a line feed or a carriage return.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        self.identity = (status.st_dev, status.st_ino)
        self.inode = status.st_ino
        self.generation = 0
        self.position = 0
        self.quiet = 0
        #: Where it was when it was found truncated, until somebody has taken note.
        self.truncated: position.KeptFile | None = None
        self._written_ns = status.st_mtime_ns  # as of the last reading
        self._before = b""  # the last bytes read, to see whether they are still there
        self._line_end = b""  # the same before the first line that was not handed out
        self._rest = b""  # of a line that is not complete
        self._dropping = False  # the rest of an over-long line
        self._unasked = False  # what is dropped was there before the start, which is no loss

    def start(self, where: Start) -> None:
        """Goes to where the first reading begins; a line that is cut there is left out."""
        size = os.fstat(self._fd).st_size
        begin = {"start": 0, "end": size, "tail": max(0, size - TAIL)}[where]
        if begin:
            self.position = begin
            self._before = os.pread(self._fd, min(begin, position.BEFORE), begin - min(begin, position.BEFORE))
            self._line_end = self._before
            self._dropping = self._unasked = not self._before.endswith((b"\n", b"\r"))

    def resume(self, kept: position.KeptFile) -> None:
        """Goes on where `kept` says; see `holds`."""
        self.position, self._before = kept.offset, bytes.fromhex(kept.before)
        self._line_end = self._before

    def resumes(self, kept: position.KeptFile) -> bool:
        """Goes on where `kept` says if this is that file; closed if it is not."""
        if kept.inode == self.inode and self.holds(kept):
            self.generation = kept.generation
            self.resume(kept)
            return True
        self.close()
        return False

    def holds(self, kept: position.KeptFile) -> bool:
        """Whether the bytes before the kept position are still there."""
        before = bytes.fromhex(kept.before)
        return os.pread(self._fd, len(before), max(0, kept.offset - len(before))) == before

    def kept(self) -> position.KeptFile:
        """Where the first line begins that was not handed out."""
        offset = self.position - len(self._rest)
        return position.KeptFile(self.inode, self.generation, offset, self._line_end.hex(), self._written_ns)

    def read(self, most: int, lines: list[Line]) -> tuple[int, int]:
        """Adds complete lines; how many bytes were read, and how many of over-long lines left out."""
        status = os.fstat(self._fd)
        if status.st_size < self.position:
            self._again()
        self._written_ns = status.st_mtime_ns
        read = cut = 0
        while read < most:
            checked = len(self._before)
            size = min(_CHUNK, most - read)
            data = os.pread(self._fd, checked + size, self.position - checked)
            if data[:checked] != self._before:
                self._again()
                continue
            fresh = data[checked:]
            if not fresh:
                break
            cut += self._take(fresh, lines)
            self._before = data[-position.BEFORE :]
            self.position += len(fresh)
            read += len(fresh)
        self.quiet = 0 if read else self.quiet + 1
        return read, cut

    def peek_end(self, most: int) -> Iterator[Line]:
        """Complete lines of the last `most` bytes."""
        try:
            size = os.fstat(self._fd).st_size
            begin = max(0, size - most)
            data = os.pread(self._fd, most, begin)
        except OSError:
            return
        pieces = _ENDS.split(data)[:-1]
        for index, piece in enumerate(pieces):
            if piece and (index or not begin):
                yield Line(piece, self.inode, self.generation, begin)
            begin += len(piece) + 1

    def last(self) -> list[Line]:
        """The line that never got its end, once nothing more is to come."""
        rest, self._rest = self._rest, b""
        if not rest or self._dropping:
            return []
        return [Line(rest, self.inode, self.generation, self.position - len(rest))]

    def behind(self) -> int:
        """Bytes that are there and not read."""
        try:
            return max(0, os.fstat(self._fd).st_size - self.position)
        except OSError:
            return 0

    def nameless(self) -> bool:
        """Whether it was deleted: nobody can give it a reader, and we hold its room on disk."""
        return os.fstat(self._fd).st_nlink == 0

    def mtime_ns(self) -> int:
        """When it was last written."""
        return os.fstat(self._fd).st_mtime_ns

    def close(self) -> None:
        """Once."""
        os.close(self._fd)

    def _again(self) -> None:
        """Truncated: from its beginning, over the hole that a writer leaves who keeps his own position."""
        self.truncated = self.kept()
        self.generation += 1
        self._line_end = b""
        self._rest, self._before, self._dropping, self._unasked = b"", b"", False, False
        self.position = 0
        try:
            self.position = os.lseek(self._fd, 0, os.SEEK_DATA)
        except OSError:  # nothing but a hole, or a filesystem that does not tell
            self.position = 0

    def _take(self, fresh: bytes, lines: list[Line]) -> int:
        begin = self.position - len(self._rest)
        data = self._rest + fresh
        pieces = _ENDS.split(data)
        self._rest = pieces.pop()
        cut = 0
        for piece in pieces:
            if self._dropping:
                cut += 0 if self._unasked else len(piece)
                self._dropping = self._unasked = False
            elif piece:
                whole = piece.lstrip(b"\0")
                if whole:
                    lines.append(Line(whole[:LONGEST_LINE], self.inode, self.generation, begin))
                    cut += max(0, len(whole) - LONGEST_LINE)
            begin += len(piece) + 1
        if self._dropping:
            cut += 0 if self._unasked else len(self._rest)
            self._rest = b""
        elif len(self._rest) > LONGEST_LINE:
            lines.append(Line(self._rest[:LONGEST_LINE], self.inode, self.generation, begin))
            cut += len(self._rest) - LONGEST_LINE
            self._rest, self._dropping = b"", True
        ended = data[: len(data) - len(self._rest)]
        self._line_end = (self._line_end + ended[-position.BEFORE :])[-position.BEFORE :]
        return cut
