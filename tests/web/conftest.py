"""What the tests of the page share: a browser, a server over a made-up cluster, and somebody who looks at its page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_kit import Clock, Look, chromium, looking
from playwright.sync_api import Browser
from web_kit import Running, running, synthetic_board, write_tokens


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(synthetic_board(64, 4), token_file=write_tokens(tmp_path), clock=Clock()) as server:
        yield server


@pytest.fixture
def look(browser: Browser, server: Running) -> Iterator[Look]:
    with looking(browser, server) as look:
        yield look.open()
