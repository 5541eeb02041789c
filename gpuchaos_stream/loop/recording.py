"""A recording: everything that travelled, as compressed JSON lines, so that it can be judged again elsewhere.

The first line is the header: what besides the records a judgement depends on (rules, trusted public keys).
Each further line is one record: topic, partition, offset, broker time, key, headers, and its value as text, or
in base64 where it is not UTF-8. Lines are in the order of arrival; a reader that wants time order sorts.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import zstandard

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.signing import KeyRing

FORMAT: Final = "gpuchaos-recording/1"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One record of a recording. `timestamp` is the broker's append time in milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Header:
    """What a judgement depends on besides the records. `rules` maps a file name to its text."""

    keyring: KeyRing
    rules: dict[str, str] = field(default_factory=dict)


class Writer:
    """Writes a recording; a context manager. What was written is readable even if the writer is killed later."""

    #: Records between two flushes: what a kill may cost.
    FLUSH_EVERY: Final = 200

    def __init__(self, path: Path, header: Header) -> None:
        self._file = path.open("wb")
        self._stream = zstandard.ZstdCompressor(level=6).stream_writer(self._file)
        self.count = 0
        self._line({"format": FORMAT, "keyring": json.loads(header.keyring.model_dump_json()), "rules": header.rules})
        self._flush()

    def write(self, record: Recorded) -> None:
        """Appends one record."""
        self._line(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": _text(record.key),
                "headers": {name: _text(value) for name, value in record.headers},
                "value": _text(record.value),
            }
        )
        self.count += 1
        if self.count % self.FLUSH_EVERY == 0:
            self._flush()

    def _line(self, body: dict[str, Any]) -> None:
        self._stream.write(json.dumps(body, separators=(",", ":")).encode() + b"\n")

    def _flush(self) -> None:
        self._stream.flush(zstandard.FLUSH_BLOCK)
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.flush(zstandard.FLUSH_FRAME)
        self._file.close()


def read(path: Path) -> tuple[Header, Iterator[Recorded]]:
    """Header and records of a recording, in the order of the file; a cut last line ends it quietly.

    Raises:
        UserError: the file cannot be read or is no recording; a line in the middle is broken (with its number).
    """
    lines = _lines(path)
    try:
        number, first = next(lines)
        body = json.loads(first)
        if body.get("format") != FORMAT:
            raise UserError(f"{path}:{number}", f"format is {body.get('format')!r}, not {FORMAT!r}")
        header = Header(KeyRing.model_validate(body["keyring"]), dict(body["rules"]))
    except (StopIteration, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(str(path), f"is no recording ({error})", "make one with `gpuchaos record`") from error
    return header, _records(path, lines)


def _records(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[Recorded]:
    for number, line in lines:
        try:
            body = json.loads(line)
            yield Recorded(
                topic=body["topic"],
                partition=int(body["partition"]),
                offset=int(body["offset"]),
                timestamp=int(body["timestamp"]),
                key=_bytes(body["key"]),
                value=_bytes(body["value"]),
                headers=tuple((name, _bytes(value) or b"") for name, value in body["headers"].items()),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if not line.endswith(b"\n"):
                return
            raise UserError(f"{path}:{number}", f"is no record ({error})", "the file is damaged there") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            yield from enumerate(io.BufferedReader(stream, 1 << 20), start=1)
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})", "check the path") from error
    except zstandard.ZstdError as error:
        raise UserError(str(path), f"is no Zstandard file ({error})", "make one with `gpuchaos record`") from error


def _text(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _bytes(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, dict):
        return base64.b64decode(value["base64"], validate=True)
    return str(value).encode()
