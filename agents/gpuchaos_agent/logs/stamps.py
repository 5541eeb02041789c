"""Stamps of log lines as seconds since the epoch; None for a time that there is not."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final

_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
#: A stamp without a year may lie so far after the reference (clocks differ, zones are guessed), seconds.
_AHEAD_S: Final = 86_400.0
#: From here on no event's time may be (`Timestamp`), seconds. Before 1970 is a time that was never set, as Go's zero.
_NEVER_S: Final = 1e11
#: Years that are tried: eight back, so that 29 February is found.
_YEARS: Final = 9


@lru_cache(maxsize=256)
def iso(text: str, zone: tzinfo | None = UTC) -> float | None:
    """`2024-01-02T03:04:05,678901+00:00`, `…05.678Z`, `2024-01-02 03:04:05`. `zone` where it names none."""
    try:
        found = datetime.fromisoformat(text)
        seconds = (found if found.tzinfo is not None else found.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return seconds if 0 <= seconds < _NEVER_S else None


@lru_cache(maxsize=256)
def human(text: str, zone: tzinfo | None = UTC) -> float | None:
    """`Fri Jul  4 10:29:39 2025`, as `dmesg -T` and ctime(3) write it. `zone` None is this machine's."""
    words = text.split()
    return _made(int(words[4]), words[1], words[2], words[3], zone) if len(words) == 5 else None


@lru_cache(maxsize=256)
def bsd(text: str, reference: float, zone: tzinfo | None = UTC) -> float | None:
    """`Feb  5 15:41:33` (RFC 3164): the latest year in which it is not after `reference`, seconds.

    A day of grace is given. `zone` None is this machine's.
    """
    words = text.split()
    if len(words) != 3:
        return None
    try:
        latest = datetime.fromtimestamp(reference, UTC).year + 1
    except (ValueError, OverflowError, OSError):
        return None
    for year in range(latest, latest - _YEARS, -1):
        made = _made(year, words[0], words[1], words[2], zone)
        if made is not None and made <= reference + _AHEAD_S:
            return made
    return None


def _made(year: int, month: str, day: str, clock: str, zone: tzinfo | None) -> float | None:
    try:
        hour, minute, second = map(int, clock.split(":"))
        # A leap second has no number of its own.
        return datetime(year, _MONTHS[month], int(day), hour, minute, min(second, 59), tzinfo=zone).timestamp()
    except (ValueError, KeyError, OverflowError, OSError):
        return None
