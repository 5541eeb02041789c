"""Notices that committed offsets stand still while records wait, which no retry inside the worker mends.

Causes seen in the field: a lost acknowledgement (faust-streaming #175, #523, #640), a failed commit that is not
tried again (#611), a partition that is never fetched (#629). The cure is a restart, so the default is to end the
process at once; delivery is at least once, and a supervisor starts it again from the last commit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from mode import Service
from prometheus_client import Counter, Gauge

from gpuchaos_stream.stream.embedded import end_offsets
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options

#: Seconds without a commit on a partition with lag. Far above the commit interval (1 s) and a long batch.
LIMIT_S: Final = 60.0
#: Seconds between two looks.
LOOK_S: Final = 5.0
#: Exit status of a worker that its watchdog ended (EX_SOFTWARE).
EXIT_STATUS: Final = 70

LAG: Final = Gauge("gpuchaos_commit_lag_records", "Records after the committed offset", ["topic", "partition"])
STILL: Final = Gauge(
    "gpuchaos_commit_still_seconds", "Time for which commits have stood still despite lag", ["topic", "partition"]
)
#: Labels that the two gauges have now.
_shown: Final = set[tuple[str, str]]()
STUCK: Final = Counter("gpuchaos_commit_stuck_total", "Partitions found stuck", ["topic", "partition"])

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stuck:
    """One partition whose commits stand still: where, since when (as `now` was given), and what waits."""

    partition: TopicPartition
    committed: int | None
    lag: int
    since: float


class CommitWatchdog:
    """Pure: told what is committed and where partitions end, it says which have stood still too long."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.limit_s = limit_s
        self._still: dict[TopicPartition, tuple[int | None, float]] = {}

    def observe(
        self, now: float, committed: Mapping[TopicPartition, int | None], ends: Mapping[TopicPartition, int]
    ) -> list[Stuck]:
        """The partitions with lag whose committed offset is what it was `limit_s` ago; each is named every time.

        `now` is in seconds on any clock that never goes back. Nothing committed yet (None) with records there
        counts as lag. A partition that is not in `committed` is another worker's and is forgotten.
        """
        found = []
        for tp in list(self._still):
            if tp not in committed:
                del self._still[tp]
        for tp, offset in committed.items():
            lag = max(0, ends.get(tp, 0) - (offset or 0))
            before = self._still.get(tp)
            if not lag:
                self._still.pop(tp, None)
                continue
            since = before[1] if before is not None and before[0] == offset else now
            self._still[tp] = (offset, since)
            if now - since >= self.limit_s:
                found.append(Stuck(tp, offset, lag, since))
        return found

    def forget(self) -> None:
        """Begins anew: after a rebalance, or while the broker did not answer, standing still proves nothing."""
        self._still.clear()

    def still_s(self, now: float, partition: TopicPartition) -> float:
        """Seconds for which `partition` has stood still with lag."""
        before = self._still.get(partition)
        return 0.0 if before is None else now - before[1]


OnStuck = Callable[[list[Stuck]], Awaitable[None]]


async def exit_worker(stuck: list[Stuck]) -> None:
    """Ends the process with `EXIT_STATUS`, without the shutdown that would wait for the stuck partition."""
    _log.critical(
        "commits stand still: ending the worker",
        partitions=[f"{one.partition.topic}/{one.partition.partition}" for one in stuck],
        lag=sum(one.lag for one in stuck),
    )
    os._exit(EXIT_STATUS)


def install_watchdog(
    app: Any,
    settings: KafkaSettings,
    *,
    limit_s: float = LIMIT_S,
    look_s: float = LOOK_S,
    on_stuck: OnStuck = exit_worker,
) -> None:
    """Watches the partitions of the Faust app's group that this worker holds, on a connection of its own."""

    class Watchdog(Service):  # type: ignore[misc]  # mode has no types here
        """Asks the broker, not the worker, what is committed."""

        @Service.task  # type: ignore[untyped-decorator]
        async def _watch(self) -> None:
            await watch(
                app, settings, CommitWatchdog(limit_s), look_s=look_s, on_stuck=on_stuck, sleep=self._sleep_or_stop
            )

        async def _sleep_or_stop(self, seconds: float) -> bool:
            await self.sleep(seconds)
            return not self.should_stop

    app.service(Watchdog)


async def watch(
    app: Any,
    settings: KafkaSettings,
    watchdog: CommitWatchdog,
    *,
    look_s: float,
    on_stuck: OnStuck,
    sleep: Callable[[float], Awaitable[bool]],
) -> None:
    """Looks every `look_s` until `sleep` says that it is over."""
    reader: Any = None
    try:
        while await sleep(look_s):
            if app.rebalancing or app.in_recovery:
                watchdog.forget()
                continue
            try:
                reader = reader or await _connect(app, settings)
                stuck = await _look(reader, _watched(app), watchdog)
            except (KafkaError, OSError, TimeoutError) as error:
                _log.info("the watchdog cannot see the broker", error=str(error))
                watchdog.forget()
                continue
            if stuck:
                for one in stuck:
                    STUCK.labels(one.partition.topic, str(one.partition.partition)).inc()
                await on_stuck(stuck)
    finally:
        if reader is not None:
            await reader.stop()


def _watched(app: Any) -> list[TopicPartition]:
    changelogs = app.tables.changelog_topics
    return [TopicPartition(tp.topic, tp.partition) for tp in app.consumer.assignment() if tp.topic not in changelogs]


async def _connect(app: Any, settings: KafkaSettings) -> Any:
    # In the group by name, to be told its commits; it never joins, for it subscribes to nothing.
    reader = AIOKafkaConsumer(**aiokafka_options(settings), group_id=app.conf.id, enable_auto_commit=False)
    try:
        await reader.start()
    except BaseException:
        await reader.stop()
        raise
    return reader


async def _look(reader: Any, partitions: Iterable[TopicPartition], watchdog: CommitWatchdog) -> list[Stuck]:
    watched = list(partitions)
    committed = {tp: await reader.committed(tp) for tp in watched}
    ends = await end_offsets(reader, watched)
    now = time.monotonic()
    stuck = watchdog.observe(now, committed, ends)
    show({tp: (max(0, ends[tp] - (committed[tp] or 0)), watchdog.still_s(now, tp)) for tp in watched})
    return stuck


def show(of: Mapping[TopicPartition, tuple[float, float]]) -> None:
    """Sets the gauges: lag and time of standing still of each partition that this worker holds, and of no other.

    One that is another worker's now would keep its last number here: a lag that nobody works off.
    """
    for topic, partition in [each for each in _shown if TopicPartition(each[0], int(each[1])) not in of]:
        LAG.remove(topic, partition)
        STILL.remove(topic, partition)
        _shown.discard((topic, partition))
    for tp, (lag, still) in of.items():
        labels = (tp.topic, str(tp.partition))
        _shown.add(labels)
        LAG.labels(*labels).set(lag)
        STILL.labels(*labels).set(still)
