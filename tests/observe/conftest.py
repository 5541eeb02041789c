"""A collector for the tests of traces and metrics that leave over OTLP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from observe_otlp import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A real OTLP receiver."""
    with receiving() as got:
        yield got
