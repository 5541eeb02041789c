"""Topics are made explicitly, once, in the shape of the contract."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.stream.brokers import RunningBroker
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options
from gpuchaos_stream.stream.topics_admin import changelog_name, ensure_topics, wanted_topics

pytestmark = pytest.mark.broker


async def described(settings: KafkaSettings, names: list[str]) -> tuple[dict[str, int], dict[str, dict[str, str]]]:
    admin: Any = AIOKafkaAdminClient(**aiokafka_options(settings))
    await admin.start()
    try:
        counts = {one["topic"]: len(one["partitions"]) for one in await admin.describe_topics()}
        configs: dict[str, dict[str, str]] = {}
        for name in names:
            for answer in await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)]):
                for _, _, _, topic, entries in answer.resources:
                    configs[topic] = {entry[0]: entry[1] for entry in entries}
    finally:
        await admin.close()
    return counts, configs


async def test_the_second_call_makes_nothing(own_broker: RunningBroker) -> None:
    changelogs = [changelog_name("app", "state")]
    first = await ensure_topics(own_broker.settings, changelogs=changelogs)
    second = await ensure_topics(own_broker.settings, changelogs=changelogs)
    assert (first, second) == (changelogs, [])  # the fixture had made the contract's


async def test_topics_have_the_partitions_retention_and_compaction_of_the_contract(broker: RunningBroker) -> None:
    counts, configs = await described(broker.settings, [topic.name for topic in topics.TOPICS])
    assert counts[topics.TELEMETRY.name] == 8
    assert counts[topics.DEADLETTER.name] == 1
    assert {counts[topic.name] for topic in topics.CONTROL_INPUTS} == {4}
    for topic in topics.TOPICS:
        config = configs[topic.name]
        assert config["cleanup.policy"] == topic.cleanup
        assert config["message.timestamp.type"] == "LogAppendTime"
        if topic.cleanup == "delete":
            assert int(config["retention.ms"]) == topic.retention_s * 1000


async def test_another_partition_count_is_refused_with_both_numbers(broker: RunningBroker) -> None:
    with pytest.raises(UserError, match=rf"{topics.TELEMETRY.name}: has 8 partitions, 16 are asked for"):
        await ensure_topics(broker.settings, telemetry_partitions=16)


async def test_another_replication_is_refused_where_one_is_asked_for(broker: RunningBroker) -> None:
    with pytest.raises(UserError, match=rf"{topics.TELEMETRY.name}: has replication 1, 3 is asked for"):
        await ensure_topics(broker.settings, replication=3)
    assert await ensure_topics(broker.settings, replication=1) == []


async def test_an_unreachable_broker_is_named() -> None:
    with pytest.raises(UserError, match=r"127\.0\.0\.1:1: no broker answers"):
        await ensure_topics(KafkaSettings(bootstrap_servers="127.0.0.1:1"))


def test_segments_close_soon_enough_for_the_retention_to_mean_something() -> None:
    for topic in wanted_topics(changelogs=["app-t-changelog"]):
        if topic.config["cleanup.policy"] == "delete":
            assert int(topic.config["segment.ms"]) * 6 <= int(topic.config["retention.ms"])


def test_changelogs_are_compacted_and_never_expire() -> None:
    [changelog] = [one for one in wanted_topics(changelogs=["app-t-changelog"]) if one.name == "app-t-changelog"]
    assert changelog.config["cleanup.policy"] == "compact"
    assert "retention.ms" not in changelog.config
    assert changelog.partitions == 4
