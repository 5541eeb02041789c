"""The kernel log as faults use it: marked lines written to it, and all of it read back.

What a process writes to /dev/kmsg gets the facility of a user (1, never 0), and bears
` gpuchaos-injected=<fault_id>`: it can be told from the kernel speaking, twice over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject.base import InjectError

MARK: Final = "gpuchaos-injected="
#: The kernel gives one record at a time, of at most this many bytes (CONSOLE_EXT_LOG_MAX).
_RECORD: Final = 8192


def unavailable(path: Path) -> str | None:
    """Why the kernel log cannot be written and read back, or None."""
    if not path.exists():
        return f"there is no {path} on this node"
    for mode, what in ((os.R_OK, "read"), (os.W_OK, "written")):
        if not os.access(path, mode):
            return f"{path} cannot be {what} by this agent; it needs root or the group of the device"
    return None


def write(path: Path, text: str) -> None:
    """One record, at the level at which drivers write theirs (4, warning).

    Raises:
        InjectError: it cannot be written.
    """
    # Opened for each record: the kernel limits the rate per open file (printk_devkmsg=ratelimit).
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, f"<4>{text}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InjectError(f"{path} cannot be written: {error.strerror}") from error


def records(path: Path) -> Iterator[str]:
    """The records of /dev/kmsg, or the lines of a plain file that stands for it.

    Raises:
        InjectError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise InjectError(f"{path} cannot be read: {error.strerror}") from error
    try:
        yield from _read(descriptor)
    finally:
        os.close(descriptor)


def is_marked(record: str, fault_id: str) -> bool:
    """Whether the record is of that fault."""
    return record.partition("\n")[0].rstrip().endswith(f"{MARK}{fault_id}")


def _read(descriptor: int) -> Iterator[str]:
    rest = ""
    while True:
        try:
            data = os.read(descriptor, _RECORD)
        except BrokenPipeError:
            continue  # overwritten while it was read: the next read is the oldest that is left
        except BlockingIOError:
            break
        except OSError as error:
            raise InjectError(f"the kernel log cannot be read: {error.strerror}") from error
        if not data:
            break
        lines = (rest + data.decode("utf-8", "replace")).split("\n")
        rest = lines.pop()
        yield from lines
    if rest:
        yield rest
