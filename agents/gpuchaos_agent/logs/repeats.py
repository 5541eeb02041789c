"""Repeats as log daemons write them: one line that stands for several records."""

from __future__ import annotations

import re
from typing import Final

#: rsyslog runtime/ratelimit.c: ` message repeated %d times: [%.800s]`, the text with the blank before it.
_REPEATED: Final = re.compile(r" ?message repeated (\d{1,9}) times: \[ ?(.*)\]\s{0,4}\Z", re.DOTALL)
#: Older daemons: the record before it, so many times again.
_LAST: Final = re.compile(r" ?last message repeated (\d{1,9}) times?\s{0,4}\Z")


def unwrapped(text: str) -> tuple[str, int]:
    """The text that was repeated and how often; the text itself and 1 where it is no repeat."""
    if " repeated " in text[:40]:
        found = _REPEATED.match(text)
        if found is not None:
            return found[2], int(found[1])
    return text, 1


def of_the_last(text: str) -> int | None:
    """How often the record before was repeated; None where the text does not say that."""
    if "last message" in text[:16]:
        found = _LAST.match(text)
        if found is not None:
            return int(found[1])
    return None
