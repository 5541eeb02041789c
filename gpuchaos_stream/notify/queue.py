"""The durable queue: what was read, what was said, and what is still to be delivered, in one SQLite file.

All three change in one transaction, so that a kill at any moment neither loses a message nor says it anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.notify.backoff import wait
from gpuchaos_stream.notify.book import Told
from gpuchaos_stream.notify.message import Kind, Message
from gpuchaos_stream.notify.receivers.base import Batch
from gpuchaos_stream.notify.routing import Way

#: What was said is remembered so long after it was over, dead letters lie so long, seconds.
KEEP_S: Final = 30 * 86_400.0
#: Messages of one receiver that are looked at for the next batch; the rest wait behind them.
_WINDOW: Final = 2000
_SCHEMA: Final = Path(__file__).with_name("schema.sql")


@dataclass(frozen=True, slots=True)
class Taken:
    """A batch that is to be sent: its rows, how often it was tried before, when its oldest message was made."""

    batch: Batch
    rows: tuple[int, ...]
    tries: int
    made: float


class Queue:
    """One process's queue in `folder`; a second process on the same folder is refused. Times are passed in.

    With `reading` the folder may be another's: it is only looked at.

    Raises:
        UserError: the folder cannot be used, is another's, or holds something else.
    """

    def __init__(self, folder: Path, rng: random.Random, *, reading: bool = False) -> None:
        self._rng = rng
        file = folder / "notify.sqlite"
        self._lock = None if reading else _own(folder)
        if not reading:
            self._make(file)
        elif not file.exists():
            raise UserError(str(file), "is not there", "start gpuchaos notify first, or name its --data-dir")
        self._db = sqlite3.connect(file, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        try:
            if reading:
                self._db.execute("PRAGMA query_only=ON")
                self._db.execute("SELECT 1 FROM outbox")
            else:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.executescript(_SCHEMA.read_text("utf-8"))
        except sqlite3.OperationalError as error:
            self.close()
            raise UserError(
                str(file), f"cannot be used now ({error})", "make room on its disk, and let it be written to"
            ) from error
        except sqlite3.DatabaseError as error:
            self.close()
            raise UserError(str(file), f"is no queue ({error})", "move it away") from error

    def _make(self, file: Path) -> None:
        """The file, before SQLite makes it: what that writes beside it has the file's mode."""
        try:
            os.close(os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            if self._lock is not None:
                os.close(self._lock)
            raise UserError(str(file), f"cannot be written ({error.strerror})", "let its owner run this") from error

    def close(self) -> None:
        """Leaves the file to the next one."""
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing of what happens within."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite ends it by itself on some failures of the disk
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """All or nothing of what happens within, inside a transaction that goes on in any case."""
        self._db.execute("SAVEPOINT attempt")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK TO attempt")
            raise
        finally:
            self._db.execute("RELEASE attempt")

    # What was read.

    def positions(self) -> dict[tuple[str, int], int]:
        """Topic and partition → offset of the next record to read."""
        return {(row["topic"], row["partition"]): row["next"] for row in self._db.execute("SELECT * FROM position")}

    def read_up_to(self, topic: str, partition: int, following: int) -> None:
        """The record before `following` has been heard."""
        self._db.execute("INSERT OR REPLACE INTO position VALUES (?, ?, ?)", (topic, partition, following))

    def experiments(self) -> dict[tuple[str, str], str]:
        """Cluster and id → state, as JSON, of each experiment that runs."""
        rows = self._db.execute("SELECT * FROM experiment ORDER BY cluster, id")
        return {(row["cluster"], row["id"]): row["state"] for row in rows}

    def keep_experiment(self, cluster: str, experiment_id: str, state: str | None) -> None:
        """Remembers the state of a running experiment; None: it is finished."""
        if state is None:
            self._db.execute("DELETE FROM experiment WHERE cluster = ? AND id = ?", (cluster, experiment_id))
        else:
            self._db.execute("INSERT OR REPLACE INTO experiment VALUES (?, ?, ?)", (cluster, experiment_id, state))

    # What was said.

    def told(self, key: str) -> Told | None:
        """What was said last about `key`."""
        row = self._db.execute("SELECT told FROM told WHERE key = ?", (key,)).fetchone()
        return Told.model_validate_json(row["told"]) if row else None

    def tell(self, key: str, told: Told, message: Message, now: float) -> None:
        """Remembers what is said now."""
        values = (key, told.model_dump_json(), told.firing, message.model_dump_json(), now)
        self._db.execute("INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?, ?)", values)

    def open_alerts(self, receiver: str | None = None) -> list[Message]:
        """The alerts that are on, as they stand, oldest first; with `receiver` those that it was told of."""
        rows = self._db.execute("SELECT told, message FROM told WHERE firing ORDER BY changed, key")
        return [
            Message.model_validate_json(row["message"])
            for row in rows
            if receiver is None or receiver in json.loads(row["told"])["receivers"]
        ]

    def count_open(self) -> int:
        """How many alerts are on."""
        count: int = self._db.execute("SELECT COUNT(*) FROM told WHERE firing").fetchone()[0]
        return count

    # What is to be delivered.

    def put(self, message: Message, way: Way, now: float) -> None:
        """Queues a message for one receiver.

        An update that nobody has seen yet is replaced by a newer word, but for one that changes the severity: where
        that is part of an alert's identity, the old one has to be ended.
        """
        if message.kind in (Kind.UPDATED, Kind.RESOLVED):
            self._db.execute(
                "DELETE FROM outbox WHERE receiver = ? AND key = ? AND kind = ? AND batch IS NULL AND dead IS NULL"
                " AND json_extract(message, '$.was') IS NULL",
                (way.receiver, message.key, Kind.UPDATED),
            )
        self._db.execute(
            "INSERT INTO outbox (receiver, key, kind, message, grouping, labels, due, made) VALUES (?,?,?,?,?,?,?,?)",
            (
                way.receiver,
                message.key,
                message.kind,
                message.model_dump_json(),
                way.group,
                json.dumps(way.labels, sort_keys=True),
                now + way.wait,
                now,
            ),
        )

    def take(self, receiver: str, most: int, now: float) -> Taken | None:
        """The batch of at most `most` messages that is due. It is the same one until it is settled.

        Of one alert the messages go in their order, each after the one before is settled.
        """
        disabled, patience = self._receiver(receiver)
        if disabled is not None or patience > now:
            return None
        heads = self._heads(receiver)
        due = [row for row in heads if row["due"] <= now]
        if not due:
            return None
        first = min(due, key=lambda row: (row["due"], row["seq"]))
        if first["batch"] is None:
            rows = [row for row in heads if row["batch"] is None and row["grouping"] == first["grouping"]][:most]
            if first not in rows:
                rows = [first, *rows[: most - 1]]
            ids = [json.loads(row["message"])["id"] for row in rows]
            batch = f"msg_{stable_id('batch', receiver, *ids)}"
            marks = ",".join("?" * len(rows))
            seqs = [row["seq"] for row in rows]
            self._db.execute(f"UPDATE outbox SET batch = ? WHERE seq IN ({marks})", (batch, *seqs))  # noqa: S608  (marks)
        else:
            batch = first["batch"]
            rows = [row for row in heads if row["batch"] == batch]
        return Taken(
            Batch(
                batch,
                tuple(Message.model_validate_json(row["message"]) for row in rows),
                json.loads(first["labels"]),
            ),
            tuple(row["seq"] for row in rows),
            first["tries"],
            min(row["made"] for row in rows),
        )

    def delivered(self, taken: Taken) -> None:
        """The receiver has it."""
        self._each("DELETE FROM outbox WHERE seq = ?", taken)

    def again(self, receiver: str, taken: Taken, reason: str, now: float, asked: float | None = None) -> None:
        """It failed and is tried again; where the receiver `asked` for patience, seconds, nothing else goes before."""
        due = now + wait(taken.tries + 1, self._rng, asked)
        with self.transaction():
            for seq in taken.rows:
                values = (due, taken.tries + 1, reason, seq)
                self._db.execute("UPDATE outbox SET due = ?, tries = ?, reason = ? WHERE seq = ?", values)
            if asked:
                self._set(receiver, "patience", now + asked)

    def hasten(self, receiver: str, now: float) -> None:
        """It works again: what failed before is due now, not minutes later."""
        statement = "UPDATE outbox SET due = MIN(due, ?) WHERE receiver = ? AND dead IS NULL AND tries > 0"
        self._db.execute(statement, (now, receiver))

    def apart(self, taken: Taken, reason: str, now: float) -> None:
        """It was refused as a whole: each of its messages is tried alone, so that one does not spoil the others."""
        with self.transaction():
            for seq in taken.rows:
                self._db.execute(
                    "UPDATE outbox SET batch = NULL, grouping = 'alone/' || seq, due = ?, reason = ? WHERE seq = ?",
                    (now, reason, seq),
                )

    def set_aside(self, taken: Taken, reason: str, now: float) -> None:
        """It will never be taken: a dead letter."""
        with self.transaction():
            for seq in taken.rows:
                self._db.execute("UPDATE outbox SET dead = ?, reason = ? WHERE seq = ?", (now, reason, seq))

    def give_up(self, receiver: str, before: float, now: float) -> int:
        """Sets aside what waits for a receiver since before `before`; returns how many."""
        done = self._db.execute(
            "UPDATE outbox SET dead = ?, reason = 'out of service' WHERE receiver = ? AND dead IS NULL AND made < ?",
            (now, receiver, before),
        )
        return done.rowcount

    def revive(self, receiver: str, now: float) -> int:
        """Puts a receiver's dead letters back into the queue, and the receiver into service; returns how many."""
        with self.transaction():
            done = self._db.execute(
                "UPDATE outbox SET dead = NULL, due = ?, made = ?, tries = 0, batch = NULL"
                " WHERE receiver = ? AND dead IS NOT NULL",
                (now, now, receiver),
            )
            self._set(receiver, "disabled", None)
        return done.rowcount

    def next_due(self, receiver: str) -> float | None:
        """When the next message of a receiver is due; None: there is none, or it is out of service."""
        disabled, patience = self._receiver(receiver)
        heads = self._heads(receiver) if disabled is None else []
        return max(min(row["due"] for row in heads), patience) if heads else None

    def disable(self, receiver: str, fingerprint: str, reason: str) -> None:
        """Takes a receiver out of service until its settings (`fingerprint`) change, or `revive`."""
        with self.transaction():
            self._set(receiver, "disabled", fingerprint)
            self._set(receiver, "reason", reason)

    def disabled(self, receiver: str) -> str | None:
        """The settings' fingerprint with which the receiver was taken out of service, None: it is in service."""
        return self._receiver(receiver)[0]

    def enable(self, receiver: str) -> None:
        """Puts a receiver back into service."""
        self._set(receiver, "disabled", None)

    def standing(self, receiver: str, now: float) -> Mapping[str, float]:
        """`waiting` and `dead`: numbers of messages; `oldest`: age of the oldest waiting one, seconds."""
        row = self._db.execute(
            "SELECT COUNT(*) - COUNT(dead) AS waiting, COUNT(dead) AS dead,"
            " MIN(CASE WHEN dead IS NULL THEN made END) AS oldest FROM outbox WHERE receiver = ?",
            (receiver,),
        ).fetchone()
        oldest = max(0.0, now - row["oldest"]) if row["oldest"] is not None else 0.0
        return {"waiting": row["waiting"], "dead": row["dead"], "oldest": oldest}

    def last_answer(self, receiver: str) -> str:
        """Why what waits for a receiver was not taken at the last attempt; empty where nothing was tried."""
        row = self._db.execute(
            "SELECT reason FROM outbox WHERE receiver = ? AND dead IS NULL AND reason != '' ORDER BY due DESC",
            (receiver,),
        ).fetchone()
        return str(row["reason"]) if row else ""

    def dead_letters(self) -> list[tuple[str, str, str, float]]:
        """Receiver, title, reason and time of each dead letter, oldest first."""
        rows = self._db.execute("SELECT * FROM outbox WHERE dead IS NOT NULL ORDER BY dead, seq")
        return [(row["receiver"], json.loads(row["message"])["title"], row["reason"], row["dead"]) for row in rows]

    # Silences.

    def silences(self, receiver: str) -> dict[str, tuple[str, float]]:
        """Experiment → id and start of the silence that a receiver has for it."""
        rows = self._db.execute("SELECT * FROM silence WHERE receiver = ?", (receiver,))
        return {row["experiment"]: (row["silence"], row["starts"]) for row in rows}

    def keep_silence(self, receiver: str, experiment_id: str, silence_id: str | None, starts: float = 0.0) -> None:
        """Remembers a silence; None: it is gone."""
        if silence_id is None:
            self._db.execute("DELETE FROM silence WHERE receiver = ? AND experiment = ?", (receiver, experiment_id))
        else:
            values = (receiver, experiment_id, silence_id, starts)
            self._db.execute("INSERT OR REPLACE INTO silence VALUES (?, ?, ?, ?)", values)

    def forget(self, now: float) -> None:
        """Drops what was over, and dead letters that were set aside, `KEEP_S` ago."""
        with self.transaction():
            self._db.execute("DELETE FROM told WHERE NOT firing AND changed < ?", (now - KEEP_S,))
            self._db.execute("DELETE FROM outbox WHERE dead < ?", (now - KEEP_S,))

    def _each(self, statement: str, taken: Taken) -> None:
        with self.transaction():
            self._db.executemany(statement, [(seq,) for seq in taken.rows])

    def _heads(self, receiver: str) -> list[sqlite3.Row]:
        """The first waiting message of each alert, in order."""
        rows = self._db.execute(
            "SELECT * FROM outbox WHERE receiver = ? AND dead IS NULL ORDER BY seq LIMIT ?", (receiver, _WINDOW)
        )
        heads: dict[str, sqlite3.Row] = {}
        for row in rows:
            heads.setdefault(row["key"], row)
        return list(heads.values())

    def _receiver(self, name: str) -> tuple[str | None, float]:
        """The fingerprint with which it was taken out of service, or None, and until when it is left in peace."""
        row = self._db.execute("SELECT disabled, patience FROM receiver WHERE name = ?", (name,)).fetchone()
        return (row["disabled"], row["patience"]) if row else (None, 0.0)

    def _set(self, name: str, column: str, value: object) -> None:
        self._db.execute("INSERT OR IGNORE INTO receiver (name) VALUES (?)", (name,))
        self._db.execute(f"UPDATE receiver SET {column} = ? WHERE name = ?", (value, name))  # noqa: S608  (ours)


def _own(folder: Path) -> int:
    """The folder's lock, held."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "notify.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(str(folder), f"cannot be used ({error.strerror})", "name another --data-dir") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise UserError(str(folder), "another gpuchaos notify uses it", "give each a --data-dir of its own") from error
    return lock
