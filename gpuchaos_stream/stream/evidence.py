"""What Kafka holds of experiments: the events that reports and explanations are made of."""

from __future__ import annotations

from typing import Final

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.envelope import BadMessageError, from_value
from gpuchaos_stream.stream.bus import Bus

#: Read whole: the three that keep the latest of each key, and a month of faults.
_TOPICS: Final = (topics.EXPERIMENTS, topics.INCIDENTS, topics.NODES, topics.FAULTS)
#: Of faults, what is said every few seconds of each lease, and what is no experiment's: not worth reading.
_LEFT_OUT: Final = (b'"phase":"renewed"', b'"phase":"observed"')


async def evidence(bus: Bus, cluster: str) -> list[Event]:
    """The readable events of one cluster, in order of arrival per partition.

    Raises:
        UserError: a topic does not exist.
    """
    found: list[Event] = []
    for topic in _TOPICS:
        for record in await bus.snapshot((topic.name,)):
            if record.value is None or (topic is topics.FAULTS and any(word in record.value for word in _LEFT_OUT)):
                continue
            try:
                event = from_value(topic.name, record.value)
            except BadMessageError:
                continue  # the control stage's dead letters tell of it
            if event.cluster == cluster:
                found.append(event)
    return found
