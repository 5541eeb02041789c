"""One agent per state directory."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from gpuchaos_stream.errors import UserError


def take(folder: Path) -> IO[str]:
    """The lock on a state directory, which is made if it is not there; held while the file is open.

    Raises:
        UserError: it cannot be written, or another agent holds it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise UserError(
            str(folder), f"cannot be written: {error.strerror}", "set --state-dir to a folder of yours"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise UserError(
            str(folder), "another agent uses this state directory", "stop it, or set --state-dir"
        ) from error
    return lock
