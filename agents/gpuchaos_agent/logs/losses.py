"""What a log says of itself that is missing from it."""

from __future__ import annotations

import re
from typing import Final

#: Literal that any such text holds → where the number stands.
LOSSES: Final = {
    # Linux lib/ratelimit.c: `%s: %d callbacks suppressed`.
    "callbacks suppressed": re.compile(r"(?:\A|[ :])(\d{1,10}) callbacks suppressed"),
    # Linux before 2.6.33, net/core/utils.c: `printk: %d messages suppressed.`
    "messages suppressed": re.compile(r"(?:\A|[ :])(\d{1,10}) messages suppressed"),
    # Linux kernel/printk/printk.c, on consoles only: `** %lu printk messages dropped **`.
    "messages dropped": re.compile(r"\*\* (\d{1,20}) (?:printk )?messages dropped"),
    # systemd src/journal/journald-kmsg.c (and -manager.c since 258): `Missed %PRIu64 kernel messages`.
    "kernel messages": re.compile(r"\AMissed (\d{1,20}) kernel messages"),
    # rsyslog runtime/ratelimit.c: `%s: %u messages lost due to rate-limiting`.
    "messages lost due to rate-limiting": re.compile(r"(?:\A|[ :])(\d{1,10}) messages lost due to rate-limiting"),
}


def lost_in(text: str) -> int:
    """How many records the text says are missing, 0 where it says nothing of the kind."""
    for literal, pattern in LOSSES.items():
        if literal in text:
            found = pattern.search(text, 0, 1024)
            if found is not None:
                return int(found[1])
    return 0
