"""A house for each test: its own broker, keys and topics, all of it gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuchaos_stream.stream.brokers import Kind
from gpuchaos_stream.stream.house import House


@pytest.fixture
def house(tmp_path: Path, broker_kind: Kind) -> Iterator[House]:
    """The house, entered; tests start what they need in it."""
    with House(tmp_path / "house", broker=broker_kind) as entered:
        yield entered
