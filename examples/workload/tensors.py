"""Tensors in a file: the safetensors form (length, JSON header, bytes), with a digest for each tensor."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any, Final

#: A header beyond this is none, bytes.
_LARGEST_HEADER: Final = 1 << 20


def pack(tensors: Mapping[str, tuple[tuple[int, ...], bytes]]) -> bytes:
    """A file's content, of 32-bit floats by name."""
    header: dict[str, Any] = {}
    at = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return b"".join((struct.pack("<Q", len(head)), head, *(data for _, data in tensors.values())))


def unpack(content: bytes) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """The tensors of a file's content.

    Raises:
        ValueError: it is no such file.
    """
    if len(content) < 8:
        raise ValueError("shorter than its header")
    (length,) = struct.unpack("<Q", content[:8])
    if length > min(_LARGEST_HEADER, len(content) - 8):
        raise ValueError("the header is longer than the file")
    try:
        header = json.loads(content[8 : 8 + length])
        found = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            shape = tuple(int(size) for size in entry["shape"])
            data = content[8 + length + begin : 8 + length + end]
            if entry["dtype"] != "F32" or len(data) != end - begin:
                raise ValueError(f"{name} is cut or of another type")
            found[str(name)] = (shape, data)
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"the header is damaged ({type(error).__name__})") from error
    return found


def digests(content: bytes) -> dict[str, str]:
    """SHA-256 of each tensor's shape and bytes.

    Raises:
        ValueError: it is no such file.
    """
    return {
        name: hashlib.sha256(f"{shape}".encode() + data).hexdigest() for name, (shape, data) in unpack(content).items()
    }
