from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import pytest

from gpuchaos_stream.events import topics
from gpuchaos_stream.stream.history import Past, telemetry_before
from gpuchaos_stream.stream.settings import KafkaSettings


def test_a_partition_that_begins_with_this_record_has_no_past_to_ask_the_broker_for() -> None:
    first = SimpleNamespace(topic=topics.TELEMETRY.name, partition=0, offset=0, timestamp=1_700_000_000_000)
    with socket.create_server(("127.0.0.1", 0)) as broker:
        broker.setblocking(False)
        settings = KafkaSettings(bootstrap_servers=f"127.0.0.1:{broker.getsockname()[1]}")
        assert asyncio.run(telemetry_before(settings, first, 60.0)) == Past()
        with pytest.raises(BlockingIOError):
            broker.accept()
