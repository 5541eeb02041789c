"""Asks a broker, before the work begins, whether it will let us do all of it: a halt is no time to find out.

Brokers say what a user may do with a topic since Kafka 2.3 (Metadata, version 8, KIP-430). The client library's newest
Metadata is version 5, so the message is spelled out here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    IncompatibleBrokerVersion,
    KafkaError,
    NotCoordinatorForGroupError,
    for_code,
)
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

from gpuchaos_stream.errors import UserError, UserErrors
from gpuchaos_stream.stream.refusals import forbidden, why_not
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options

#: Bits of the operations that a broker says are allowed; all of `_UNKNOWN` where it does not say.
_READ: Final = 1 << 3
_WRITE: Final = 1 << 4
_UNKNOWN: Final = -(1 << 31)
#: Seconds that the coordinator of a group may take to be there: a broker makes its topic when it is first asked.
_COORDINATOR_S: Final = 15.0
_GROUP: Final = 0
_NOT_YET: Final = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorForGroupError)


@dataclass(frozen=True, slots=True)
class Rights:
    """What a part does with Kafka: topics by name, and the consumer group that it joins."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    group: str | None = None


async def demand(settings: KafkaSettings, rights: Rights) -> None:
    """Returns if the broker allows all of it, or does not say what it allows.

    Raises:
        UserError: no broker answers, or something is not allowed; each such thing is named.
    """
    client = AIOKafkaClient(**aiokafka_options(settings), client_id="gpuchaos-rights")
    try:
        await client.bootstrap()
        lacking = [
            *_of_topics(settings, rights, await _operations(client, sorted(rights.reads | rights.writes))),
            *await _of_group(settings, client, rights.group),
        ]
    except (IncompatibleBrokerVersion, NotImplementedError):
        return
    except KafkaError as error:
        raise (await why_not(settings)).error("no broker answers; ") from error
    finally:
        await client.close()
    if lacking:
        raise UserErrors(lacking)


def _of_topics(settings: KafkaSettings, rights: Rights, allowed: dict[str, int]) -> Iterable[UserError]:
    for bit, names, verb in ((_READ, rights.reads, "read"), (_WRITE, rights.writes, "write")):
        for name in sorted(names):
            may = allowed.get(name, 0)
            if may != _UNKNOWN and not may & bit:
                yield forbidden(settings, f"topic {name}", f"{verb} it")


async def _of_group(settings: KafkaSettings, client: Any, group: str | None) -> list[UserError]:
    if group is None:
        return []
    deadline = time.monotonic() + _COORDINATOR_S
    while time.monotonic() < deadline:
        try:
            node = await client.coordinator_lookup(_GROUP, group)
            # A heartbeat of nobody: it takes the right that joining takes, and changes nothing.
            answer = await client.send(node, HeartbeatRequest(group, 0, "nobody"))
        except GroupAuthorizationFailedError:
            return [forbidden(settings, f"group {group}", "join it")]
        except _NOT_YET:
            code = CoordinatorNotAvailableError.errno
        else:
            code = answer.error_code
        error = for_code(code)
        if error is GroupAuthorizationFailedError:
            return [forbidden(settings, f"group {group}", "join it")]
        if error not in _NOT_YET:
            break
        await asyncio.sleep(0.1)
    return []


async def _operations(client: Any, names: list[str]) -> dict[str, int]:
    answer = await client.send(client.get_random_node(), _MetadataRequest(names))
    return {name: operations for code, name, _, _, operations in answer.topics if not code}


class _MetadataResponse(Response):  # type: ignore[misc]  # aiokafka has no types here
    API_KEY: ClassVar = 3
    API_VERSION: ClassVar = 8
    SCHEMA: ClassVar = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", Array(("node_id", Int32), ("host", String()), ("port", Int32), ("rack", String()))),
        ("cluster_id", String()),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String()),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("operations", Int32),
            ),
        ),
        ("cluster_operations", Int32),
    )


class _MetadataStruct(RequestStruct):  # type: ignore[misc]
    API_KEY: ClassVar = 3
    API_VERSION: ClassVar = 8
    RESPONSE_TYPE: ClassVar = _MetadataResponse
    SCHEMA: ClassVar = Schema(
        ("topics", Array(String())),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_operations", Boolean),
        ("include_topic_operations", Boolean),
    )


class _MetadataRequest(Request[_MetadataStruct]):  # type: ignore[misc]
    """These topics, none of them made by being named, with what we may do to each."""

    API_KEY: ClassVar = 3

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_MetadataStruct]) -> _MetadataStruct:
        return request_struct_class(self._topics, False, False, True)
