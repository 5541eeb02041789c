"""Waiting for something to come true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

#: How long things of a laboratory may take, seconds.
DEADLINE_S: Final = 10.0
T = TypeVar("T")


def until(happened: Callable[[], T], within_s: float = DEADLINE_S) -> T:
    """What `happened` returned once that was true.

    Raises:
        TimeoutError: it was not within `within_s` seconds.
    """
    deadline = time.monotonic() + within_s
    while not (found := happened()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not come true within {within_s:g} s")
        time.sleep(0.005)
    return found
