"""Makes the topics, explicitly and idempotently, and complains when one is there in another shape.

Nothing is created by being named: a topic that a broker makes by itself has the wrong partition count, and
then peers do not meet and tables cannot be rebuilt.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from gpuchaos_stream.errors import UserError, UserErrors
from gpuchaos_stream.events.topics import DAY, DEADLETTER, FAULTS, HOUR, TELEMETRY, TOPICS, Topic
from gpuchaos_stream.stream.refusals import FORBIDDEN, forbidden, why_not
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options

#: Seconds until every new topic must have a leader for each of its partitions.
LEADERS_TIMEOUT_S: Final = 30.0

#: A closed segment is the smallest thing that Kafka can delete or compact: at most this old, and at most a
#: sixth of what is kept (the default is a week, which would make a retention of six hours a week long).
_SEGMENT_MAX_S: Final = DAY
_SEGMENT_SHARE: Final = 6


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic as it must be: name, partition count, and its settings in Kafka's words."""

    name: str
    partitions: int
    config: dict[str, str]


def wanted_topics(
    *,
    control_partitions: int = 4,
    telemetry_partitions: int = 8,
    deadletter_partitions: int = 1,
    changelogs: Iterable[str] = (),
) -> list[Wanted]:
    """The contract's topics and `changelogs`, which share the control topics' partition count."""
    counts = {TELEMETRY.name: telemetry_partitions, DEADLETTER.name: deadletter_partitions}
    wanted = [Wanted(topic.name, counts.get(topic.name, control_partitions), _config(topic)) for topic in TOPICS]
    wanted += [Wanted(name, control_partitions, _compacted(HOUR)) for name in changelogs]
    return wanted


def changelog_name(app_id: str, table: str) -> str:
    """The topic in which Faust keeps the changes of `table`."""
    return f"{app_id}-{table}-changelog"


async def ensure_topics(
    settings: KafkaSettings,
    *,
    control_partitions: int = 4,
    telemetry_partitions: int = 8,
    deadletter_partitions: int = 1,
    replication: int | None = None,
    changelogs: Iterable[str] = (),
) -> list[str]:
    """Creates what is missing and returns its names; the second call returns an empty list.

    `replication` None makes one copy, and takes the topics that are there with as many as they have.

    Raises:
        UserError: no broker answers, the broker refuses, or a topic is there with another partition count or,
            where `replication` is given, another number of copies.
    """
    wanted = wanted_topics(
        control_partitions=control_partitions,
        telemetry_partitions=telemetry_partitions,
        deadletter_partitions=deadletter_partitions,
        changelogs=changelogs,
    )
    async with _admin(settings) as admin:
        there = await _partitions(admin)
        _check(wanted, {name: len(partitions) for name, partitions in there.items()})
        if replication is not None:
            _check_copies(wanted, there, replication)
        missing = [topic for topic in wanted if topic.name not in there]
        created = await _create(settings, admin, missing, replication or 1)
        await _wait_for_leaders(settings, admin, wanted)
    return created


async def complete_topics(settings: KafkaSettings, *, changelogs: Iterable[str] = ()) -> int:
    """Creates what is missing beside the topics that are there, in their partition counts; by default in ours.

    Returns the partition count of the control topics.

    Raises:
        UserError: no broker answers, the broker refuses, or control topics differ in their partition count.
    """
    async with _admin(settings) as admin:
        there = {name: len(partitions) for name, partitions in (await _partitions(admin)).items()}
    counts = {topic.name: there.get(topic.name, topic.partitions) for topic in wanted_topics()}
    # Where control topics differ, the count that most of them have is right: the complaint is then about the odd ones.
    shared = Counter(there[topic.name] for topic in TOPICS if topic.partitioned_by == "cluster" and topic.name in there)
    control = shared.most_common(1)[0][0] if shared else counts[FAULTS.name]
    await ensure_topics(
        settings,
        control_partitions=control,
        telemetry_partitions=counts[TELEMETRY.name],
        deadletter_partitions=counts[DEADLETTER.name],
        changelogs=changelogs,
    )
    return control


@asynccontextmanager
async def _admin(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(**aiokafka_options(settings), client_id="gpuchaos-topics")
    try:
        try:
            await admin.start()
        except KafkaError as error:
            refusal = await why_not(settings)
            raise refusal.error("no broker answers; ") from error
        yield admin
    finally:
        await admin.close()


def _config(topic: Topic) -> dict[str, str]:
    # The broker's clock is the one clock: every record is stamped when it is appended.
    stamp = {"message.timestamp.type": "LogAppendTime"}
    if topic.cleanup == "compact":
        return _compacted(HOUR) | stamp
    segment = min(_SEGMENT_MAX_S, topic.retention_s // _SEGMENT_SHARE)
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(topic.retention_s * 1000),
        "segment.ms": str(segment * 1000),
    } | stamp


def _compacted(segment_s: int) -> dict[str, str]:
    # Compaction alone: a changelog whose records also expire leaves a recovery waiting for what is gone.
    return {"cleanup.policy": "compact", "segment.ms": str(segment_s * 1000), "min.cleanable.dirty.ratio": "0.1"}


async def _partitions(admin: AIOKafkaAdminClient) -> dict[str, list[dict[str, Any]]]:
    # All of them, not the wanted ones: asking for a topic by name makes it on some brokers.
    return {topic["topic"]: topic["partitions"] for topic in await admin.describe_topics()}


def _check(wanted: list[Wanted], there: dict[str, int]) -> None:
    wrong = [
        UserError(
            f"topic {topic.name}",
            f"has {there[topic.name]} partitions, {topic.partitions} are asked for",
            "ask for as many as it has, or delete it and let it be made again (its records are lost)",
        )
        for topic in wanted
        if there.get(topic.name, topic.partitions) != topic.partitions
    ]
    if wrong:
        raise UserErrors(wrong)


def _check_copies(wanted: list[Wanted], there: dict[str, list[dict[str, Any]]], replication: int) -> None:
    fewest = {name: min((len(one["replicas"]) for one in partitions), default=0) for name, partitions in there.items()}
    wrong = [
        UserError(
            f"topic {topic.name}",
            f"has replication {fewest[topic.name]}, {replication} is asked for",
            "change it with Kafka's kafka-reassign-partitions, or ask for what it has",
        )
        for topic in wanted
        if fewest.get(topic.name, replication) != replication
    ]
    if wrong:
        raise UserErrors(wrong)


async def _create(
    settings: KafkaSettings, admin: AIOKafkaAdminClient, missing: list[Wanted], replication: int
) -> list[str]:
    if not missing:
        return []
    answer = await admin.create_topics(
        [NewTopic(topic.name, topic.partitions, replication, topic_configs=topic.config) for topic in missing]
    )
    created, refused = [], []
    for name, code, *message in answer.topic_errors:
        error = for_code(code)
        if not code:
            created.append(name)
        elif error in FORBIDDEN:
            refused.append(forbidden(settings, f"topic {name}", "make it, or to see it where it is there"))
        elif error is not TopicAlreadyExistsError:  # another process was quicker: as good
            refused.append(UserError(f"topic {name}", f"could not be made: {(message or [None])[0] or error.__name__}"))
    if refused:
        raise UserErrors(refused)
    return created


async def _wait_for_leaders(settings: KafkaSettings, admin: AIOKafkaAdminClient, wanted: list[Wanted]) -> None:
    deadline = time.monotonic() + LEADERS_TIMEOUT_S
    while True:
        described = {topic["topic"]: topic for topic in await admin.describe_topics()}
        late = [topic.name for topic in wanted if not _is_led(described.get(topic.name))]
        if not late:
            _check(wanted, {name: len(topic["partitions"]) for name, topic in described.items()})
            return
        if time.monotonic() > deadline:
            if late[0] not in described:
                raise forbidden(settings, f"topic {late[0]}", "see it")
            raise UserError(f"topic {late[0]}", f"has no leader after {LEADERS_TIMEOUT_S:.0f} s", "are all brokers up?")
        await asyncio.sleep(0.05)


def _is_led(topic: dict[str, Any] | None) -> bool:
    return topic is not None and all(
        not partition["error_code"] and partition["leader"] >= 0 for partition in topic["partitions"]
    )
