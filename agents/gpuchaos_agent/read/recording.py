"""A recording opened: a file, a pipe or standard input, unpacked where it is packed, with its beginning looked at."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from gpuchaos_agent.read.base import HEAD
from gpuchaos_stream.errors import UserError

#: The name of standard input.
STDIN: Final = "-"
#: First bytes → what packed it, and how it is unpacked by hand; None is done here.
_PACKED: Final[dict[bytes, tuple[str, str | None]]] = {
    b"\x1f\x8b": ("gzip", None),
    b"BZh": ("bzip2", None),
    b"\xfd7zXZ\0": ("xz", None),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc FILE | gpuchaos-agent read -"),
    b"PK\x03\x04": ("zip", "unzip -p FILE | gpuchaos-agent read -"),
    b"LPKSHHRH": ("a journal's own file", "journalctl -o json --file FILE | gpuchaos-agent read -"),
    b"\xff\xfe": ("UTF-16", "iconv -f UTF-16 -t UTF-8 FILE | gpuchaos-agent read -"),
    b"\xfe\xff": ("UTF-16", "iconv -f UTF-16 -t UTF-8 FILE | gpuchaos-agent read -"),
}
_BOM: Final = b"\xef\xbb\xbf"
#: Control characters that texts have: tab, line feed, form feed, carriage return, escape. NUL is counted apart.
_OF_TEXT: Final = frozenset(b"\t\n\f\r\x1b\0")
_CONTROLS: Final = bytes(byte for byte in range(32) if byte not in _OF_TEXT) + b"\x7f"
#: Of a text at most this share is other control characters (journald's lengths, a terminal's bells).
_MOST_CONTROLS: Final = 0.03


@dataclass(frozen=True, slots=True)
class Recording:
    """`name` is how messages name it; `head` the first `HEAD` bytes, which `stream` gives again."""

    name: str
    head: bytes
    stream: BinaryIO


@contextmanager
def opened(path: Path) -> Iterator[Recording]:
    """The recording at `path`, `-` for standard input.

    Raises:
        UserError: it is not there, not to be read, or no text.
    """
    name = "standard input" if str(path) == STDIN else shown(str(path))
    try:
        with _raw(path) as raw:
            stream, packed = _unpacked(raw, name)
            head = stream.read(HEAD)
            if head.startswith(_BOM):
                head = head[len(_BOM) :] + stream.read(len(_BOM))
            if packed is not None and packed.broken and not head:
                raise UserError(name, f"is packed and broken: {packed.broken}", "copy it again")
            if _is_binary(head):
                raise UserError(name, "is no text", "name a log, a table or a capture; unpack it first if it is packed")
            yield Recording(name, head, io.BufferedReader(_Again(head, stream)))
            if packed is not None and packed.broken:
                raise UserError(name, f"is packed and broken: {packed.broken}", "what stands before that was read")
    except BrokenPipeError:
        raise  # no read breaks a pipe: whoever read what is printed has gone
    except OSError as error:
        fix = "is that file whole?" if error.errno is None else _FIXES.get(error.errno, "name a file that can be read")
        raise UserError(name, f"cannot be read: {error.strerror or error}", fix) from error


#: What to do about an error of opening.
_FIXES: Final = {
    errno.ENOENT: "name a file that is there",
    errno.EISDIR: "name a file in that folder",
    errno.EACCES: "read it as a user who may, or copy it",
    errno.EPERM: "read it as a user who may, or copy it",
}


def shown(name: str) -> str:
    """A text for a terminal: control characters, which could drive it, as escapes."""
    if name.isprintable():
        return name
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in name)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")


def _raw(path: Path) -> io.BufferedReader[Any]:
    if str(path) == STDIN:
        return os.fdopen(os.dup(0), "rb")
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return path.open("rb")


def _unpacked(raw: io.BufferedReader[Any], name: str) -> tuple[io.BufferedReader[Any], _Unpacked | None]:
    begin = raw.read(8)
    again = io.BufferedReader(_Again(begin, raw))
    for magic, (what, by_hand) in _PACKED.items():
        if begin.startswith(magic):
            if by_hand is not None:
                raise UserError(name, f"is {what}", by_hand)
            unpacked = _unpacker(what, again)
            return io.BufferedReader(unpacked), unpacked
    return again, None


def _unpacker(what: str, packed: BinaryIO) -> _Unpacked:
    # Imported where there is something to unpack.
    if what == "gzip":
        import gzip  # noqa: PLC0415
        import zlib  # noqa: PLC0415

        return _Unpacked(gzip.GzipFile(fileobj=packed, mode="rb"), (zlib.error, EOFError, gzip.BadGzipFile))
    if what == "bzip2":
        import bz2  # noqa: PLC0415

        return _Unpacked(bz2.BZ2File(packed, "rb"), (EOFError, OSError, ValueError))
    import lzma  # noqa: PLC0415

    return _Unpacked(lzma.LZMAFile(packed, "rb"), (EOFError, lzma.LZMAError))


class _Unpacked(io.RawIOBase):
    """What a packed file holds, up to where it is broken: `broken` is how, once that was reached."""

    def __init__(self, file: Any, errors: tuple[type[Exception], ...]) -> None:
        self.broken = ""
        self._file = file
        self._errors = errors

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            piece = b"" if self.broken else self._file.read1(len(buffer))
        except self._errors as error:
            self.broken, piece = str(error) or type(error).__name__, b""
        buffer[: len(piece)] = piece
        return len(piece)


class _Again(io.RawIOBase):
    """A stream whose beginning was taken already: a pipe cannot be wound back."""

    def __init__(self, head: bytes, rest: io.BufferedReader[Any]) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = len(buffer)
        piece, self._head = self._head[:size], self._head[size:]
        piece = piece or self._rest.read1(size)
        buffer[: len(piece)] = piece
        return len(piece)


def _is_binary(head: bytes) -> bool:
    """Runs of NUL are what a crash leaves in a log; scattered among letters they are UTF-16 or a program."""
    text = head.replace(b"\0", b"")
    if not text:
        return bool(head)
    controls = len(text) - len(text.translate(None, _CONTROLS))
    scattered = len(head) - len(text) - (head.count(b"\0\0\0\0") * 4)
    return controls > _MOST_CONTROLS * len(text) or scattered > len(text) // 4
