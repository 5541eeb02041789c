"""Freezes one filesystem and thaws it again, whatever becomes of the agent. Run as a program by `storage_hanging`.

`MARKER FOLDER ENTRY UNTIL`: the folder is opened before anything is frozen, so that thawing needs no path; frozen it
is only as long as the journal entry says so. UNTIL is the lease's end on the boot-time clock, seconds; a renewed
lease is read from the entry. Only the library is imported: a program that guards must come up fast.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject.storage_child import freeze_open, thaw_open

#: The agent itself comes first: this is the check interval that a fault may outlive its lease by, seconds.
GRACE_S: Final = 1.0
_LOOK_S: Final = 0.2


def deadline(entry: Path, known: float) -> float | None:
    """Until when the fault may stand, boot time; None where the journal says that it is over, or says nothing."""
    try:
        found = json.loads(entry.read_bytes())
        return None if found["state"] == "undone" else max(known, float(found["lease_deadline"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def main(arguments: list[str]) -> int:
    """Freezes, says `ready`, and thaws at SIGTERM or when the fault is over."""
    _, folder, entry_path, until = arguments
    entry, known = Path(entry_path), float(until)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    if deadline(entry, known) is None:
        sys.stderr.write(f"{entry}: no such fault stands\n")
        return 1
    try:
        freeze_open(descriptor)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while not ended.wait(_LOOK_S):
            said = deadline(entry, known)
            if said is None or time.clock_gettime(time.CLOCK_BOOTTIME) > said + GRACE_S:
                break
    except OSError as error:
        sys.stderr.write(f"{folder} cannot be frozen: {error.strerror}\n")
        return 1
    finally:
        _thaw(descriptor)
    return 0


def _thaw(descriptor: int) -> None:
    """Until it is thawed, or there is nothing left to thaw."""
    while True:
        try:
            thaw_open(descriptor)
        except OSError as error:
            sys.stderr.write(f"cannot thaw: {error.strerror}\n")
            time.sleep(_LOOK_S)
        else:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
