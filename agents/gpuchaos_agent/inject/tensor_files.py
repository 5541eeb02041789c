"""Where the weights are in a checkpoint or tensor file: the bytes of tensors, and not those that describe them.

Read by parsers of our own, which trust no length in the file: safetensors (8 bytes of length, a JSON header, then the
tensors), what `torch.save` writes since 1.6 (a zip with `NAME/data.pkl` and one
entry `NAME/data/N` a storage), numpy's `.npy` (a header, then the array) and `.npz` (a zip of them). Entries of a zip
are found by its central directory (APPNOTE 6.3, zip64 included); those that are deflated hold no weight that a bit
could be flipped of, only a stream that would break.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

#: The safetensors library takes no longer header.
_LONGEST_HEADER: Final = 100_000_000
#: A zip's end record is within this of the file's end: 22 bytes and a comment of up to 65,535.
_END_WITHIN: Final = 22 + 65_535
_LARGEST_DIRECTORY: Final = 64 << 20
_FULL: Final = 0xFFFF_FFFF
_STORAGE: Final = re.compile(r"(?P<root>(?:.*/)?)data/\d+\Z")
_MAGIC: Final = b"\x93NUMPY"


class NotUnderstoodError(Exception):
    """The file is of no format that is known here, or is damaged; the text says which."""


@dataclass(frozen=True, slots=True)
class Region:
    """The bytes of one tensor (of one storage in a torch file): from `start`, `length` of them."""

    name: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Tensors:
    """What the file is, and its tensors' bytes, in order, none empty, none beyond the end. `deflated` were left out."""

    kind: str
    regions: tuple[Region, ...]
    deflated: int = 0

    @property
    def length(self) -> int:
        """Bytes of all of them."""
        return sum(region.length for region in self.regions)


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    method: int
    size: int
    header: int


def read(descriptor: int) -> Tensors:
    """The tensors of an open file.

    Raises:
        NotUnderstoodError: see there.
        OSError: it cannot be read.
    """
    size = os.fstat(descriptor).st_size
    head = os.pread(descriptor, 16, 0)
    try:
        if head.startswith(b"PK\x03\x04"):
            return _zip(descriptor, size)
        if head.startswith(_MAGIC):
            return Tensors("npy", (_within(Region("array", *_npy(descriptor, 0, size)), size),))
        return _safetensors(descriptor, size, head)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NotUnderstoodError(f"it is damaged: {error}") from error


def _safetensors(descriptor: int, size: int, head: bytes) -> Tensors:
    length = struct.unpack_from("<Q", head)[0] if len(head) >= 8 else 0
    if not 2 <= length <= min(_LONGEST_HEADER, size - 8) or head[8:9] != b"{":
        raise NotUnderstoodError("it is neither safetensors, nor what torch.save writes since 1.6, nor npy or npz")
    header = json.loads(_exactly(descriptor, length, 8))
    found = []
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        first, last = tensor["data_offsets"]
        if not isinstance(first, int) or not isinstance(last, int) or not 0 <= first <= last:
            raise NotUnderstoodError(f"tensor {name[:100]!r} has no offsets")
        if last > first:
            found.append(_within(Region(name, 8 + length + first, last - first), size))
    return Tensors("safetensors", tuple(sorted(found, key=lambda region: region.start)))


def _zip(descriptor: int, size: int) -> Tensors:
    entries = list(_entries(descriptor, size))
    roots = {entry.name.removesuffix("data.pkl") for entry in entries if _ends(entry.name, "data.pkl")}
    torch = [entry for entry in entries if (at := _STORAGE.match(entry.name)) and at["root"] in roots]
    arrays = [] if torch else [entry for entry in entries if entry.name.endswith(".npy")]
    found: list[Region] = []
    deflated = 0
    for entry in torch or arrays:
        if entry.method:
            deflated += 1
            continue
        start = _data(descriptor, entry)
        end = start + entry.size
        if arrays and entry.size:
            start, length = _npy(descriptor, start, end)
            end = start + length
        if end > start:
            found.append(_within(Region(entry.name, start, end - start), size))
    if not torch and not arrays:
        raise NotUnderstoodError("it is a zip, and neither what torch.save writes nor npz")
    return Tensors(
        "torch" if torch else "npz", tuple(sorted(found, key=lambda region: region.start)), deflated=deflated
    )


def _entries(descriptor: int, size: int) -> Iterator[_Entry]:
    """The entries by the central directory."""
    tail_at = max(0, size - _END_WITHIN)
    tail = os.pread(descriptor, _END_WITHIN, tail_at)
    end = tail.rfind(b"PK\x05\x06")
    if end < 0:
        raise NotUnderstoodError("it begins as a zip and does not end as one")
    count, length, start = struct.unpack_from("<HLL", tail, end + 10)
    locator = tail.rfind(b"PK\x06\x07", 0, end)
    if locator >= 0 and locator == end - 20:
        record = _exactly(descriptor, 56, struct.unpack_from("<Q", tail, locator + 8)[0])
        if record[:4] != b"PK\x06\x06":
            raise NotUnderstoodError("its zip64 end record is damaged")
        count, length, start = struct.unpack_from("<QQQ", record, 32)
    if length > _LARGEST_DIRECTORY or start + length > size:
        raise NotUnderstoodError("its directory is damaged")
    directory = _exactly(descriptor, length, start)
    at = 0
    for _ in range(count):
        if directory[at : at + 4] != b"PK\x01\x02":
            raise NotUnderstoodError("its directory is damaged")
        method = struct.unpack_from("<H", directory, at + 10)[0]
        packed, plain, name_length, extra_length, note_length = struct.unpack_from("<LLHHH", directory, at + 20)
        header = struct.unpack_from("<L", directory, at + 42)[0]
        name = directory[at + 46 : at + 46 + name_length].decode("utf-8", "replace")
        extra = directory[at + 46 + name_length : at + 46 + name_length + extra_length]
        packed, header = _sixty_four(extra, packed, plain, header)
        yield _Entry(name, method, packed, header)
        at += 46 + name_length + extra_length + note_length


def _sixty_four(extra: bytes, packed: int, plain: int, header: int) -> tuple[int, int]:
    """Packed size and header offset where they are in the zip64 field: only those that overflowed, in this order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            values = iter(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            if plain == _FULL:
                next(values, None)
            packed = next(values, packed) if packed == _FULL else packed
            header = next(values, header) if header == _FULL else header
        at += 4 + length
    return packed, header


def _data(descriptor: int, entry: _Entry) -> int:
    """Where an entry's bytes begin: its local header has lengths of its own (torch pads it to 64 bytes)."""
    local = _exactly(descriptor, 30, entry.header)
    if local[:4] != b"PK\x03\x04":
        raise NotUnderstoodError(f"entry {entry.name[:100]!r} has no header")
    name_length, extra_length = struct.unpack_from("<HH", local, 26)
    return entry.header + 30 + int(name_length) + int(extra_length)


def _npy(descriptor: int, start: int, end: int) -> tuple[int, int]:
    """Where an array's values begin, and how many bytes they are (numpy/lib/format.py, versions 1 to 3)."""
    head = _exactly(descriptor, 12, start)
    if head[:6] != _MAGIC:
        raise NotUnderstoodError("an array has no header")
    short = head[6] == 1
    length = struct.unpack_from("<H" if short else "<L", head, 8)[0] + (10 if short else 12)
    if start + length > end:
        raise NotUnderstoodError("an array's header is longer than the array")
    if re.search(rb"'descr':\s*'\|?O", _exactly(descriptor, length, start)):
        raise NotUnderstoodError("an array holds pickled objects and no numbers")
    return start + length, end - start - length


def _exactly(descriptor: int, length: int, at: int) -> bytes:
    found = os.pread(descriptor, length, at)
    if len(found) != length:
        raise NotUnderstoodError("it is cut short")
    return found


def _within(region: Region, size: int) -> Region:
    if region.length <= 0 or region.start + region.length > size:
        raise NotUnderstoodError(f"tensor {region.name[:100]!r} lies beyond the end of the file, or is empty")
    return region


def _ends(name: str, last: str) -> bool:
    return name == last or name.endswith(f"/{last}")
