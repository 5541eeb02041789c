"""One record of any log, with what is known of who wrote it and when; framings make these, words read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Writer(StrEnum):
    """Who wrote a record, as far as the log itself can prove it."""

    KERNEL = "kernel"  # facility 0 of /dev/kmsg, or the word `kernel` of a log daemon that read it
    INJECTED = "injected"  # a process that wrote into the kernel log: not hardware speaking
    PROGRAM = "program"  # a program's own log, or a program's line in a common one


@dataclass(frozen=True, slots=True)
class LogRecord:
    """`text` is unescaped, without stamp, host and tag, and holds several lines where one printk had them.

    `time` is seconds since the epoch, `usec` microseconds since boot; each None where the log does not say.
    `seq` is the log's own number of the record. `tag` is the program that a log daemon names (`mcelog`), `pid`
    its process. `tags` are what the log keeps beside the text (`DEVICE` of /dev/kmsg, journal fields).
    `repeated` is how many records this one stands for (`message repeated 9 times: [...]` of rsyslog).
    """

    text: str
    writer: Writer = Writer.KERNEL
    time: float | None = None
    usec: int | None = None
    seq: int | None = None
    facility: int | None = None
    level: int | None = None
    tag: str = ""
    pid: int | None = None
    host: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    repeated: int = 1


class Framer(Protocol):
    """Cuts bytes into records. Memory is bounded whatever comes; what is no record is counted in `bad`.

    `bad` counts what was skipped because it could not be read; `lost` records that the log itself says are
    missing (gaps in sequence numbers, `N callbacks suppressed`).
    """

    bad: int
    lost: int

    def feed(self, data: bytes) -> list[LogRecord]:
        """The records that `data` completes. Bytes may be cut anywhere."""

    def flush(self) -> list[LogRecord]:
        """What stands open at the end of the log, or at the end of a read that gives whole records."""
