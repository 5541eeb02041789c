"""How a model becomes a Kafka record and back: CloudEvents 1.0 in binary mode, with W3C trace context.

Binary mode leaves the value plain JSON, so that a tool which knows nothing of CloudEvents reads it too.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.command import Command, SignedCommand
from gpuchaos_stream.events.deadletter import DeadLetter
from gpuchaos_stream.events.experiment import ExperimentRecord
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.events.observation import Observation
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.events.topics import Topic

#: The model of each topic's value, telemetry excepted (`codec.py`).
ADAPTERS: Final[dict[str, TypeAdapter[Any]]] = {
    topics.NODES.name: TypeAdapter(NodeInfo),
    topics.FAULTS.name: TypeAdapter(FaultEvent),
    topics.OBSERVATIONS.name: TypeAdapter(Observation),
    topics.ANOMALIES.name: TypeAdapter(Anomaly),
    topics.EXPERIMENTS.name: TypeAdapter(ExperimentRecord),
    topics.COMMANDS.name: TypeAdapter(SignedCommand),
    topics.INCIDENTS.name: TypeAdapter(Incident),
    topics.DEADLETTER.name: TypeAdapter(DeadLetter),
}

Headers = list[tuple[str, bytes]]


class BadMessageError(ValueError):
    """A record that cannot be read; the text is the reason that its dead letter will carry."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record to be sent: `partition_by` is hashed to the partition, `key` is what compaction goes by."""

    topic: Topic
    key: str
    partition_by: str
    value: bytes
    headers: Headers = field(default_factory=list)


def partition_for(partition_by: str, partitions: int) -> int:
    """The partition of `partition_by` among `partitions`: CRC-32, the same on every machine and in every tool."""
    return zlib.crc32(partition_by.encode()) % partitions


def cloud_headers(
    *, kind: str, event_id: str, source: str, time: float, content_type: str, traceparent: str | None
) -> Headers:
    """CloudEvents headers for Kafka, binary mode (`ce_` prefix), and `traceparent` where there is a trace."""
    stamp = datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z")
    headers = [
        ("ce_specversion", b"1.0"),
        ("ce_id", event_id.encode()),
        ("ce_type", f"gpuchaos.{kind}.v1".encode()),
        ("ce_source", source.encode()),
        ("ce_time", stamp.encode()),
        ("content-type", content_type.encode()),
    ]
    if traceparent:
        headers.append(("traceparent", traceparent.encode()))
    return headers


def traceparent_of(headers: Headers | tuple[tuple[str, bytes], ...] | None) -> str | None:
    """The W3C trace context among `headers`, or None."""
    for name, value in headers or ():
        if name == "traceparent" and value is not None:
            return value.decode("ascii", "replace")
    return None


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace id in a W3C trace context, 32 hexadecimal digits; None where there is none."""
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) == 4 and len(parts[1]) == 32 else None


def to_record(event: Event, topic: Topic, *, source: str, traceparent: str | None = None) -> Record:
    """The record of `event` on `topic`. `source` is a URI path naming who speaks (`/agent/n003`)."""
    if topic is topics.EXPERIMENTS or topic is topics.INCIDENTS:
        key = f"{event.cluster}/{event.id}"
    elif topic is topics.NODES and isinstance(event, NodeInfo):
        key = f"{event.cluster}/{event.node}"
    else:
        key = event.cluster
    return Record(
        topic=topic,
        key=key,
        partition_by=event.cluster,
        value=event.model_dump_json().encode(),
        headers=cloud_headers(
            kind=type(event).__name__.lower(),
            event_id=event.id,
            source=source,
            time=event.time,
            content_type="application/json",
            traceparent=traceparent,
        ),
    )


def command_record(command: Command, signer: Signer, *, source: str, traceparent: str | None = None) -> Record:
    """The record of a command, signed by `signer`."""
    return Record(
        topic=topics.COMMANDS,
        key=command.cluster,
        partition_by=command.cluster,
        value=signer.sign(command).model_dump_json().encode(),
        headers=cloud_headers(
            kind="command",
            event_id=command.id,
            source=source,
            time=command.time,
            content_type="application/json",
            traceparent=traceparent,
        ),
    )


def from_value(topic_name: str, value: bytes | None) -> Any:
    """The model of a record's value on a JSON topic.

    Raises:
        BadMessageError: the topic is unknown, the value is empty or is not the topic's model.
    """
    adapter = ADAPTERS.get(topic_name)
    if adapter is None:
        raise BadMessageError(f"no model for topic {topic_name}")
    if not value:
        raise BadMessageError("empty value")
    try:
        return adapter.validate_json(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "value"
        raise BadMessageError(f"{where}: {first['msg']} ({error.error_count()} errors)") from error
    except RecursionError as error:
        raise BadMessageError("nested too deeply") from error
