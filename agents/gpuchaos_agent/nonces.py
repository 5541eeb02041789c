"""What has been carried out already: ids and nonces of commands, and what must not begin any more. On disk.

An append-only file, one JSON line each, flushed to the disk before the command is obeyed: a crash in between
loses the command, which its lease-holder notices, rather than obeying it twice. Lines are kept until their
end and dropped when the file is next written whole.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

#: Lines in the file before it is first rewritten without what has ended; then whenever it has doubled.
_COMPACT_AT: Final = 4096


class Seen:
    """A set of keys on disk, each with an end in epoch seconds. A torn or foreign line is passed over and counted.

    Raises:
        OSError: from the constructor and `add`, where the disk refuses.
    """

    def __init__(self, path: Path, *, now: float) -> None:
        self._path = path
        self._until: dict[str, float] = {}
        self.damaged = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._read()
        self._lines = self._kept = len(self._until)
        self._write_whole(now)

    def __contains__(self, key: str) -> bool:
        return key in self._until

    def add(self, *keys: str, until: float, now: float) -> None:
        """Remembers `keys` until `until`, durably, before it returns."""
        for key in keys:
            self._until[key] = max(until, self._until.get(key, 0.0))
        self._lines += len(keys)
        if self._lines > max(_COMPACT_AT, 2 * self._kept):
            self._write_whole(now)
            return
        text = "".join(json.dumps({"key": key, "until": self._until[key]}) + "\n" for key in keys)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        try:
            text = self._path.read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            try:
                item = json.loads(line)
                self._until[str(item["key"])] = float(item["until"])
            except (ValueError, KeyError, TypeError):
                self.damaged += 1

    def _write_whole(self, now: float) -> None:
        self._until = {key: until for key, until in self._until.items() if until > now}
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with fresh.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"key": key, "until": until}) + "\n" for key, until in self._until.items())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self._lines = self._kept = len(self._until)
