"""Waiting for something to come true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

#: How long things of a laboratory may take, seconds.
DEADLINE_S: Final = 10.0
T = TypeVar("T")


def until(happened: Callable[[], T], within_s: float = DEADLINE_S, otherwise: str = "", *, every_s: float = 0.005) -> T:
    """What `happened` returned once that was true; it is asked each `every_s` seconds.

    Raises:
        TimeoutError: it was not within `within_s` seconds; `otherwise` says what is wrong then.
    """
    deadline = time.monotonic() + within_s
    while not (found := happened()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s: {otherwise or 'it did not come true'}")
        time.sleep(every_s)
    return found
