"""When to try again. Shorter than what Standard Webhooks suggests: a halt is of no use to on-call hours later."""

from __future__ import annotations

import random
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

#: Seconds before the second, third, … attempt; after that the last one, for ever.
SCHEDULE: Final = (0.0, 1.0, 5.0, 15.0, 60.0, 300.0)
#: Each wait is longer by up to this share, so that what failed together does not come back together.
JITTER: Final = 0.2
#: A receiver may ask for at most this patience, seconds.
MOST_PATIENCE: Final = 3600.0


def wait(tries: int, rng: random.Random, asked: float | None = None) -> float:
    """Seconds to wait after `tries` (1 or more) failed attempts; at least what the receiver `asked` for."""
    base = SCHEDULE[min(tries, len(SCHEDULE)) - 1]
    return max(base * (1 + JITTER * rng.random()), asked or 0.0)


def retry_after(header: str | None, now: float) -> float | None:
    """Seconds that a `Retry-After` header asks for (a number, or a date; RFC 9110 10.2.3), None if it says nothing."""
    if not header:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MOST_PATIENCE)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    at = date if date.tzinfo else date.replace(tzinfo=UTC)
    return min(max(0.0, at.timestamp() - now), MOST_PATIENCE)
