"""What waits to be sent: telemetry in a ring in memory, fault events in a file that outlives the agent.

While the broker is away the oldest telemetry is dropped and counted; fault events never are. A fault event is in
the file before `put` returns, is sent in order, and is sent again after a restart unless its acknowledgement was
noted: at least once, under the same id.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Final

import structlog

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.envelope import Record

_log = structlog.get_logger(__name__)

#: Sent bytes at the head of the file that are worth rewriting it for.
_COMPACT_BYTES: Final = 1_000_000
_READ_BYTES: Final = 1 << 16


class Ring:
    """The newest `size` records of telemetry. `dropped` counts those that had to make room."""

    def __init__(self, size: int) -> None:
        self._records: deque[Record] = deque(maxlen=size)
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._records)

    def put(self, record: Record) -> None:
        """Adds the newest; the oldest goes where there is no room."""
        if len(self._records) == self._records.maxlen:
            self.dropped += 1
        self._records.append(record)

    def pop(self) -> Record | None:
        """Takes out the oldest, None where there is none."""
        return self._records.popleft() if self._records else None


class Spool:
    """A queue of records in one file of JSON lines, safe against a kill of the process, for several threads.

    At most `in_memory` records are held in memory, however long the file has become. Where the disk refuses,
    records stay in memory and `degraded` is true: sending them is then still tried, surviving a kill is not promised.
    """

    def __init__(self, path: Path, *, in_memory: int = 1000) -> None:
        self._path = path
        self._in_memory = in_memory
        self._lock = threading.Lock()
        self._head: deque[tuple[Record, int]] = deque()  # record, its length in the file
        self._sent = 0  # bytes at the head of the file that are acknowledged
        self._read = 0  # bytes of the file that went into `_head`
        self._size = 0
        self._descriptor: int | None = None
        self._homeless: deque[Record] = deque()
        self.damaged = 0
        with self._lock:
            self._open()

    @property
    def degraded(self) -> bool:
        """Whether the disk refused records that now live in memory alone."""
        return bool(self._homeless)

    @property
    def pending_bytes(self) -> int:
        """Bytes on disk that are not acknowledged."""
        return self._size - self._sent

    def put(self, record: Record) -> None:
        """Adds a record; it is in the file, and so survives a kill, when this returns. Never raises."""
        line = _to_line(record)
        with self._lock:
            if self._descriptor is None:
                self._open()
            if self._descriptor is None or not self._append(self._descriptor, line):
                self._homeless.append(record)
                return
            if self._read == self._size and len(self._head) < self._in_memory:
                self._head.append((record, len(line)))
                self._read += len(line)
            self._size += len(line)

    def peek(self, limit: int) -> list[Record]:
        """The oldest records that are not acknowledged, oldest first; `ack` takes them out."""
        with self._lock:
            if len(self._head) < limit:
                self._refill()
            found = [record for record, _ in islice(self._head, limit)]
            return found or list(islice(self._homeless, limit))

    def ack(self, count: int) -> None:
        """The first `count` records of `peek` are on the broker."""
        with self._lock:
            if not self._head:
                for _ in range(min(count, len(self._homeless))):
                    self._homeless.popleft()
                return
            for _ in range(min(count, len(self._head))):
                self._sent += self._head.popleft()[1]
            try:
                self._shorten()
            except OSError as error:
                _log.warning("outbox not shortened", error=str(error), path=str(self._path))

    def close(self) -> None:
        """Closes the file; what is in it is sent after the next start."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _open(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            size = os.fstat(self._descriptor).st_size
            # Where a kill came in the middle of a line, the line is ended; it will be passed over.
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                size += os.pwrite(self._descriptor, b"\n", size)
            self._size = size
        except OSError as error:
            _log.error("no outbox on disk", error=str(error), path=str(self._path))

    def _append(self, descriptor: int, line: bytes) -> bool:
        try:
            if os.pwrite(descriptor, line, self._size) == len(line):
                return True
            os.ftruncate(descriptor, self._size)
            problem = "no room"
        except OSError as error:
            problem = str(error)
        _log.error("fault event not on disk", error=problem, path=str(self._path))
        return False

    def _refill(self) -> None:
        while self._descriptor is not None and self._read < self._size and len(self._head) < self._in_memory:
            try:
                data = os.pread(self._descriptor, _READ_BYTES, self._read)
                while b"\n" not in data and self._read + len(data) < self._size:
                    data += os.pread(self._descriptor, _READ_BYTES, self._read + len(data))
            except OSError as error:
                _log.error("outbox not readable", error=str(error), path=str(self._path))
                return
            for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
                if len(self._head) >= self._in_memory:
                    return
                self._read += len(line)
                self._take(line)

    def _take(self, line: bytes) -> None:
        record = _from_line(line)
        if record is not None:
            self._head.append((record, len(line)))
            return
        self.damaged += 1
        if self._head:  # a damaged line is acknowledged with the record before it
            last, length = self._head[-1]
            self._head[-1] = (last, length + len(line))
        else:
            self._sent += len(line)

    def _shorten(self) -> None:
        if self._descriptor is None:
            return
        if self._sent == self._size:
            os.ftruncate(self._descriptor, 0)
            self._sent = self._read = self._size = 0
        elif self._sent > _COMPACT_BYTES and self._sent > self._size // 2:
            self._rewrite(self._descriptor)

    def _rewrite(self, old: int) -> None:
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        at = self._sent
        with fresh.open("wb") as file:
            while at < self._size and (chunk := os.pread(old, _READ_BYTES, at)):
                file.write(chunk)
                at += len(chunk)
        descriptor = os.open(fresh, os.O_RDWR | os.O_CLOEXEC)
        fresh.replace(self._path)
        os.close(old)
        self._descriptor = descriptor
        self._read -= self._sent
        self._size -= self._sent
        self._sent = 0


def _to_line(record: Record) -> bytes:
    item = {
        "topic": record.topic.name,
        "key": record.key,
        "partition_by": record.partition_by,
        "value": record.value.decode(),
        "headers": [(name, value.decode()) for name, value in record.headers],
    }
    return json.dumps(item, separators=(",", ":")).encode() + b"\n"


def _from_line(line: bytes) -> Record | None:
    try:
        item = json.loads(line)
        return Record(
            topic=topics.BY_NAME[item["topic"]],
            key=str(item["key"]),
            partition_by=str(item["partition_by"]),
            value=item["value"].encode(),
            headers=[(str(name), value.encode()) for name, value in item["headers"]],
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
