"""The run's metadata: into a database, and beside it in a cache that goes on where the database is away.

Every record is in the cache (SQLite) first and is written to the database afterwards, in order, each once: its number
is its key there. What is asked of the database (the setting `lr_scale`) is answered from the cache meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import SplitResult, urlsplit

from workload.lines import Refrain, say
from workload.postgres import DatabaseError, Postgres, quoted
from workload.redis import Redis
from workload.settings import write_json

_TICK_S: Final = 0.5
_TIMEOUT_S: Final = 2.0
#: A connection is opened anew after so long, as pools do: a server that lets nobody in any more is noticed.
_OLDEST_S: Final = 10.0
#: Records written at once.
_MOST: Final = 200
_SETTING: Final = "lr_scale"


class _Database(Protocol):
    def write(self, run: str, rows: list[tuple[int, str]]) -> None: ...
    def setting(self, name: str) -> str | None: ...
    def close(self) -> None: ...


class _InPostgres:
    def __init__(self, url: SplitResult) -> None:
        self._client = Postgres(url, _TIMEOUT_S)
        self._client.query(
            "CREATE TABLE IF NOT EXISTS workload_records (run text, number bigint, record text, "
            "PRIMARY KEY (run, number));"
            "CREATE TABLE IF NOT EXISTS workload_settings (name text PRIMARY KEY, value text)"
        )
        self.close = self._client.close

    def write(self, run: str, rows: list[tuple[int, str]]) -> None:
        values = ", ".join(f"({quoted(run)}, {number}, {quoted(record)})" for number, record in rows)
        self._client.query(f"INSERT INTO workload_records VALUES {values} ON CONFLICT DO NOTHING")  # noqa: S608  (quoted)

    def setting(self, name: str) -> str | None:
        rows = self._client.query(f"SELECT value FROM workload_settings WHERE name = {quoted(name)}")  # noqa: S608
        return rows[0][0] if rows else None


class _InRedis:
    def __init__(self, url: SplitResult) -> None:
        self._client = Redis(url, _TIMEOUT_S)
        self.close = self._client.close

    def write(self, run: str, rows: list[tuple[int, str]]) -> None:
        self._client.command("HSET", f"workload:records:{run}", *(text for row in rows for text in map(str, row)))

    def setting(self, name: str) -> str | None:
        found = self._client.command("HGET", "workload:settings", name)
        return None if found is None else str(found)


def problem(url: str) -> str:
    """Why a URL names no database; empty where it does."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("postgresql", "postgres", "redis") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        return str(error)
    return "" if known else "a database is postgresql://USER[:PASSWORD]@HOST:PORT/NAME or redis://HOST:PORT"


class Metadata:
    """Records of one run, by a thread; nobody waits for it."""

    def __init__(self, run: str, url: str, cache: Path, stats: Path) -> None:
        self._run = run
        self._url = urlsplit(url)
        self._cache = cache
        self._stats_file = stats
        self._new: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._unkept: list[str] = []
        self._database: _Database | None = None
        self._opened = 0.0
        self._refrain = Refrain(5.0)
        self._stopping = threading.Event()
        self._stats: dict[str, Any] = {
            "state": "unknown",
            "server": f"{self._url.hostname}:{self._url.port}",
            "from_database": 0,
            "from_cache": 0,
            "errors": 0,
            "written": 0,
            "waiting": 0,
            "last_error": "",
        }
        self.lr_scale = 1.0
        self._thread = threading.Thread(target=self._work, name="metadata", daemon=True)
        self._thread.start()

    def record(self, kind: str, step: int, **more: object) -> None:
        """Takes a record down."""
        self._new.put(json.dumps({"kind": kind, "step": step, "time": round(time.time(), 3), **more}))

    def close(self, timeout: float = 2 * _TIMEOUT_S) -> None:
        """Writes what can be written and ends."""
        self._stopping.set()
        self._thread.join(timeout)

    def _work(self) -> None:
        with contextlib.closing(sqlite3.connect(self._cache, timeout=1.0, isolation_level=None)) as cache:
            with contextlib.suppress(sqlite3.Error):
                cache.execute("PRAGMA synchronous = OFF")
                cache.execute(
                    "CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT, "
                    "sent INTEGER DEFAULT 0)"
                )
                cache.execute("CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT)")
            while True:
                last = self._stopping.wait(_TICK_S)
                try:
                    self._keep(cache)
                    self._write(cache)
                except sqlite3.Error as error:
                    self._refrain.say(f"[rank0]: metadata cache: sqlite3.{type(error).__name__}: {error}")
                with contextlib.suppress(OSError):
                    write_json(self._stats_file, self._stats)
                if last:
                    break

    def _keep(self, cache: sqlite3.Connection) -> None:
        while True:
            try:
                self._unkept.append(self._new.get_nowait())
            except queue.Empty:
                break
        if self._unkept:
            cache.execute("BEGIN")
            try:
                cache.executemany("INSERT INTO records (record) VALUES (?)", [(record,) for record in self._unkept])
                cache.execute("COMMIT")
            except sqlite3.Error:
                with contextlib.suppress(sqlite3.Error):
                    cache.execute("ROLLBACK")
                raise
            self._unkept.clear()

    def _write(self, cache: sqlite3.Connection) -> None:
        query = "SELECT number, record FROM records WHERE sent = 0 ORDER BY number LIMIT ?"
        waited = cache.execute("SELECT count(*) FROM records WHERE sent = 0").fetchone()[0]
        try:
            if self._database is not None and time.monotonic() - self._opened > _OLDEST_S:
                self._database.close()
                self._database = None
            if self._database is None:
                self._opened = time.monotonic()
                self._database = (_InRedis if self._url.scheme == "redis" else _InPostgres)(self._url)
            value = self._database.setting(_SETTING)
            rows = cache.execute(query, (_MOST,)).fetchall()
            if rows:
                self._database.write(self._run, rows)
                cache.execute("UPDATE records SET sent = 1 WHERE number <= ?", (rows[-1][0],))
            cache.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (_SETTING, value))
        except DatabaseError as error:
            self._away(cache, str(error), waited)
            return
        if self._stats["state"] == "down":
            say(f"[rank0]: metadata database is back; {waited} records waited in the cache")
        self._take(value)
        self._stats |= {
            "state": "up",
            "from_database": self._stats["from_database"] + 1,
            "written": self._stats["written"] + len(rows),
            "waiting": waited - len(rows),
            "last_error": "",
        }

    def _away(self, cache: sqlite3.Connection, why: str, waiting: int) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        row = cache.execute("SELECT value FROM settings WHERE name = ?", (_SETTING,)).fetchone()
        self._take(row[0] if row else None)
        self._stats |= {
            "state": "down",
            "from_cache": self._stats["from_cache"] + 1,
            "errors": self._stats["errors"] + 1,
            "waiting": waiting,
            "last_error": why,
        }
        self._refrain.say(f"[rank0]: {why}\n[rank0]: metadata goes into the cache; {waiting} records wait", why)

    def _take(self, value: str | None) -> None:
        with contextlib.suppress(ValueError):
            self.lr_scale = float(value) if value else 1.0
