"""What programs on this node say of faults: the logs of jobs (`JobSource.log`), and those named in `app_logs`.

A job's log is followed here for what it says and by the process collector for how the job gets on, each with its
own position: what they read of the same pages costs less than a lock between them would.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gpuchaos_agent.collect.base import Evidence, Fact, JobSource, Reading, Sources
from gpuchaos_agent.kernelfs import files
from gpuchaos_agent.logs import literals
from gpuchaos_agent.logs.application import Application
from gpuchaos_agent.logs.follow import FileFollower, Line
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.story.facts import fact_of
from gpuchaos_agent.story.hear import hear
from gpuchaos_agent.story.story import Story
from gpuchaos_agent.words import registry
from gpuchaos_stream.events.frame import Kind

#: Read at most this much of all logs in one call, bytes; the rest comes with the next call, at once.
PER_CALL: Final = 1024 * 1024
#: Positions are written this often while no fact is under way, seconds.
SAVE_EVERY_S: Final = 5.0


@dataclass(slots=True)
class _Log:
    """One log that is followed. `name` is the job's, or the one in `app_logs`."""

    name: str
    follower: FileFollower
    story: Story
    job: JobSource | None = None
    framer: Application = field(default_factory=Application)


class AppLogCollector:
    """Follows logs. `state_dir` keeps the positions, None keeps nothing.

    The first start ever begins at each log's end, a later one where the last `commit` was; a log that comes later
    is read from its beginning. Logs of one job share one story, so that its ranks' words become one event.
    """

    name = "app_log"
    kinds: tuple[Kind, ...] = ()
    ORDER = 70

    def __init__(
        self, jobs: Sequence[JobSource] = (), logs: dict[str, Path] | None = None, *, state_dir: Path | None = None
    ) -> None:
        stories: dict[tuple[str, str], Story] = {}
        self._logs: OrderedDict[tuple[str, Path], _Log] = OrderedDict()
        wanted = [(job.job, job.log, job) for job in jobs if job.log is not None]
        for name, path, job in (*wanted, *((name, path, None) for name, path in (logs or {}).items())):
            story = stories.setdefault(("job" if job else "log", name), Story())
            follower = FileFollower(path, per_call_bytes=PER_CALL, state=_state(state_dir, name, path))
            self._logs.setdefault((name, path), _Log(name, follower, story, job))
        self._wanted = literals.any_bytes(hint.encode() for hint in registry.hints(Writer.PROGRAM))
        self._in_flight = False
        self._saved: float | None = None
        self._lines = 0
        self._bell: int | None = None
        for log in self._logs.values():
            log.follower.begin()  # what is written from here on is ours

    @classmethod
    def from_sources(cls, sources: Sources) -> AppLogCollector:
        """The collector of these jobs and logs."""
        return cls(sources.jobs, sources.app_logs, state_dir=sources.state_dir)

    def fileno(self) -> int | None:
        """A descriptor that rings while a log has more to read than a call takes. A file cannot be waited on."""
        if self._bell is None and self._logs:
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return self._bell

    def read(self, now: float) -> Reading:
        """The facts since the last call, and which logs cannot be read."""
        if not self._logs:
            return Reading(absent={self.name: "no job has a log, and app_logs names none"})
        facts = self.drain(now)
        absent = {f"{self.name}.{log.name}": log.follower.problem for log in self._all() if log.follower.problem}
        for log in self._all():
            log.story.ended(now)
        if not self._in_flight and (self._saved is None or not 0 <= now - self._saved < SAVE_EVERY_S):
            self._saved = now
            absent |= self._save_or_say()
        info: dict[str, str | int | float] = {
            "logs": len(self._logs),
            "lines": self._lines,
            "behind": sum(log.follower.behind for log in self._all()),
            "cut": sum(log.follower.cut for log in self._all()),
            "missed_files": sum(log.follower.missed for log in self._all()),
            "repeats": sum({id(log.story): log.story.held_back for log in self._all()}.values()),
        }
        return Reading(facts=facts, absent=absent, info=info)

    def drain(self, now: float) -> tuple[Fact, ...]:
        """Reads what is there, never waits. Whoever was not reached in this call is first in the next."""
        if self._bell is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell)
        facts: list[Fact] = []
        left = PER_CALL
        for key, log in tuple(self._logs.items()):
            lines = log.follower.read(left)
            self._lines += len(lines)
            facts += [fact for line in lines if (fact := self._fact(log, line, now)) is not None]
            left -= log.follower.last_read
            self._logs.move_to_end(key)
            if left <= 0:
                break
        if self._bell is not None and any(log.follower.behind for log in self._all()):
            os.eventfd_write(self._bell, 1)
        self._in_flight = self._in_flight or bool(facts)
        return tuple(facts)

    def commit(self) -> None:
        """Saves the positions: the facts handed out are safe. Without facts under way `read` does it itself.

        Raises:
            OSError: one cannot be written.
        """
        self._in_flight = False
        for log in self._all():
            log.follower.commit()

    def close(self) -> None:
        """Closes the logs."""
        for log in self._all():
            log.follower.close()
        if self._bell is not None:
            os.close(self._bell)
            self._bell = None

    def _all(self) -> tuple[_Log, ...]:
        return tuple(self._logs.values())

    def _save_or_say(self) -> dict[str, str]:
        try:
            self.commit()
        except OSError as error:
            return {f"{self.name}.position": f"cannot be kept: {os.strerror(error.errno or 0)}"}
        return {}

    def _fact(self, log: _Log, line: Line, now: float) -> Fact | None:
        if log.framer.plain(line.data) and self._wanted.search(line.data) is None:
            return None
        record = log.framer.take(line.data, line.key)
        heard = None if record is None else hear(record)
        if record is None or heard is None:
            return None
        key = f"{self.name}/{log.follower.path}/{record.tags.get('key', line.key)}"
        when = now if record.time is None else min(record.time, now)
        event = log.story.tell(heard.finding, key=key, time=when, writer=record.writer)
        if event is None:
            return None
        return _of(log, fact_of(event, key=key, time=when, more=_more(log, record)))


def _of(log: _Log, fact: Fact) -> Fact:
    """The process of the job is the entity, as in its frames (`collect/process.py`); without a job it is the node."""
    if log.job is None or fact.kind != "node":
        return fact
    pid = log.job.pid
    if pid is None and log.job.pidfile is not None:
        content = files.text(log.job.pidfile)
        pid = int(content) if content and content.isdecimal() and len(content) < 10 else None
    return replace(fact, kind="process", local=log.job.job if pid is None else str(pid))


def _more(log: _Log, record: LogRecord) -> Evidence:
    more: Evidence = {"log": str(log.follower.path)[-200:], "job" if log.job is not None else "program": log.name}
    if record.time is not None:
        more["said_at"] = record.time
    return more


def _state(folder: Path | None, name: str, path: Path) -> Path | None:
    if folder is None:
        return None
    made = hashlib.blake2b(f"{name}\0{path}".encode(errors="surrogateescape"), digest_size=8).hexdigest()
    return folder / "app_log" / f"{made}.json"


COLLECTOR = AppLogCollector
