"""The agent's eyes alone, on a real machine: every collector once a second, and what they say as lines of JSON.

Run beside the effect that is tried, on this host or in a guest: `guest_watch.py SOURCES.json OUT.jsonl`. SOURCES is
`Sources` as JSON. Each line of OUT is one of

    {"ready": TIME}                                        the first tick is done
    {"seen": TIME, "fault": …, "time": TIME, …}            a fact, when it was handed out and when it happened
    {"seen": TIME, "kind": "process", "devices": {…}}      numbers of this tick, by device and metric

It follows the agent's own way: a tick every second, and between ticks whatever a follower's descriptor announces.
"""

from __future__ import annotations

import dataclasses
import json
import select
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from gpuchaos_agent.collect import registry
from gpuchaos_agent.collect.base import Fact, JobSource, Sources
from gpuchaos_agent.snapshot import Snapshot, Taken

_INTERVAL_S = 1.0
_PATHS = ("sysfs", "procfs", "kmsg", "state_dir", "syslog", "place")


def sources_of(given: dict[str, Any]) -> Sources:
    """`Sources` from JSON; what is not given has its default."""
    jobs = tuple(_job(job) for job in given.get("jobs", ()))
    made: dict[str, Any] = {name: Path(v) if name in _PATHS else v for name, v in given.items()}
    logs = {name: Path(path) for name, path in given.get("app_logs", {}).items()}
    return Sources(**made | {"jobs": jobs, "app_logs": logs})


def _job(given: dict[str, Any]) -> JobSource:
    made: dict[str, Any] = {
        name: Path(v) if name in ("pidfile", "log", "heartbeat") else v for name, v in given.items()
    }
    return JobSource(**made)


def watch(sources: Sources, out: TextIO) -> None:
    """Looks until it is killed."""
    snapshot = Snapshot(registry.build(sources))
    due = time.monotonic()
    ready = False
    while True:
        taken = snapshot.take(time.time())
        _tell(out, taken.facts)
        _numbers(out, taken)
        if not ready:
            _line(out, {"ready": time.time(), "absent": taken.absent})
            ready = True
        snapshot.commit()
        due = max(due + _INTERVAL_S, time.monotonic())
        while (left := due - time.monotonic()) > 0:
            waited = {fd for follower in snapshot.followers if (fd := follower.fileno()) is not None}
            if select.select(waited, [], [], left)[0]:
                _tell(out, snapshot.drain(time.time()))


def _tell(out: TextIO, facts: Iterable[Fact]) -> None:
    for fact in facts:
        _line(out, {"seen": time.time(), **dataclasses.asdict(fact)})


def _numbers(out: TextIO, taken: Taken) -> None:
    for group, columns in zip(taken.layout.groups, taken.values, strict=True):
        devices = {
            device: {metric: columns[m][d] for m, metric in enumerate(group.metrics)}
            for d, device in enumerate(group.ids)
        }
        _line(out, {"seen": time.time(), "kind": group.kind, "numbers": devices, "labels": group.labels})


def _line(out: TextIO, what: dict[str, Any]) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()


if __name__ == "__main__":
    with Path(sys.argv[2]).open("a") as file:
        watch(sources_of(json.loads(Path(sys.argv[1]).read_text())), file)
